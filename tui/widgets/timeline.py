"""The course of a run as one line: how far it is shown, and where something happened."""

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.message import Message

from tui.drawing.roles import Role, Row
from tui.look import Look
from tui.widgets.lines import Lines


@dataclass(frozen=True)
class Mark:
    """Something that happened, at a share of the run (0 to 1)."""

    share: float
    role: Role


class Timeline(Lines):
    @dataclass
    class Pointed(Message):
        """A click, at a share of the run."""

        share: float

    def __init__(self, *, id: str | None = None):
        super().__init__(id=id)
        self._share = 0.0
        self._marks: Sequence[Mark] = ()
        self._words = ""
        self._look = Look()

    def show(self, share: float, marks: Sequence[Mark], words: str, look: Look) -> None:
        self._share, self._marks, self._words, self._look = share, marks, words, look
        self.redraw()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        unicode = self._look.unicode
        at = min(int(self._share * width), width - 1)
        signs = ["━" if unicode else "="] * at + ["●" if unicode else "O"]
        signs += ["─" if unicode else "-"] * (width - at - 1)
        roles: list[Role] = ["line" if x < at else "faint" for x in range(width)]
        roles[at] = "strong"
        for mark in self._marks:
            place = min(int(mark.share * width), width - 1)
            if place != at:
                signs[place] = "┴" if unicode else "+"
                roles[place] = mark.role
        row: Row = []
        for sign, role in zip(signs, roles, strict=True):
            if row and row[-1][1] == role:
                row[-1] = (row[-1][0] + sign, role)
            else:
                row.append((sign, role))
        return [row, [(self._look.say(self._words), "text")]]

    def on_click(self, event: events.Click) -> None:
        width = max(self.content_size.width, 1)
        share = (event.x - self.gutter.left + 0.5) / width
        self.post_message(self.Pointed(min(max(share, 0.0), 1.0)))
