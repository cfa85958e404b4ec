"""All keys of the screen below, and what the signs mean."""

import textwrap
from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.screen import ModalScreen

from tui.drawing.heat import signs
from tui.drawing.roles import Row
from tui.drawing.text import fit
from tui.keys import Key
from tui.look import Look
from tui.widgets.key_bar import key_name
from tui.widgets.lines import ROLE_CLASSES, Lines


def meanings(look: Look) -> tuple[tuple[str, str], ...]:
    """The signs of the screens, and what they mean."""
    heat = signs(look.unicode)
    return (
        ("!", "the job needs you: NaN, a collapsing or exhausted scale, stalled, dead, failed"),
        ("·", "worth a look: a thrashing scale, steps slower than usual, a NaN of the past"),
        ("↑ ●", "pinned; marked for a comparison"),
        ("┴", "under a chart: a skipped step; gradients overflowed at the scale of that moment"),
        ("×", "under a chart: the loss was not finite there"),
        (
            heat[:-1],
            f"numerics: less than 0.1 %, 1 %, 5 %, 20 % or more is lost; {heat[-1]} overflows",
        ),
        ("–", "not known, or not measured"),
        ("skip", "skipped steps of all attempted ones; a dynamic scale skips one now and then"),
    )


# Keys that move the text where it is longer than the screen: how far, in rows or pages.
SCROLLS: dict[str, tuple[int, bool]] = {
    "up": (-1, False),
    "k": (-1, False),
    "down": (1, False),
    "j": (1, False),
    "pageup": (-1, True),
    "pagedown": (1, True),
    "space": (1, True),
}


class HelpText(Lines):
    def __init__(self, sections: Sequence[tuple[str, Sequence[tuple[str, str]]]]):
        super().__init__()
        self._sections = sections
        self._keys = 2 + max(cell_len(key) for _, entries in sections for key, _ in entries)
        self._top = 0

    def rows(self, width: int, height: int) -> Sequence[Row]:
        rows: list[Row] = []
        for title, entries in self._sections:
            rows += [[(title, "strong")]]
            for key, text in entries:
                first, *rest = textwrap.wrap(text, max(20, width - self._keys))
                rows.append([(fit(key, self._keys), "key"), (first, "text")])
                rows += [[(" " * self._keys + line, "text")] for line in rest]
            rows += [[]]
        rows = rows[:-1]
        if len(rows) <= height:
            return rows
        self._top = min(max(self._top, 0), len(rows) - height + 1)
        shown = rows[self._top : self._top + height - 1]
        more = "more below: down" if self._top + height - 1 < len(rows) else "the end; up goes back"
        return [*shown, [(more, "muted")]]

    def scroll(self, by: int, pages: bool) -> bool:
        """Move the text; False where all of it is seen."""
        height = self.content_size.height
        if len(self.rows(self.content_size.width, 10_000)) <= height:
            return False
        self._top += by * (max(1, height - 2) if pages else 1)
        self.redraw()
        return True

    def lines_needed(self) -> int:
        return sum(len(entries) + 2 for _, entries in self._sections) - 1

    def width_needed(self) -> int:
        return max(cell_len(t) for _, entries in self._sections for _, t in entries) + self._keys


class HelpScreen(ModalScreen[None]):
    """Any key or click closes it, but for those that move a text longer than the screen.

    The app hands it keys before they are queued for a widget, so that a key which comes right after
    the closing one reaches the screen below.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = ROLE_CLASSES

    def __init__(self, screen_keys: Sequence[Key], keys: Sequence[Key], look: Look):
        super().__init__()
        self._text = HelpText(
            (
                ("This screen", [(key_name(k.shown, look), k.text) for k in screen_keys if k.text]),
                ("Everywhere", [(key_name(k.shown, look), k.text) for k in keys]),
                ("Signs", meanings(look)),
            )
        )

    def compose(self) -> ComposeResult:
        self._text.styles.height = self._text.lines_needed() + 2
        self._text.styles.width = self._text.width_needed() + 4
        yield self._text

    def press(self, key: str) -> None:
        """Move the text, or close."""
        if key not in SCROLLS or not self._text.scroll(*SCROLLS[key]):
            self.close()

    def close(self) -> None:
        # A click may arrive under a screen that was pushed meanwhile, which is not ours to close.
        if self.is_active:
            self.dismiss()

    def on_click(self) -> None:
        self.close()
