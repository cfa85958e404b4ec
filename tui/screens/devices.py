"""GPUs and memory: what is used, by which job, and how much room each has left."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from keras_mp.telemetry.format import duration, share
from tui import device_columns
from tui.devices import NO_DEVICES, Devices
from tui.drawing.chart import LINES, Chart, Series
from tui.drawing.roles import Piece
from tui.keys import DEVICES, EVERYWHERE, bindings, hints
from tui.look import Look
from tui.screens.base import ShownScreen
from tui.snapshot import JobView
from tui.table import Table
from tui.widgets.chart_view import ChartView
from tui.widgets.columns import Layout
from tui.widgets.device_cards import DeviceCards
from tui.widgets.key_bar import KeyBar
from tui.widgets.line_table import LineTable, TableHeader
from tui.widgets.notice import Notice

MIN_CHART_HEIGHT, NOTICE_HEIGHT = 7, 3


class DevicesScreen(ShownScreen):
    KEYS = DEVICES
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(DEVICES)]

    def __init__(self, place: str):
        super().__init__(place)
        self._jobs: list[JobView] = []
        self._cards = DeviceCards(id="cards")
        self._table = LineTable([c.column for c in device_columns.COLUMNS], id="held")
        self._header = TableHeader(self._table, id="titles")
        self._notice = Notice()
        self._charts = [ChartView(id=f"chart{n}", classes="chart") for n in range(2)]
        elsewhere = [key for key in EVERYWHERE if key.action != "app.devices"]
        self._footer = KeyBar(hints((*DEVICES, *elsewhere)), id="keys")

    def compose(self) -> ComposeResult:
        yield self._status
        yield self._cards
        yield self._header
        yield self._notice
        yield self._table
        yield Horizontal(*self._charts, id="charts")
        yield self._footer

    @property
    def in_view(self) -> frozenset[str] | None:
        return frozenset(job.key for job in self._jobs)

    @property
    def devices(self) -> Devices:
        snapshot = self.monitor.snapshot
        return snapshot.devices if snapshot is not None else NO_DEVICES

    def on_mount(self) -> None:
        self._table.focus()
        self.show()

    def on_resize(self) -> None:
        self.show()

    def show(self) -> None:
        self.tick()
        snapshot, look = self.monitor.snapshot, self.monitor.look
        jobs = list(snapshot.jobs) if snapshot is not None else []
        self._jobs = device_columns.shown(jobs)
        self._cards.show(self.devices, jobs, look)
        self._lay_out()
        self._notice.sentences = [] if self._jobs else ["No job is running."]
        self._notice.display = not self._jobs
        self._notice.styles.height = NOTICE_HEIGHT
        self._table.show([job.key for job in self._jobs], self._cells)
        for view, column, title in zip(
            self._charts, ("used", "utilisation"), ("memory used", "busy"), strict=True
        ):
            view.show(history(self.devices, column, title, look), look.charset)

    def _lay_out(self) -> None:
        height = self.size.height
        cards = min(self._cards.needed(self.size.width - 2), max(3, height - 12))
        self._cards.styles.height = cards
        rest = height - 3 - cards - 3  # and the spaces between them
        self._header.display = bool(self._jobs)
        rows = max(2, min(len(self._jobs), rest - MIN_CHART_HEIGHT, rest // 2))
        self._table.display = bool(self._jobs)
        self._table.styles.height = rows
        taken = rows if self._jobs else NOTICE_HEIGHT - 1  # and no titles
        self.query_one("#charts").styles.height = max(0, rest - taken)

    def _cells(self, index: int, plan: Layout) -> list[Piece]:
        job, look = self._jobs[index], self.monitor.look
        cells = []
        for place in plan.places:
            text, role = device_columns.BY_KEY[place.column.key].cell(job, self.devices)
            cells.append((look.say(text), role))
        return cells

    @on(LineTable.Opened)
    def _open(self, message: LineTable.Opened) -> None:
        self.monitor.open_job(message.key, [job.key for job in self._jobs])

    def action_back(self) -> None:
        self.monitor.back_to_jobs(self._table.selected)


def history(devices: Devices, column: str, title: str, look: Look) -> Chart:
    """The last minutes of each device, a line each; of the machine where there is no GPU."""
    many = len(devices.all) > 1
    gpus = [(host, gpu) for host in devices.all for gpu in host.gpus][: len(LINES)]
    tables: Sequence[Table] = [gpu.history for _, gpu in gpus]
    names = [f"{h.host} GPU{g.index}" if many else f"GPU{g.index}" for h, g in gpus]
    if not tables:
        tables = [host.machine.history for host in devices.all[: len(LINES)]]
        names = [host.host if many else "this machine" for host in devices.all]
    series = []
    for table in tables:
        known = ~np.isnan(table[column])
        series.append(Series(table["time"][known], table[column][known]))
    ends = [float(s.x[-1]) for s in series if len(s.x)]
    last = max(ends, default=0.0)
    last_values = [(n, float(s.y[-1])) for n, s in zip(names, series, strict=False) if len(s.y)]
    now = " · ".join(f"{name} {share(value)}" for name, value in last_values)

    def ago(time: float) -> str:
        return "now" if time >= last else f"{duration(last - time)} ago"

    return Chart(
        title=title,
        note=look.say(now),
        series=series,
        kind="linear",
        limits=(0.0, 1.0),
        label=look.label(share),
        x_label=ago,
        empty="not measured",
    )
