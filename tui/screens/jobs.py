"""All jobs in a table, and the selected one in charts, events and words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from tui import charts
from tui.arrangement import Arrangement
from tui.drawing.roles import Piece, Row
from tui.job_columns import BY_KEY, COLUMNS
from tui.keys import EVERYWHERE, JOBS, bindings, hints
from tui.reader import place_name
from tui.screens.base import ShownScreen
from tui.snapshot import JobView
from tui.widgets.chart_view import ChartView
from tui.widgets.event_list import EventList
from tui.widgets.key_bar import KeyBar
from tui.widgets.line_table import Layout, LineTable, TableHeader
from tui.widgets.lines import Lines
from tui.widgets.status_line import StatusLine
from tui.widgets.verdict_line import VerdictLine

# In the order in which room is given to them.
CHARTS = (charts.scale, charts.loss, charts.rate, charts.memory, charts.step_time, charts.grad_norm)
# Rows are put in order at most this often: a table that jumps cannot be read.
ORDER_SECONDS = 1.0
# From this height on there is a space above the charts and above the events.
AIRY = 32
# From this height on the charts stand in two rows.
TWO_ROWS = 20


@dataclass(frozen=True)
class Division:
    """How the height is shared out."""

    table: int
    charts: int
    events: int


def divide(height: int, jobs: int, details: bool) -> Division:
    """Rows for each part of a screen of ``height`` rows.

    The table gets what its jobs need up to under half, then the charts, then the events.
    """
    # The status line, the titles, a space, three lines of verdict, the keys.
    rest = height - 7 - (2 if height >= AIRY else 0)
    if not details:
        return Division(height - 3, 0, 0)
    table = max(3, min(jobs, int(rest * 0.45)))
    events = max(2, min((rest - table) // 3, 12))
    return Division(table, rest - table - events, events)


class Notice(Lines):
    """Said where the table would be, while there is nothing to put in it."""

    def __init__(self) -> None:
        super().__init__(id="notice")
        self.sentences: Sequence[str] = ()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        return [[(sentence, "text")] for sentence in self.sentences]


class JobsScreen(ShownScreen):
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(JOBS)]
    KEYS = JOBS

    def __init__(self, places: Sequence[str]):
        super().__init__()
        self.arrangement = Arrangement()
        self.details = True
        self._places = places
        self._jobs: dict[str, JobView] = {}
        self._order: list[str] = []
        self._ordered_at = float("-inf")
        self._table = LineTable([c.column for c in COLUMNS], id="jobs")
        self._header = TableHeader(self._table, id="titles")
        self._status = StatusLine("  ".join(map(place_name, places)), id="status")
        self._notice = Notice()
        self._verdict = VerdictLine(id="verdict")
        self._charts = [ChartView(id=f"chart{n}", classes="chart") for n in range(len(CHARTS))]
        self._events = EventList(id="events")
        self._keys = KeyBar(hints((*JOBS, *EVERYWHERE)), id="keys")

    def compose(self) -> ComposeResult:
        yield self._status
        yield self._header
        yield self._notice
        yield self._table
        yield self._verdict
        yield Horizontal(*self._charts[:3], id="charts")
        yield Horizontal(*self._charts[3:], id="more-charts")
        yield self._events
        yield self._keys

    @property
    def selected(self) -> JobView | None:
        return self._jobs.get(self._table.selected) if self._table.selected is not None else None

    def on_mount(self) -> None:
        self._table.focus()
        self.show()

    def on_resize(self) -> None:
        self._divide()
        self.show()

    def tick(self) -> None:
        self._status.show(self.monitor.snapshot, self.monitor.clock.now(), self.monitor.look)

    def show(self) -> None:
        snapshot = self.monitor.snapshot
        self.tick()
        if snapshot is None:
            return
        before = (len(self._jobs), self._notice.sentences)
        self._jobs = {job.key: job for job in snapshot.jobs}
        now = self.monitor.clock.now()
        if now - self._ordered_at >= ORDER_SECONDS or not self._order:
            self._put_in_order()
        else:
            kept = [key for key in self._order if key in self._jobs]
            self._order = kept + [key for key in self._jobs if key not in set(kept)]
        self._notice.sentences = self._what_is_missing()
        if (len(self._jobs), self._notice.sentences) != before:
            self._divide()
        self._notice.redraw()
        self._table.show(self._order, self._cells)
        self._show_selected()

    def _put_in_order(self) -> None:
        self._order = [job.key for job in self.arrangement.apply(self._jobs.values())]
        self._ordered_at = self.monitor.clock.now()

    def _what_is_missing(self) -> list[str]:
        snapshot, say = self.monitor.snapshot, self.monitor.look.say
        if snapshot is None:
            return []
        sentences = [say(error) for error in snapshot.errors]
        if not self._jobs and not sentences:
            places = ", ".join(self._places)
            sentences = [say(f"No runs in {places} yet."), ""]
            sentences += ["A job that trains with keras_mp.Monitor(...) appears here as it starts."]
        return sentences

    def _cells(self, index: int, plan: Layout) -> list[Piece]:
        job, look = self._jobs[self._order[index]], self.monitor.look
        cells: list[Piece] = []
        for place in plan.places:
            text, role = BY_KEY[place.column.key].cell(job, place.short)
            if place.column.key == "mark" and job.key == self._table.selected:
                text = f"▸{text[1:]}"
            cells.append((look.say(text), role))
        return cells

    def _show_selected(self) -> None:
        if not self.details:
            return
        job, look = self.selected, self.monitor.look
        self._verdict.show(job, look)
        self._events.show(job, look)
        for widget, chart in zip(self._charts, CHARTS, strict=True):
            if widget.display and widget.parent and widget.parent.display:
                widget.show(chart(job, look) if job else None, look.charset)

    def _divide(self) -> None:
        said = len(self._notice.sentences)
        missing = said + 2 if said else 0  # and a space above and below
        parts = divide(self.size.height, max(1, len(self._jobs)) + missing, self.details)
        self._notice.styles.height = missing
        self._notice.display = missing > 0
        self._table.styles.height = max(1, parts.table - missing)
        self.set_class(self.size.height >= AIRY, "airy")
        two = parts.charts >= TWO_ROWS
        for selector in ("#verdict", "#charts", "#events"):
            self.query_one(selector).display = self.details
        self.query_one("#more-charts").display = self.details and two
        self.query_one("#charts").styles.height = parts.charts // 2 if two else parts.charts
        space = 1 if self.has_class("airy") else 0
        self.query_one("#more-charts").styles.height = parts.charts - parts.charts // 2 - space
        self._events.styles.height = parts.events

    @on(LineTable.Selected)
    def _selected(self) -> None:
        # A table that puts itself in order while the cursor moves cannot be used.
        self._ordered_at = self.monitor.clock.now()
        self._show_selected()

    @on(TableHeader.Clicked)
    def _sort_by(self, message: TableHeader.Clicked) -> None:
        self._arrange(self.arrangement.sorted_by(message.key))

    def _arrange(self, arrangement: Arrangement) -> None:
        self.arrangement = arrangement
        key = arrangement.sort
        self._header.sorted_by = None if key is None else (key, arrangement.descending)
        self._header.redraw()
        self._put_in_order()
        self._table.show(self._order, self._cells)

    def action_sort(self, by: int) -> None:
        shown = [place.column.key for place in self._table.plan.places]
        self._arrange(self.arrangement.next(by, shown))

    def action_reverse(self) -> None:
        self._arrange(replace(self.arrangement, reverse=not self.arrangement.reverse))

    def action_trouble(self) -> None:
        self._arrange(replace(self.arrangement, sort=None, reverse=False))

    def action_details(self) -> None:
        self.details = not self.details
        self._divide()
        self.show()
