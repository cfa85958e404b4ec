"""Rows that a screen says, as they are."""

from collections.abc import Sequence

from tui.drawing.roles import Row
from tui.look import Look
from tui.widgets.lines import Lines


class Said(Lines):
    def __init__(self, *, id: str | None = None):
        super().__init__(id=id)
        self._said: Sequence[Row] = ()

    def say(self, rows: Sequence[Row], look: Look) -> None:
        self._said = [[(look.say(text), role) for text, role in row] for row in rows]
        self.redraw()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        return self._said
