"""One job: all its charts, with a cursor, zoom and pan; its events and its configuration."""

from dataclasses import replace
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Grid, Horizontal

from tui import charts, export
from tui.division import AIRY
from tui.keys import EVERYWHERE, JOB, Key, bindings, hints
from tui.screens.base import ShownScreen
from tui.snapshot import JobView
from tui.widgets.chart_view import ChartView
from tui.widgets.event_list import EventList
from tui.widgets.facts import Facts
from tui.widgets.key_bar import KeyBar
from tui.widgets.verdict_line import VerdictLine
from tui.window import Span, Window

MAX_CHARTS = 12
# Below these a chart says little.
CHART_WIDTH, CHART_HEIGHT = 36, 7


class JobScreen(ShownScreen):
    """Shows the job with ``key``; ``keys`` are its neighbours, for up and down."""

    KEYS: ClassVar[tuple[Key, ...]] = JOB
    EXTRA = 0  # rows that a screen made of this one adds
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(JOB)]

    def __init__(self, place: str, key: str, keys: list[str]):
        super().__init__(place)
        self.key, self._keys = key, keys
        self.window = Window()
        self.alone: int | None = None
        self._verdict = VerdictLine(id="verdict")
        self._verdict.gone = "The job is gone: its folder is not there any more."
        self._views = [ChartView(id=f"chart{n}", classes="chart") for n in range(MAX_CHARTS)]
        self._grid = Grid(*self._views, id="grid")
        self._events, self._facts = EventList(id="events"), Facts(id="facts")
        self._footer = KeyBar(hints((*JOB, *EVERYWHERE)), id="keys")

    def compose(self) -> ComposeResult:
        yield self._status
        yield self._verdict
        yield self._grid
        yield Horizontal(self._events, self._facts, id="below")
        yield self._footer

    @property
    def job(self) -> JobView | None:
        snapshot = self.monitor.snapshot
        return next((j for j in snapshot.jobs if j.key == self.key), None) if snapshot else None

    @property
    def in_view(self) -> frozenset[str] | None:
        return frozenset([self.key])

    @property
    def _whole(self) -> Span | None:
        return charts.extent(self.job, self.window) if self.job else None

    def on_mount(self) -> None:
        self._lay_out()
        self.show()

    def on_resize(self) -> None:
        self._lay_out()
        self.show()

    def show(self) -> None:
        self.tick()
        job, look = self.job, self.monitor.look
        self._verdict.show(job, look)
        self._events.show(job, look)
        self._facts.show(job, look)
        if job is None:
            return
        makers = charts.makers(job)
        if len(makers) != self._count:
            self._lay_out()
        for view, make in zip(self._views, makers, strict=False):
            if view.display:
                view.show(make(job, look, self.window), look.charset)

    _count = 0

    def _lay_out(self) -> None:
        """As many charts as there is room for, or the one that was chosen."""
        self._count = len(charts.makers(self.job))
        width, height = self.size.width, self.size.height
        below = min(12, max(3, height // 5))
        self.query_one("#below").styles.height = below
        # On a low terminal the space under the status line is the verdict's fourth row.
        space = 1 if height >= AIRY else 0
        self._verdict.styles.margin = (space, 0, 0, 0)
        room = height - 5 - space - below - self.EXTRA
        across = max(1, min(4, width // CHART_WIDTH, self._count))
        down = max(1, min(room // CHART_HEIGHT, -(-self._count // across)))
        across = min(across, -(-self._count // down))  # six in three columns leave no hole
        shown = range(min(across * down, self._count))
        if self.alone is not None:
            across, down, shown = 1, 1, range(self.alone, self.alone + 1)
        self._grid.styles.grid_size_columns = across
        self._grid.styles.grid_size_rows = down
        for number, view in enumerate(self._views):
            view.display = number in shown
        self._facts.display = width >= 100

    def _change(self, window: Window) -> None:
        self.window = window
        self.show()

    @on(ChartView.Pointed)
    def _point(self, message: ChartView.Pointed) -> None:
        whole = self._whole
        if whole is not None:
            start, stop = self.window.span or whole
            self._change(replace(self.window, cursor=start + message.share * (stop - start)))

    @on(ChartView.Wheeled)
    def _wheel(self, message: ChartView.Wheeled) -> None:
        whole = self._whole
        if whole is not None:
            start, stop = self.window.span or whole
            at = replace(self.window, cursor=start + message.share * (stop - start))
            zoomed = at.zoom(0.8 if message.by > 0 else 1.25, whole)
            self._change(replace(zoomed, cursor=self.window.cursor))

    def action_zoom(self, factor: float) -> None:
        if self._whole is not None:
            self._change(self.window.zoom(factor, self._whole))

    def action_pan(self, share: float) -> None:
        if self._whole is not None:
            self._change(self.window.pan(share, self._whole))

    def action_cursor(self, share: float) -> None:
        if self._whole is not None:
            self._change(self.window.move_cursor(share, self._whole))

    def action_everything(self) -> None:
        self._change(replace(self.window, span=None, cursor=None))

    def action_log(self) -> None:
        self._change(self.window.next_log())

    def action_by(self) -> None:
        self._change(self.window.turned())

    def action_trend(self) -> None:
        self._change(replace(self.window, trend=not self.window.trend))

    def action_alone(self) -> None:
        """The next chart alone; after the last, all of them again."""
        following = 0 if self.alone is None else self.alone + 1
        self.alone = following if following < min(self._count, MAX_CHARTS) else None
        self._lay_out()
        self.show()

    def action_other(self, by: int) -> None:
        if self.key in self._keys:
            at = (self._keys.index(self.key) + by) % len(self._keys)
            self.key = self._keys[at]
            self.window = replace(self.window, span=None, cursor=None)
            self._lay_out()
            self.show()

    def action_numerics(self) -> None:
        self.monitor.numerics(self.key)

    def action_replay(self) -> None:
        if self.job is not None:
            self.monitor.replay(self.job)

    def action_what_if(self) -> None:
        if self.job is not None:
            self.monitor.what_if(self.job)

    def action_acknowledge(self) -> None:
        if self.job is not None and self.job.nan_step is not None:
            self.monitor.acknowledge({self.key: self.job.nan_step})

    def action_export(self) -> None:
        if self.job is not None:
            self.monitor.export(self.job.name, export.job_csv(self.job))

    def action_back(self) -> None:
        if self.alone is not None:
            self.alone = None
            self._lay_out()
            self.show()
        else:
            self.monitor.back_to_jobs(self.key)
