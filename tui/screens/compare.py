"""Two or more jobs over one another; two of them also as a pair, in figures and words."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Grid

from keras_mp.telemetry.format import count, number
from tui import charts, export
from tui.drawing.chart import LINES, Chart
from tui.drawing.roles import Row
from tui.drawing.text import fit, shorten, wrap
from tui.job_columns import BY_KEY
from tui.keys import COMPARE, EVERYWHERE, bindings, hints
from tui.look import Look
from tui.pair import MAX_COMPARED, compare
from tui.screens.base import ShownScreen
from tui.snapshot import JobView
from tui.widgets.chart_view import ChartView
from tui.widgets.key_bar import KeyBar
from tui.widgets.lines import Lines
from tui.window import Span, Window

# (column, cells, cells in its short form)
_COLUMNS = (
    *(("state", 9, 8), ("policy", 15, 8), ("step", 11, 9), ("loss", 9, 7), ("scale", 6, 5)),
    *(("rate", 9, 6), ("memory", 8, 6)),
)
NARROW = 100


class Legend(Lines):
    """Which line is which job, with its figures; under two jobs, their comparison."""

    def __init__(self) -> None:
        super().__init__(id="legend")
        self._jobs: Sequence[JobView] = ()
        self._look = Look()

    def show(self, jobs: Sequence[JobView], look: Look) -> None:
        self._jobs, self._look = jobs, look
        self.redraw()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        say, columns = self._look.say, {key: BY_KEY[key].column for key, *_ in _COLUMNS}
        longest = max((cell_len(say(job.name)) for job in self._jobs), default=0)
        short = width < NARROW
        widths = {key: small if short else wide for key, wide, small in _COLUMNS}
        room = width - 4 - sum(w + 1 for w in widths.values())
        name_width = max(12, min(longest + 2, room))
        titles = " " * (3 + name_width)
        for key, cells in widths.items():
            title = (short and columns[key].short_title) or columns[key].title
            titles += " " + fit(title, cells, columns[key].right)
        rows: list[Row] = [[(titles, "muted")]]
        for job, role in zip(self._jobs, LINES, strict=False):
            name = fit(shorten(say(job.name), name_width), name_width)
            row: Row = [("── ", role), (name, "strong")]
            for key, cells in widths.items():
                text, tone = BY_KEY[key].cell(job, short)
                row.append((" " + fit(say(text), cells, columns[key].right), tone))
            rows.append(row)
        if len(self._jobs) == 2:
            # Names may be cut in the sentences, what is said of them may not.
            called = [replace(job, name=shorten(job.name, width // 3)) for job in self._jobs]
            pair = compare(*called)
            first, *reasons = pair.sentences()
            rows += [[(line, "text")] for line in wrap(say(f"{pair.mixed.name} · {first}"), width)]
            for reason in reasons:
                rows += [[(line, "warn")] for line in wrap(say(reason), width)]
        return rows


class CompareScreen(ShownScreen):
    """Shows the jobs with ``keys``, up to four."""

    KEYS = COMPARE
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(COMPARE)]

    def __init__(self, place: str, keys: Sequence[str]):
        super().__init__(place)
        self.keys = tuple(keys)[:MAX_COMPARED]
        self.windows = {"step": Window(by="step"), "time": Window(by="time")}
        self._legend = Legend()
        self._views = [ChartView(id=f"chart{n}", classes="chart") for n in range(4)]
        self._footer = KeyBar(hints((*COMPARE, *EVERYWHERE)), id="keys")

    def compose(self) -> ComposeResult:
        yield self._status
        yield self._legend
        yield Grid(*self._views, id="grid")
        yield self._footer

    @property
    def jobs(self) -> list[JobView]:
        snapshot = self.monitor.snapshot
        known = {job.key: job for job in snapshot.jobs} if snapshot else {}
        return [known[key] for key in self.keys if key in known]

    @property
    def in_view(self) -> frozenset[str] | None:
        return frozenset(self.keys)

    def on_mount(self) -> None:
        self.show()

    def on_resize(self) -> None:
        self.show()

    def show(self) -> None:
        self.tick()
        jobs, look = self.jobs, self.monitor.look
        self._legend.show(jobs, look)
        needed = len(self._legend.rows(max(self.size.width - 2, 1), 0))
        self._legend.styles.height = min(max(needed, 1), self.size.height // 3)
        for view, chart in zip(self._views, self._charts(jobs, look), strict=True):
            view.show(chart, look.charset)

    def _charts(self, jobs: Sequence[JobView], look: Look) -> list[Chart]:
        step, time = self.windows["step"], self.windows["time"]
        return [
            charts.overlay(jobs, look, step, "loss by step", "loss", number),
            charts.overlay(jobs, look, time, "loss by time", "loss", number),
            charts.overlay(jobs, look, step, "samples/s", "samples_per_second", count, noisy=True),
            charts.overlay_memory(jobs, look, step),
        ]

    def _each(self, change: Callable[[Window, Span], Window]) -> None:
        """The same to the charts by step and to the one by time."""
        for by, window in self.windows.items():
            whole = charts.extent_of_all(self.jobs, window)
            if whole is not None:
                self.windows[by] = change(window, whole)
        self.show()

    @on(ChartView.Pointed)
    def _point(self, message: ChartView.Pointed) -> None:
        def read(window: Window, whole: Span) -> Window:
            start, stop = window.span or whole
            return replace(window, cursor=start + message.share * (stop - start))

        self._each(read)

    @on(ChartView.Wheeled)
    def _wheel(self, message: ChartView.Wheeled) -> None:
        def zoom(window: Window, whole: Span) -> Window:
            start, stop = window.span or whole
            at = replace(window, cursor=start + message.share * (stop - start))
            return replace(at.zoom(0.8 if message.by > 0 else 1.25, whole), cursor=window.cursor)

        self._each(zoom)

    def action_zoom(self, factor: float) -> None:
        self._each(lambda window, whole: window.zoom(factor, whole))

    def action_pan(self, share: float) -> None:
        self._each(lambda window, whole: window.pan(share, whole))

    def action_cursor(self, share: float) -> None:
        self._each(lambda window, whole: window.move_cursor(share, whole))

    def action_everything(self) -> None:
        self._each(lambda window, whole: replace(window, span=None, cursor=None))

    def action_log(self) -> None:
        self._each(lambda window, whole: window.next_log())

    def action_trend(self) -> None:
        self._each(lambda window, whole: replace(window, trend=not window.trend))

    def action_export(self) -> None:
        """The common steps of the jobs, a column each."""
        if self.jobs:
            self.monitor.export("keras-mp-compare", export.compare_csv(self.jobs))

    def action_back(self) -> None:
        self.monitor.back_to_jobs(self.keys[0] if self.keys else None)
