"""The line of keys at the foot of a screen; a click on one presses it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from textual import events

from tui.drawing.roles import Row
from tui.look import Look
from tui.widgets.lines import Lines


@dataclass(frozen=True)
class Hint:
    """A key, the word beside it, and the action it stands for ("" where there is none to click).

    ``rank``: the higher, the earlier it leaves when there is no room.
    """

    key: str
    word: str
    action: str = ""
    rank: int = 0


# Keys whose sign a terminal without Unicode lacks. "<" for enter would be another key.
_SPELLED = {
    "↑↓": "up/down",
    "← →": "left/right",
    "⇧← ⇧→": "shift+left/right",
    "⏎": "enter",
    "⇧tab": "shift+tab",
}


def key_name(key: str, look: Look) -> str:
    """A key as this terminal can show it."""
    return key if look.unicode else _SPELLED.get(key, key)


class KeyBar(Lines):
    def __init__(self, hints: Sequence[Hint], *, id: str | None = None):
        super().__init__(id=id)
        self.hints = tuple(hints)
        self._kept: list[Hint] = []

    def show(self, hints: Sequence[Hint]) -> None:
        if tuple(hints) != self.hints:
            self.hints = tuple(hints)
            self.redraw()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        look = getattr(self.app, "look", Look())
        self._kept = [replace(hint, key=key_name(hint.key, look)) for hint in self.hints]
        while len(self._kept) > 1 and sum(map(_width, self._kept)) - 3 > width:
            self._kept.remove(max(reversed(self._kept), key=lambda h: h.rank))
        row: Row = []
        for number, hint in enumerate(self._kept, start=1):
            gap = "   " if number < len(self._kept) else ""
            row += [(hint.key, "key"), (f" {hint.word}{gap}", "muted")]
        return [row]

    async def on_click(self, event: events.Click) -> None:
        edge = self.gutter.left
        for hint in self._kept:
            edge += _width(hint)
            if event.x < edge:
                if hint.action:
                    await self.run_action(hint.action)
                return


def _width(hint: Hint) -> int:
    return cell_len(hint.key) + cell_len(hint.word) + 4
