"""What a format loses of a job's numbers: layers by time, and one layer's exponents."""

import math
from collections.abc import Callable
from typing import ClassVar

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from keras_mp.numerics.rows import Kind
from keras_mp.telemetry.format import count, power_of_two
from tui import export, numerics
from tui.drawing.roles import Row
from tui.drawing.text import shorten
from tui.keys import EVERYWHERE, NUMERICS, bindings, hints
from tui.numerics import FORMATS, TITLES, Shown, Tensor
from tui.screens.base import ShownScreen
from tui.snapshot import JobView
from tui.widgets.exponent_view import ExponentView
from tui.widgets.heat_table import STRIP, HeatTable
from tui.widgets.key_bar import KeyBar
from tui.widgets.line_table import LineTable, TableHeader
from tui.widgets.notice import Notice
from tui.widgets.said import Said

# Powers of two that a scale can be moved to.
LOWEST, HIGHEST = -40, 40
NONE_RECORDED = (
    "This job records no numerics.",
    "",
    "Train it with keras_mp.Monitor(..., numerics=True): every so many steps it then counts the",
    "exponents of each layer's activations and gradients.",
)


class NumericsScreen(ShownScreen):
    """Shows the job with ``key``; of a replay, what ``of`` gives."""

    KEYS = NUMERICS
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(NUMERICS)]

    def __init__(self, place: str, key: str, of: Callable[[], JobView | None] | None = None):
        super().__init__(place)
        self.key, self._of = key, of
        self.kind: Kind | None = None
        self.format = FORMATS[0]
        self.scale: float | None = None
        self.shown: Shown = "lost"
        self.worst = False
        self._tensors: list[Tensor] = []
        self._title = Said(id="title")
        self._table = HeatTable(id="heat")
        self._header = TableHeader(self._table, id="titles")
        self._notice = Notice()
        self._exponents = ExponentView(id="exponents")
        self._footer = KeyBar(hints((*NUMERICS, *EVERYWHERE)), id="keys")

    def compose(self) -> ComposeResult:
        yield self._status
        yield self._title
        yield self._header
        yield self._notice
        yield self._table
        yield self._exponents
        yield self._footer

    @property
    def in_view(self) -> frozenset[str] | None:
        return frozenset([self.key])

    @property
    def job(self) -> JobView | None:
        if self._of is not None:
            return self._of()
        snapshot = self.monitor.snapshot
        return next((j for j in snapshot.jobs if j.key == self.key), None) if snapshot else None

    @property
    def selected(self) -> Tensor | None:
        name = self._table.selected
        return next((t for t in self._tensors if t.name == name), None)

    def on_mount(self) -> None:
        self._table.focus()
        self.show()

    def on_resize(self) -> None:
        self.show()

    def show(self) -> None:
        self.tick()
        job, look = self.job, self.monitor.look
        there = numerics.kinds(job) if job is not None else []
        if there and self.kind not in there:
            self.kind = there[0]
        self._tensors = []
        if job is not None and self.kind is not None:
            self._tensors = numerics.tensors(job, self.kind, self.format, self.scale, self.worst)
        span = numerics.span(self._tensors)
        self._title.say([self._words(job)], look)
        self._lay_out()
        self._notice.sentences = [] if self._tensors else NONE_RECORDED
        self._notice.redraw()
        self._header.titles = {STRIP: self._strip_title(span)}
        self._header.redraw()
        self._table.put(self._tensors, span, self.format, self.scale, self.shown, look)
        self._show_selected()

    def _lay_out(self) -> None:
        there = bool(self._tensors)
        self._notice.display = not there
        self._notice.styles.height = len(NONE_RECORDED) + 2
        for widget in (self._table, self._header, self._exponents):
            widget.display = there
        height = self.size.height
        rest = height - 6  # status, a space, title, titles, a space, keys
        rows = max(3, min(len(self._tensors), rest - 10, int(rest * 0.6)))
        self._table.styles.height = rows
        self._exponents.styles.height = max(5, min(rest - rows, 28))

    def _words(self, job: JobView | None) -> Row:
        if job is None:
            return [("The job is gone.", "muted")]
        if self.kind is None:
            return [(job.name, "strong")]
        wide, say = self.size.width >= 100, self.monitor.look.say
        lost = "share lost to underflow" if wide else "lost to underflow"
        what = {"lost": lost, "headroom": "doublings to overflow"}[self.shown]
        said = f" · {TITLES[self.kind]} in {self.format} · {what}"
        scale = self.scale if self.scale is not None else self._own_scale
        if self.kind != "activation" and scale is not None:
            said += f" · {'loss ' if wide else ''}scale {power_of_two(scale)}"
            said += " in the figures and bars" if wide and self.scale is not None else ""
        said = say(said)
        name = shorten(say(job.name), max(10, self.size.width - 2 - cell_len(said)))
        return [(name, "strong"), (said, "text")]

    @property
    def _own_scale(self) -> float | None:
        tensor = self.selected or (self._tensors[0] if self._tensors else None)
        return tensor.row.scale if tensor is not None else None

    def _strip_title(self, span: tuple[float, float] | None) -> str:
        if span is None:
            return ""
        steps = f"steps {count(max(0, round(span[0])))} to {count(round(span[1]))}"
        fmt = self._tensors[0].record.format
        return f"{steps}, as recorded: {fmt}" if fmt and fmt != self.format else steps

    def _show_selected(self) -> None:
        self._exponents.show(self.selected, self.format, self.scale, self.monitor.look)

    @on(LineTable.Selected)
    def _selected(self) -> None:
        self._show_selected()

    def action_scale(self, by: int) -> None:
        """Another power of two than the job's own; the figures and the bars follow."""
        own = self._own_scale
        if own is None or self.kind == "activation":
            return
        now = math.log2(self.scale if self.scale is not None else own)
        self.scale = 2.0 ** min(max(round(now) + by, LOWEST), HIGHEST)
        self.show()

    def action_own_scale(self) -> None:
        self.scale = None
        self.show()

    def action_kind(self) -> None:
        there = numerics.kinds(self.job) if self.job is not None else []
        if self.kind in there:
            self.kind = there[(there.index(self.kind) + 1) % len(there)]
            self.show()

    def action_format(self) -> None:
        self.format = FORMATS[(FORMATS.index(self.format) + 1) % len(FORMATS)]
        self.show()

    def action_what(self) -> None:
        self.shown = "headroom" if self.shown == "lost" else "lost"
        self.show()

    def action_worst(self) -> None:
        self.worst = not self.worst
        self.show()

    def action_export(self) -> None:
        job = self.job
        if job is not None and self._tensors:
            table = export.layers_csv(self._tensors, self.format, self.scale)
            self.monitor.export(f"{job.name}-numerics", table)

    def action_back(self) -> None:
        self.monitor.back_to_jobs(self.key)
