"""The dashboard: ``MonitorApp(["runs"]).run()``.

The feed's thread only posts snapshots. This app owns the newest one and tells the screen on top to
draw it. Nothing here imports Keras or a backend.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.binding import BindingType
from textual.filter import LineFilter
from textual.screen import Screen

from keras_mp.telemetry.health import Alive
from keras_mp.telemetry.process import is_alive
from tui import export, look, themes
from tui.clock import Clock, WallClock
from tui.devices import DeviceReader
from tui.feed import Feed
from tui.keys import EVERYWHERE, bindings
from tui.messages import Looked
from tui.reader import Reader, place_name
from tui.screens.base import ShownScreen
from tui.screens.help import HelpScreen
from tui.screens.jobs import JobsScreen
from tui.screens.small import SmallScreen, too_small
from tui.settings import Settings, load
from tui.snapshot import JobView, Snapshot
from tui.terminal import TerminalApp

if TYPE_CHECKING:
    from textual.command import Provider

# Screens other than the first are imported when they are opened, the palette when it is called:
# a dashboard is judged by how soon it is there.


def _commands() -> "type[Provider]":
    from tui.commands import MonitorCommands

    return MonitorCommands


class MonitorApp(TerminalApp):
    """All jobs under ``paths``, live.

    Args:
        paths: Folders of runs, or single runs.
        fps: Looks at the disk, and frames, a second. Less suits a slow link; None takes the
            settings' (4 unless they say otherwise).
        charset: What charts are made of: "braille", "blocks" or "ascii"; None suits the terminal.
        clock, alive: What time it is and whether a process lives; tests set them.
        devices: Reads GPUs and memory; tests give one with a fake NVML.
        live: False leaves the feed off; ``look_now`` then takes each snapshot (tests, pictures).
        settings: Where the dashboard remembers what was chosen; None remembers nothing.
    """

    TITLE = "keras-mp"
    CSS_PATH = Path(__file__).with_name("app.tcss")
    COMMANDS: ClassVar = {_commands}
    KEYS = EVERYWHERE
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KEYS)]

    def __init__(
        self,
        paths: Sequence[str],
        fps: float | None = None,
        *,
        charset: str | None = None,
        clock: Clock | None = None,
        alive: Alive = is_alive,
        devices: DeviceReader | None = None,
        live: bool = True,
        settings: Path | None = None,
    ):
        self.settings, self._others, self._problem = (
            load(settings) if settings is not None else (Settings(), {}, None)
        )
        self._settings_path = settings
        super().__init__()
        fps = self.settings.fps if fps is None else fps
        if not 0 < fps <= 60:
            raise ValueError(f"`fps` must be above 0 and at most 60. Received: fps={fps}")
        self.paths = list(paths)
        self._place = "  ".join(map(place_name, self.paths))
        self.clock: Clock = clock or WallClock()
        self.look = look.detect(charset or self.settings.charset)
        self._alive = alive
        self.reader = Reader(self.paths, self.clock, alive, devices)
        self.reader.acknowledged = dict(self.settings.acknowledged)
        self.snapshot: Snapshot | None = None
        self._feed = (
            Feed(self.reader, lambda seen: self.post_message(Looked(seen)), fps) if live else None
        )
        for theme in themes.THEMES.values():
            self.register_theme(theme)
        themes.begin_with(self, self.settings.theme)

    def remember(self, **chosen: Any) -> None:
        """Keep these settings, and write them to the file if there is one."""
        for name, value in chosen.items():
            setattr(self.settings, name, value)
        if self._settings_path is None:
            return
        problem = self.settings.save(self._settings_path, self._others)
        if problem:
            self._settings_path = None  # said once; the next change would fail likewise
            self.notify(self.look.say(problem), severity="warning", markup=False)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """What our style sheet asks for and Textual's own themes lack."""
        return dict((themes.DARK if self.current_theme.dark else themes.LIGHT).variables)

    def get_default_screen(self) -> Screen[None]:
        return JobsScreen(self.paths, self._place)

    def get_line_filters(self) -> Sequence[LineFilter]:
        filters = super().get_line_filters()
        return filters if self.look.unicode else [*filters, look.PlainText()]

    def on_load(self) -> None:
        if self._feed is not None:
            self._feed.start()

    def on_mount(self) -> None:
        if self._feed is not None:
            # So that the first frame has jobs in it; without them it says that it reads.
            self.snapshot = self._feed.first()
            self.call_after_refresh(self._feed.go_on)
        self.set_interval(1.0, self._tick)
        if self._problem:
            self.notify(self.look.say(self._problem), severity="warning", markup=False)

    def on_unmount(self) -> None:
        self.release()

    def release(self) -> None:
        if self._feed is not None:
            self._feed.stop()
        else:
            self.reader.close()

    @property
    def live(self) -> bool:
        """Whether a feed brings snapshots by itself."""
        return self._feed is not None

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
            self.reader.in_view = self.screen.in_view

    def _tick(self) -> None:
        if isinstance(self.screen, ShownScreen):
            self.screen.tick()

    async def on_event(self, event: events.Event) -> None:
        key = event if isinstance(event, events.Key) and not event.is_forwarded else None
        if key is not None and isinstance(self.screen, HelpScreen):
            self.screen.press(key.key)
        else:
            await super().on_event(event)

    def on_resize(self, event: events.Resize) -> None:
        # By the size that is then laid out, not the event's: on a busy machine two changes overlap.
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        small = too_small(*self.size)
        if small and not isinstance(self.screen, SmallScreen):
            self.push_screen(SmallScreen())
        elif not small and isinstance(self.screen, SmallScreen):
            self.pop_screen()

    def acknowledge(self, seen: dict[str, int]) -> None:
        """The user has seen these NaN: key of a job -> its ``nan_step``."""
        self.remember(acknowledged=self.settings.acknowledged | seen)
        self.reader.acknowledged = dict(self.settings.acknowledged)

    def open_job(self, key: str, keys: list[str]) -> None:
        """All charts of one job; ``keys`` are its neighbours."""
        from tui.screens.job import JobScreen

        self.push_screen(JobScreen(self._place, key, keys))

    def compare(self, keys: Sequence[str]) -> None:
        """Several jobs over one another."""
        from tui.screens.compare import CompareScreen

        self.push_screen(CompareScreen(self._place, keys))

    def numerics(self, key: str, of: Callable[[], JobView | None] | None = None) -> None:
        """What a job's layers lose; ``of`` gives the job where it is not the live one."""
        from tui.screens.numerics import NumericsScreen

        self.push_screen(NumericsScreen(self._place, key, of))

    def replay(self, job: JobView) -> None:
        """The job from its journal, at any moment."""
        from tui.screens.replay import ReplayScreen

        self.push_screen(ReplayScreen(self._place, job))

    def what_if(self, job: JobView) -> None:
        """The job's skips under another setting of the loss scale."""
        from tui.screens.what_if import WhatIfScreen

        self.push_screen(WhatIfScreen(self._place, job))

    def action_stop(self) -> None:
        """Ask whether to stop the selected job, and do so."""
        from tui import stopping
        from tui.screens.stop import StopScreen

        job = self.screen.job if isinstance(self.screen, ShownScreen) else None
        if job is None or job.meta is None:
            return
        why = stopping.why_not(job, self._alive)
        if why is not None:
            self.notify(self.look.say(why), severity="warning", markup=False)
            return

        def answered(key: str | None) -> None:
            if key is not None:
                said = stopping.stop(job, key, self._alive)
                self.notify(self.look.say(said), markup=False)

        self.push_screen(StopScreen(self.look.say(job.name), job.meta.pid), answered)

    def action_lab(self) -> None:
        """Number formats, a step, a scale and memory, to see and move."""
        from tui.lab.screen import LabScreen

        if isinstance(self.screen, ShownScreen) and not isinstance(self.screen, LabScreen):
            job = self.screen.job
            self.push_screen(LabScreen(job.name, job.numerics) if job is not None else LabScreen())

    def action_devices(self) -> None:
        """GPUs and memory."""
        from tui.screens.devices import DevicesScreen

        there = isinstance(self.screen, ShownScreen) and not isinstance(self.screen, DevicesScreen)
        if there and self.snapshot is not None:
            self.push_screen(DevicesScreen(self._place))

    def back_to_jobs(self, key: str | None) -> None:
        """Leave the screen on top; the cursor stands on the job that was looked at."""
        self.pop_screen()
        if isinstance(self.screen, ShownScreen):
            self.screen.show()
        if isinstance(self.screen, JobsScreen) and key is not None:
            self.screen.select(key)

    def export(self, name: str, text: str, suffix: str = ".csv") -> None:
        """Write a file to the current folder, and say where."""
        path = export.free_path(name, suffix)
        problem = export.write(path, text)
        said = self.look.say(problem or f"Written to {path}")
        self.notify(said, severity="error" if problem else "information", markup=False)

    def action_copy(self) -> None:
        """The screen as text, into the clipboard (by OSC 52: over ssh, too)."""
        rows = [strip.text.rstrip() for strip in self.screen._compositor.render_strips()]
        self.copy_to_clipboard("\n".join(rows))
        self.notify("Copied what is shown.")

    def action_picture(self) -> None:
        self.export("keras-mp", self.export_screenshot(), ".svg")

    def use_charset(self, charset: str) -> None:
        """Draw charts in "braille", "blocks" or "ascii"."""
        self.look = look.detect(charset)
        self.remember(charset=charset)
        self._show()

    def watch_theme(self, theme: str) -> None:
        if self.is_running and theme != self.settings.theme:
            self.remember(theme=theme)

    def action_next_theme(self) -> None:
        names = list(themes.THEMES)
        at = names.index(self.theme) if self.theme in names else -1
        self.theme = names[(at + 1) % len(names)]

    def action_help(self) -> None:
        if isinstance(self.screen, ShownScreen):
            self.push_screen(HelpScreen(self.screen.KEYS, self.KEYS, self.look))
