"""All keys of the screen below, and what the signs mean."""

import textwrap
from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.screen import ModalScreen

from tui.drawing.roles import Row
from tui.drawing.text import fit
from tui.keys import Key
from tui.widgets.lines import ROLE_CLASSES, Lines

KEY_WIDTH = 10
SIGNS: tuple[tuple[str, str], ...] = (
    ("!", "the job needs a person: NaN, a collapsing or exhausted scale, stalled, dead, failed"),
    ("·", "worth a look: a thrashing scale, steps slower than usual, a NaN of the past"),
    ("↑ ●", "pinned; marked for a comparison"),
    ("┴", "under a chart: a skipped step, whose gradients overflowed at the scale of that moment"),
    ("×", "under a chart: the loss was not finite there"),
    ("·░▒▓█", "numerics: less than 0.1 %, 1 %, 5 %, 20 % or more is lost; × overflows"),
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
        self._top = 0

    def rows(self, width: int, height: int) -> Sequence[Row]:
        rows: list[Row] = []
        for title, entries in self._sections:
            rows += [[(title, "strong")]]
            for key, text in entries:
                first, *rest = textwrap.wrap(text, max(20, width - KEY_WIDTH))
                rows.append([(fit(key, KEY_WIDTH), "key"), (first, "text")])
                rows += [[(" " * KEY_WIDTH + line, "text")] for line in rest]
            rows += [[]]
        rows = rows[:-1]
        if len(rows) <= height:
            return rows
        self._top = min(max(self._top, 0), len(rows) - height + 1)
        shown = rows[self._top : self._top + height - 1]
        more = "more below: ↓" if self._top + height - 1 < len(rows) else "the end; ↑ goes back"
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
        return max(cell_len(t) for _, entries in self._sections for _, t in entries) + KEY_WIDTH


class HelpScreen(ModalScreen[None]):
    """Any key or click closes it, but for those that move a text longer than the screen.

    The app hands it keys before they are queued for a widget, so that a key which comes right after
    the closing one reaches the screen below.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = ROLE_CLASSES

    def __init__(self, screen_keys: Sequence[Key], keys: Sequence[Key]):
        super().__init__()
        self._text = HelpText(
            (
                ("This screen", [(k.shown, k.text) for k in screen_keys if k.text]),
                ("Everywhere", [(k.shown, k.text) for k in keys]),
                ("Signs", SIGNS),
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
