"""The dashboard's own themes. Each colour has one meaning, the same on every screen.

``error`` needs a person, ``warning`` is worth a look, ``success`` is said to be well, ``primary``
is the first line of a chart, ``accent`` the skipped steps under it. The rest is foreground in
three strengths.
"""

from typing import Any

from textual.app import App
from textual.theme import Theme

DARK = Theme(
    name="keras-mp-dark",
    dark=True,
    primary="#7fb4e6",
    secondary="#e5a86b",
    accent="#e8b04b",
    success="#86b86f",
    warning="#e0b458",
    error="#f0716b",
    foreground="#ccd2da",
    background="#11151a",
    surface="#11151a",
    panel="#1c232b",
    variables={
        "line2": "#e5a86b",
        "line3": "#8fc99a",
        "line4": "#c39ae0",
        "cursor-row": "#1d2731",
        "muted": "#7d8894",
        "faint": "#4a545f",
        "strong": "#f2f5f8",
    },
)

LIGHT = Theme(
    name="keras-mp-light",
    dark=False,
    primary="#1f6fb2",
    secondary="#b3590c",
    accent="#a66300",
    success="#2f7d32",
    warning="#8f6400",
    error="#c22f2a",
    foreground="#2a3139",
    background="#fbfbf9",
    surface="#fbfbf9",
    panel="#eceeef",
    variables={
        "line2": "#b3590c",
        "line3": "#2f7d32",
        "line4": "#7b4aa8",
        "cursor-row": "#e6edf3",
        "muted": "#68727c",
        "faint": "#b4bcc3",
        "strong": "#0c1116",
    },
)

# Okabe and Ito's palette, told apart with any common colour blindness; trouble is also a sign and a
# word, never a colour alone.
SAFE = Theme(
    name="keras-mp-safe",
    dark=True,
    primary="#56b4e9",
    secondary="#e69f00",
    accent="#e69f00",
    success="#56b4e9",
    warning="#f0e442",
    error="#ff8a5b",
    foreground="#d0d4d9",
    background="#101010",
    surface="#101010",
    panel="#1e1e1e",
    variables={
        "line2": "#e69f00",
        "line3": "#f0e442",
        "line4": "#cc79a7",
        "cursor-row": "#242b31",
        "muted": "#8b9197",
        "faint": "#50555a",
        "strong": "#ffffff",
    },
)

THEMES = {theme.name: theme for theme in (DARK, LIGHT, SAFE)}


def begin_with(app: App[Any], theme: str) -> None:
    """Open with a theme; one that is not there any more gives way to the dark one."""
    if theme not in app.available_themes:
        theme = DARK.name
    if theme in THEMES:
        # A theme that is changed has all styles read and applied again; this one is the first.
        app.set_reactive(App.theme, theme)
        app.stylesheet.set_variables(app.get_css_variables())
    else:
        app.theme = theme
