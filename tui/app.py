"""The dashboard: ``MonitorApp(["runs"]).run()``.

The feed's thread only posts snapshots. This app owns the newest one and tells the screen on top to
draw it. Nothing here imports Keras or a backend.
"""

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import App
from textual.binding import BindingType
from textual.filter import LineFilter
from textual.screen import Screen

from keras_mp.telemetry.health import Alive
from keras_mp.telemetry.process import is_alive
from tui import look, themes
from tui.clock import Clock, WallClock
from tui.feed import Feed
from tui.keys import EVERYWHERE, bindings
from tui.messages import Looked
from tui.reader import Reader
from tui.screens.base import ShownScreen
from tui.screens.help import HelpScreen
from tui.screens.jobs import JobsScreen
from tui.screens.small import SmallScreen, too_small
from tui.snapshot import Snapshot


class MonitorApp(App[None]):
    """All jobs under ``paths``, live.

    Args:
        paths: Folders of runs, or single runs.
        fps: Looks at the disk, and frames, a second. Less suits a slow link.
        charset: What charts are made of: "braille", "blocks" or "ascii"; None suits the terminal.
        clock, alive: What time it is and whether a process lives; tests set them.
        live: False leaves the feed off; ``look_now`` then takes each snapshot (tests, pictures).
    """

    TITLE = "keras-mp"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    KEYS = EVERYWHERE
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KEYS)]

    def __init__(
        self,
        paths: Sequence[str],
        fps: float = 4.0,
        *,
        charset: str | None = None,
        clock: Clock | None = None,
        alive: Alive = is_alive,
        live: bool = True,
    ):
        super().__init__()
        if not 0 < fps <= 60:
            raise ValueError(f"`fps` must be above 0 and at most 60. Received: fps={fps}")
        self.paths = list(paths)
        self.clock: Clock = clock or WallClock()
        self.look = look.detect(charset)
        self.reader = Reader(self.paths, self.clock, alive)
        self.snapshot: Snapshot | None = None
        self._feed = Feed(self.reader, self._post, fps) if live else None
        for theme in themes.THEMES.values():
            self.register_theme(theme)
        self.theme = themes.DARK.name

    def get_default_screen(self) -> Screen[None]:
        return JobsScreen(self.paths)

    def get_line_filters(self) -> Sequence[LineFilter]:
        filters = super().get_line_filters()
        return filters if self.look.unicode else [*filters, look.PlainText()]

    def on_mount(self) -> None:
        if self._feed is not None:
            self._feed.start()
        self.set_interval(1.0, self._tick)

    def on_unmount(self) -> None:
        if self._feed is not None:
            self._feed.stop()

    def _post(self, snapshot: Snapshot) -> None:
        self.post_message(Looked(snapshot))

    def on_looked(self, message: Looked) -> None:
        self.snapshot = message.snapshot
        self._show()

    def look_now(self) -> None:
        """Take and show a snapshot at once. Only without a feed."""
        self.snapshot = self.reader.look(seconds=None)
        self._show()

    def _show(self) -> None:
        if isinstance(self.screen, ShownScreen):
            self.screen.show()

    def _tick(self) -> None:
        if isinstance(self.screen, ShownScreen):
            self.screen.tick()

    def on_resize(self, event: events.Resize) -> None:
        # The app's own size follows after this.
        small = too_small(event.size.width, event.size.height)
        if small and not isinstance(self.screen, SmallScreen):
            self.push_screen(SmallScreen())
        elif not small and isinstance(self.screen, SmallScreen):
            self.pop_screen()

    def action_help(self) -> None:
        if isinstance(self.screen, ShownScreen):
            self.push_screen(HelpScreen(self.screen.KEYS, self.KEYS))
