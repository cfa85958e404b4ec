"""A run from its journal, as it was at any moment: a time cursor over all its charts."""

import time as wall
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import ClassVar

import numpy as np
from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.worker import get_current_worker

from keras_mp.telemetry.format import duration, whole
from tui import charts
from tui.drawing.roles import Role
from tui.keys import EVERYWHERE, REPLAY, Key, bindings, hints
from tui.recording import Player, Recording
from tui.screens.job import JobScreen
from tui.snapshot import JobView
from tui.widgets.chart_view import ChartView
from tui.widgets.key_bar import KeyBar
from tui.widgets.timeline import Mark, Timeline
from tui.window import Span

# Seconds of the run in a second of ours.
SPEEDS = (1.0, 4.0, 16.0, 60.0, 240.0, 960.0, 3600.0)
FRAME = 0.25
_ALERT: dict[str, Role] = {"info": "muted", "warning": "warn", "error": "bad"}


class ReplayScreen(JobScreen):
    """Shows the run ``job`` at a moment that the keys move. Its journal is read in a thread."""

    KEYS: ClassVar[tuple[Key, ...]] = REPLAY
    EXTRA = 3  # the timeline, and a space
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(REPLAY)]

    @dataclass
    class Loaded(Message):
        recording: Recording
        whole: JobView

    @dataclass
    class Folded(Message):
        view: JobView

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, ReplayScreen.Folded)

    def __init__(self, place: str, job: JobView):
        super().__init__(place, job.key, [])
        self.run = job
        self.time: float | None = None
        self.playing = False
        self.speed = SPEEDS[2]
        self._view: JobView | None = None
        self._all: JobView | None = None
        self._player: Player | None = None
        self._lock = Lock()
        self._ticked = 0.0
        self._timeline = Timeline(id="timeline")
        self._footer = KeyBar(hints((*REPLAY, *EVERYWHERE)), id="keys")

    def compose(self) -> ComposeResult:
        *above, below, keys = super().compose()
        yield from above
        yield self._timeline
        yield below
        yield keys

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(FRAME, self.play_on)
        self._load()

    @property
    def job(self) -> JobView | None:
        return self._view

    @property
    def _whole(self) -> Span | None:
        return charts.extent(self._all, self.window) if self._all is not None else None

    # The threads: they read and fold, and only post.

    @work(thread=True, group="load", exit_on_error=False)
    def _load(self) -> None:
        try:
            recording = Recording(Path(self.run.folder))
        except OSError as error:
            self.app.call_from_thread(self._cannot, str(error.strerror))
            return
        whole = Player(recording, self.key, self.run.place).end()
        if whole is None:
            self.app.call_from_thread(self._cannot, "it holds no journal")
        else:
            self.post_message(self.Loaded(recording, whole))

    @work(thread=True, group="fold", exclusive=True, exit_on_error=False)
    def _fold(self, time: float) -> None:
        worker = get_current_worker()
        with self._lock:
            if self._player is None or worker.is_cancelled:
                return
            view = self._player.at(time, lambda: worker.is_cancelled)
        if view is not None:
            self.post_message(self.Folded(view))

    # What they post.

    def on_replay_screen_loaded(self, message: Loaded) -> None:
        self._all = self._view = message.whole
        self._player = Player(message.recording, self.key, self.run.place)
        self.time = message.recording.stop
        self._lay_out()
        self.show()

    def on_replay_screen_folded(self, message: Folded) -> None:
        self._view = message.view
        self.show()

    def _cannot(self, why: str) -> None:
        if not self.is_current:
            return
        self.notify(
            self.monitor.look.say(f"{self.run.name} cannot be replayed: {why}."),
            severity="warning",
            markup=False,
        )
        self.monitor.back_to_jobs(self.key)

    # What is shown.

    def show(self) -> None:
        whole = self._whole
        if self._all is not None and whole is not None:
            shown = self.window.span
            # The whole run lies under the charts, the part that is to come still empty.
            self.window = replace(self.window, span=shown or whole)
            super().show()
            self.window = replace(self.window, span=shown)
        else:
            super().show()
        self._show_timeline()

    def _show_timeline(self) -> None:
        if self._all is None or self.time is None:
            self._timeline.show(0.0, (), "reading the journal …", self.monitor.look)
            return
        recording = self._recording
        marks = [Mark(self._share(t), "tick") for t in self._all.skips["time"]]
        marks += [Mark(self._share(a.time), _ALERT[a.severity]) for a in self._all.alerts]
        bad = ~np.isfinite(self._all.points["loss"]) & ~np.isnan(self._all.points["step"])
        said = self._all.nan_step is not None and bad.any()
        if said:
            first = float(self._all.points["time"][np.flatnonzero(bad)[0]])
            marks.append(Mark(self._share(first), "bad"))
        job = self._view
        step = whole(job.step) if job is not None else "–"
        clock = wall.strftime("%d.%m. %H:%M:%S", wall.localtime(self.time))
        words = (
            f"{clock}   step {step} of {whole(self._all.step)}   "
            f"{duration(self.time - recording.start)} of "
            f"{duration(recording.stop - recording.start)}   "
            f"{'▸ ' if self.playing else 'paused, '}{self.speed:g}×"
        )
        self._timeline.show(self._share(self.time), marks, words, self.monitor.look)

    @property
    def _recording(self) -> Recording:
        if self._player is None:
            raise RuntimeError("The journal has not been read yet.")
        return self._player.recording

    def _share(self, time: float) -> float:
        start, stop = self._recording.start, self._recording.stop
        return (time - start) / (stop - start) if stop > start else 1.0

    # The keys.

    def go_to(self, time: float) -> None:
        """Show the run at ``time``, as near as there is."""
        if self._player is None:
            return
        self.time = min(max(time, self._recording.start), self._recording.stop)
        self._show_timeline()
        self._fold(self.time)

    def play_on(self) -> None:
        """A frame of the play: as much of the run as has passed since the last one."""
        now = self.monitor.clock.now()
        passed, self._ticked = now - self._ticked, now
        if not self.playing or self.time is None:
            return
        if self.time >= self._recording.stop:
            self.playing = False
        self.go_to(self.time + max(0.0, passed) * self.speed)

    @on(Timeline.Pointed)
    def _pointed(self, message: Timeline.Pointed) -> None:
        if self._player is not None:
            start, stop = self._recording.start, self._recording.stop
            self.go_to(start + message.share * (stop - start))

    @on(ChartView.Pointed)
    def _point(self, message: ChartView.Pointed) -> None:
        """A click in a chart goes to that moment."""
        span = self.window.span or self._whole
        if span is None or self._all is None:
            return
        at = span[0] + message.share * (span[1] - span[0])
        if self.window.by == "time":
            self.go_to((self._all.started or 0.0) + at)
            return
        steps, times = self._all.points["step"], self._all.points["time"]
        if len(steps):
            self.go_to(float(times[min(int(np.searchsorted(steps, at)), len(times) - 1)]))

    def action_play(self) -> None:
        if self.time is None:
            return
        self.playing = not self.playing
        self._ticked = self.monitor.clock.now()
        if self.playing and self.time >= self._recording.stop:
            self.go_to(self._recording.start)
        self._show_timeline()

    def action_faster(self, by: int) -> None:
        at = SPEEDS.index(self.speed) + by
        self.speed = SPEEDS[min(max(at, 0), len(SPEEDS) - 1)]
        self._show_timeline()

    def action_move(self, share: float) -> None:
        if self.time is not None:
            self.go_to(self.time + share * (self._recording.stop - self._recording.start))

    def action_end(self, which: int) -> None:
        if self.time is not None:
            self.go_to(self._recording.stop if which > 0 else self._recording.start)

    def action_event(self, by: int) -> None:
        """To the next thing that happened, or the one before."""
        if self._all is None or self.time is None:
            return
        times = np.sort([*self._all.skips["time"], *(a.time for a in self._all.alerts)])
        later = times[times > self.time] if by > 0 else times[times < self.time][::-1]
        if len(later):
            self.go_to(float(later[0]))

    def action_numerics(self) -> None:
        self.monitor.numerics(self.key, lambda: self._view)
