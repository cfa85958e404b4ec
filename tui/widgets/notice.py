"""Sentences in place of a table that has no rows."""

from collections.abc import Sequence

from tui.drawing.roles import Row
from tui.widgets.lines import Lines


class Notice(Lines):
    """Said where the table would be, while there is nothing to put in it."""

    def __init__(self) -> None:
        super().__init__(id="notice")
        self.sentences: Sequence[str] = ()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        return [[(sentence, "text")] for sentence in self.sentences]
