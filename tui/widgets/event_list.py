"""What happened to a job, the latest first: skipped steps, alerts, the first NaN, its end."""

import time
from collections.abc import Sequence

from rich.cells import cell_len

from keras_mp.telemetry.format import count, power_of_two, whole
from keras_mp.telemetry.records import Overflow
from tui.drawing.roles import Role, Row
from tui.drawing.text import fit, fit_end
from tui.look import Look
from tui.snapshot import JobView
from tui.widgets.job_lines import JobLines

_SEVERITY: dict[str, Role] = {"info": "muted", "warning": "warn", "error": "bad"}
SCALES_WIDTH = 13
HEAD, CLOCK = 8, 10
Event = tuple[float, int, Row]


class EventList(JobLines):
    def rows(self, width: int, height: int) -> Sequence[Row]:
        job = self._job
        if job is None:
            return []
        happened = events(job, self._look, height, width - HEAD - CLOCK)
        if not happened:
            quiet = "no step was skipped" if job.scaled else "nothing to report"
            return [[("events  ", "muted"), (quiet, "faint")]]
        rows: list[Row] = []
        left = len(job.overflows) + len(job.alerts) + (job.end is not None) - height
        for number, (when, _, what) in enumerate(happened):
            head = ("events" if number == 0 else "").ljust(HEAD)
            if left > 0 and number == height - 1 > 0:
                head = f"+{count(left)}".ljust(HEAD)
            clock = time.strftime("%H:%M:%S", time.localtime(when))
            rows.append([(head, "muted"), (f"{clock}  ", "muted"), *what])
        return rows


def events(job: JobView, look: Look, most: int, width: int) -> list[Event]:
    """The latest things that happened, at most so many, the latest first."""
    out: list[Event] = [(o.time, o.step, _overflow(o, look, width)) for o in job.overflows[-most:]]
    for alert in job.alerts[-most:]:
        text = look.say(alert.message)
        out.append((alert.time, alert.step, [(text, _SEVERITY.get(alert.severity, "text"))]))
    if job.end is not None:
        role: Role = "bad" if job.end.status == "failed" else "muted"
        why = f": {job.end.reason}" if job.end.reason else ""
        said = look.say(f"step {whole(job.end.step)}  {job.end.status}{why}")
        out.append((job.end.time, job.end.step, [(said, role)]))
    out.sort(key=lambda event: (event[0], event[1]), reverse=True)
    return out[:most]


def _overflow(event: Overflow, look: Look, width: int) -> Row:
    before, after = power_of_two(event.scale_before), power_of_two(event.scale_after)
    row: Row = [
        (f"step {whole(event.step):<8}", "text"),
        (fit(look.say(f"{before} → {after}"), SCALES_WIDTH), "tick"),
    ]
    where = look.say(event.layer or (event.variables[0] if event.variables else ""))
    if where:
        # The end of a path tells the layer; where it came from may be cut.
        room = width - sum(cell_len(text) for text, _ in row)
        row.append((fit_end(where, room), "text"))
    if event.origin != "unknown":
        row.append((f" ({event.origin})" if where else f"({event.origin})", "muted"))
    return row
