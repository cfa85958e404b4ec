"""The selected job beneath the table: what is to be said of it, its charts and its events."""

import time
from typing import Any

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from tui import charts
from tui.division import AIRY, TWO_ROWS, Division
from tui.look import Look
from tui.snapshot import JobView
from tui.widgets.chart_view import ChartView
from tui.widgets.event_list import EventList
from tui.widgets.facts import Facts
from tui.widgets.verdict_line import VerdictLine
from tui.window import Window

# From this width on how the job is configured stands beside its events.
WIDE = 160
# Charts follow their job this often: in a quarter of a second a line moves by less than a dot.
CHART_SECONDS = 0.45


class JobDetails(Vertical):
    def __init__(self, *, id: str | None = None):
        super().__init__(id=id)
        self._verdict = VerdictLine(id="verdict")
        every = [ChartView(id=f"chart{n}", classes="chart") for n in range(len(charts.BASIC))]
        self._charts = every
        self._above = Horizontal(*every[:3], id="charts")
        self._below = Horizontal(*every[3:], id="more-charts")
        self._events, self._facts = EventList(id="events"), Facts(id="facts")
        self._told = Horizontal(self._events, self._facts, id="told")
        self._drawn: tuple[Any, ...] = (None,)
        self._charted = 0.0

    def compose(self) -> ComposeResult:
        yield self._verdict
        yield self._above
        yield self._below
        yield self._told

    def divide(self, height: int, parts: Division) -> None:
        """Share out the rows on a screen of ``height``."""
        space = 1 if height >= AIRY else 0
        # Not by a class: that would match the style sheet against the whole screen anew.
        for part in (self._above, self._below, self._told):
            part.styles.margin = (space, 0, 0, 0)
        two = parts.charts >= TWO_ROWS
        self._below.display = two
        self._above.styles.height = parts.charts // 2 if two else parts.charts
        self._below.styles.height = parts.charts - parts.charts // 2 - space
        self._told.styles.height = parts.events
        self._facts.display = self.screen.size.width >= WIDE

    def show(self, job: JobView | None, look: Look, theme: str, live: bool) -> None:
        """Draw the job; where ``live``, its charts not more often than the eye sees."""
        if not self.display:
            return
        shown = [w for w in self._charts if w.parent is self._above or self._below.display]
        drawn = (job, look, self.screen.size, theme, len(shown))
        if job is not None and job is self._drawn[0] and drawn[1:] == self._drawn[1:]:
            return  # nothing that is said of it has changed
        self._verdict.show(job, look)
        self._events.show(job, look)
        if self._facts.display:
            self._facts.show(job, look)
        last, now = self._drawn[0], time.monotonic()
        same = job is not None and last is not None and job.key == last.key
        same = same and drawn[1:] == self._drawn[1:]
        if same and live and now - self._charted < CHART_SECONDS:
            return  # the next frame draws them
        self._drawn, self._charted = drawn, now
        for widget, chart in zip(self._charts, charts.BASIC, strict=True):
            if widget in shown:
                widget.show(chart(job, look, Window()) if job else None, look.charset)
