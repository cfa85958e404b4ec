"""All jobs in a table, and the selected one in charts, events and words."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.geometry import Size
from textual.widgets import Input

from tui import export, missing
from tui.arrangement import Arrangement
from tui.division import divide
from tui.drawing.roles import Piece
from tui.drawing.text import wrap
from tui.job_columns import BY_KEY, COLUMNS
from tui.keys import EVERYWHERE, JOBS, bindings, hints
from tui.screens.base import ShownScreen
from tui.snapshot import JobView
from tui.widgets.columns import Layout
from tui.widgets.job_details import JobDetails
from tui.widgets.key_bar import KeyBar
from tui.widgets.line_table import LineTable, TableHeader
from tui.widgets.notice import Notice

# Rows are put in order at most this often: a table that jumps cannot be read.
ORDER_SECONDS = 1.0


class JobsScreen(ShownScreen):
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(JOBS)]
    KEYS = JOBS

    def __init__(self, places: Sequence[str], place: str):
        super().__init__(place)
        self.arrangement = Arrangement()
        self.details = True
        self._filter = Input(
            placeholder="filter: words, or column:pattern", id="filter", select_on_focus=False
        )
        self._places = places
        self._jobs: dict[str, JobView] = {}
        self._marked: set[str] = set()
        self._order: list[str] = []
        self._ordered_at = float("-inf")
        self._divided = Size(0, 0)
        self._opening = True
        self._began_at: str | None = None
        self._table = LineTable([c.column for c in COLUMNS], id="jobs")
        self._header = TableHeader(self._table, id="titles")
        self._notice = Notice()
        self._details = JobDetails(id="details")
        self._keys = KeyBar(hints((*JOBS, *EVERYWHERE)), id="keys")

    def compose(self) -> ComposeResult:
        yield self._status
        yield self._header
        yield self._notice
        yield self._table
        yield self._details
        yield self._filter
        yield self._keys

    @property
    def selected(self) -> JobView | None:
        return self._jobs.get(self._table.selected) if self._table.selected is not None else None

    @property
    def job(self) -> JobView | None:
        return self.selected

    @property
    def in_view(self) -> frozenset[str] | None:
        top = round(self._table.scroll_y)
        shown = self._order[top : top + self._table.size.height]
        selected = self._table.selected
        return frozenset([*shown, selected] if selected is not None else shown)

    def on_mount(self) -> None:
        settings = self.monitor.settings
        self.details = settings.details
        self.arrangement = Arrangement(
            sort=settings.sort if settings.sort in BY_KEY else None,
            reverse=settings.reverse,
            hide_ended=settings.hide_ended,
            grouped=settings.grouped,
            pinned=frozenset(settings.pinned),
        )
        self._filter.display = False
        self._table.focus()
        self.show()

    def on_resize(self) -> None:
        if self.size != self._divided:  # it is told several times as it opens
            self._divide()
            self.show()

    def tick(self) -> None:
        hidden = len(self._jobs) - len(self._order)
        self._status.extra = f"{hidden} hidden" if hidden else ""
        super().tick()

    def show(self) -> None:
        snapshot = self.monitor.snapshot
        if snapshot is None:
            self.tick()
            return
        before_keys = self._jobs.keys()
        before = (len(self._order), self._notice.sentences)
        self._jobs = {job.key: job for job in snapshot.jobs}
        now = self.monitor.clock.now()
        new = self._jobs.keys() - before_keys
        if now - self._ordered_at >= ORDER_SECONDS or not self._order or new:
            self._put_in_order()
        else:
            self._order = [key for key in self._order if key in self._jobs]
        said = missing.sentences(snapshot, len(self._order), self._places, self.arrangement.filter)
        room = max(20, self.size.width - 2)
        say = self.monitor.look.say
        self._notice.sentences = [line for words in said for line in wrap(say(words), room)]
        if (len(self._order), self._notice.sentences) != before:
            self._divide()
        self._notice.redraw()
        self._table.show(self._order, self._cells)
        if self._opening:
            self._begin_at_the_top(snapshot.behind)
        self.tick()
        self._show_selected()

    def _begin_at_the_top(self, behind: bool) -> None:
        """While the first jobs come in, the first row is selected, unless the cursor was moved."""
        if self._began_at is None or self._table.selected in (None, self._began_at):
            self._table.select(0)
            self._began_at = self._table.selected
            self._opening = behind
        else:
            self._opening = False

    def _put_in_order(self) -> None:
        self._order = [job.key for job in self.arrangement.apply(self._jobs.values())]
        self._ordered_at = self.monitor.clock.now()

    def _cells(self, index: int, plan: Layout) -> list[Piece]:
        job, look = self._jobs[self._order[index]], self.monitor.look
        cells: list[Piece] = []
        for place in plan.places:
            text, role = BY_KEY[place.column.key].cell(job, place.short)
            if place.column.key == "mark":
                text = self._mark(job, text)
            cells.append((look.say(text), role))
        return cells

    def _mark(self, job: JobView, mark: str) -> str:
        """The cursor before the sign of trouble; where there is none, whether it is pinned."""
        if job.key in self._marked:
            return ("▸" if job.key == self._table.selected else " ") + "●"
        sign = "↑" if mark[1] == " " and job.key in self.arrangement.pinned else mark[1]
        return ("▸" if job.key == self._table.selected else " ") + sign

    def _show_selected(self) -> None:
        monitor = self.monitor
        self._details.show(self.selected, monitor.look, monitor.theme, monitor.live)

    def _divide(self) -> None:
        self._divided = self.size
        said = len(self._notice.sentences)
        lines = said + 2 if said else 0  # and a space above and below
        height = self.size.height - (1 if self._filter.display else 0)
        parts = divide(height, max(1, len(self._order)) + lines, self.details)
        self._notice.styles.height = lines
        self._notice.display = lines > 0
        self._table.styles.height = max(1, parts.table - lines)
        self._details.display = self.details
        self._details.divide(height, parts)

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
        self._order = []
        self.show()
        self.monitor.remember(
            sort=key,
            reverse=arrangement.reverse,
            hide_ended=arrangement.hide_ended,
            grouped=arrangement.grouped,
            pinned=sorted(arrangement.pinned),
        )

    def action_sort(self, by: int) -> None:
        shown = [place.column.key for place in self._table.plan.places]
        self._arrange(self.arrangement.next(by, shown))

    def action_reverse(self) -> None:
        self._arrange(replace(self.arrangement, reverse=not self.arrangement.reverse))

    def action_trouble(self) -> None:
        self._arrange(replace(self.arrangement, sort=None, reverse=False))

    def action_details(self) -> None:
        self.details = not self.details
        self.monitor.remember(details=self.details)
        self._divide()
        self.show()

    def action_pin(self) -> None:
        if self.selected is not None:
            self._arrange(self.arrangement.pin(self.selected.key))

    def action_hide(self) -> None:
        self._arrange(replace(self.arrangement, hide_ended=not self.arrangement.hide_ended))

    @on(LineTable.Opened)
    def _open(self, message: LineTable.Opened) -> None:
        self.monitor.open_job(message.key, list(self._order))

    def action_mark(self) -> None:
        if self.selected is not None:
            self._marked ^= {self.selected.key}
            self._table.redraw()
            self._table.action_move(1)

    def action_compare(self) -> None:
        from tui.pair import MAX_COMPARED, twin

        keys = [key for key in self._order if key in self._marked]
        job = self.selected
        if len(keys) < 2 and job is not None:
            other = twin(job, self._jobs.values())
            keys = [job.key, other.key] if other is not None else []
        if len(keys) < 2:
            said = "Mark two jobs or more with space; this one has no float32 twin to stand beside."
            self.notify(said, markup=False)
        else:
            self.monitor.compare(keys[:MAX_COMPARED])

    def action_numerics(self) -> None:
        if self.selected is not None:
            self.monitor.numerics(self.selected.key)

    def action_replay(self) -> None:
        if self.selected is not None:
            self.monitor.replay(self.selected)

    def action_what_if(self) -> None:
        if self.selected is not None:
            self.monitor.what_if(self.selected)

    def select(self, key: str) -> None:
        """Put the cursor on a job."""
        if key in self._order:
            self._table.select(self._order.index(key))

    def action_export(self) -> None:
        jobs = [self._jobs[key] for key in self._order]
        self.monitor.export("keras-mp-jobs", export.jobs_csv(jobs))

    def action_group(self) -> None:
        self._arrange(replace(self.arrangement, grouped=not self.arrangement.grouped))

    def action_acknowledge(self) -> None:
        job = self.selected
        if job is not None and job.nan_step is not None:
            self.monitor.acknowledge({job.key: job.nan_step})

    def action_filter(self) -> None:
        self._filter.display = True
        self._divide()
        self._filter.focus()

    @on(Input.Changed)
    def _filtered(self, message: Input.Changed) -> None:
        self._arrange(replace(self.arrangement, filter=message.value))

    @on(Input.Submitted)
    def _keep_filter(self) -> None:
        self._filter.display = bool(self.arrangement.filter)
        self._divide()
        self._table.focus()

    def key_escape(self) -> None:
        """Leave the filter."""
        self._filter.value = ""
        self._filter.display = False
        self._divide()
        self._table.focus()
