"""What every screen of the dashboard can do."""

from typing import TYPE_CHECKING, ClassVar

from textual.screen import Screen

from tui.keys import Key
from tui.widgets.lines import ROLE_CLASSES
from tui.widgets.status_line import StatusLine

if TYPE_CHECKING:
    from tui.app import MonitorApp
    from tui.snapshot import JobView


class ShownScreen(Screen[None]):
    """A screen that draws the app's snapshot whenever it is told to.

    Args:
        place: What is watched, for the status line of a screen that yields ``_status``.

    Attributes:
        KEYS: Its keys, for the bindings, the footer and the help.
    """

    KEYS: ClassVar[tuple[Key, ...]] = ()
    COMPONENT_CLASSES: ClassVar[set[str]] = ROLE_CLASSES

    def __init__(self, place: str = ""):
        super().__init__()
        self._status = StatusLine(place, id="status")

    @property
    def monitor(self) -> "MonitorApp":
        from tui.app import MonitorApp

        if not isinstance(self.app, MonitorApp):
            raise TypeError(f"Screens belong to a MonitorApp. Received: app={self.app!r}")
        return self.app

    @property
    def in_view(self) -> frozenset[str] | None:
        """Keys of the jobs that are on the screen now; None: it may be any."""
        return None

    @property
    def job(self) -> "JobView | None":
        """The job that the screen tells of, or that is selected on it."""
        return None

    def show(self) -> None:
        """Draw ``monitor.snapshot``."""
        raise NotImplementedError

    def tick(self) -> None:
        """A second has passed: the status line tells the time."""
        self._status.show(self.monitor.snapshot, self.monitor.clock.now(), self.monitor.look)
