"""Asks before a job is asked to end."""

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from tui.drawing.roles import Row
from tui.stopping import SIGNALS
from tui.widgets.lines import ROLE_CLASSES, Lines


class StopText(Lines):
    def __init__(self, name: str, pid: int):
        super().__init__()
        self._question = f"Stop {name} (process {pid})?"

    def rows(self, width: int, height: int) -> Sequence[Row]:
        rows: list[Row] = [[(self._question, "strong")], []]
        rows += [[(f"{key}  ", "key"), (said, "text")] for key, (_, said) in SIGNALS.items()]
        return [*rows, [], [("Any other key: leave it alone.", "muted")]]


class StopScreen(ModalScreen[str | None]):
    """Dismissed with the key of ``stopping.SIGNALS`` that was pressed, or None."""

    COMPONENT_CLASSES: ClassVar[set[str]] = ROLE_CLASSES

    def __init__(self, name: str, pid: int):
        super().__init__()
        self._text = StopText(name, pid)

    def compose(self) -> ComposeResult:
        yield self._text

    def on_key(self, event: events.Key) -> None:
        event.stop()
        if self.is_active:
            self.dismiss(event.key if event.key in SIGNALS else None)
