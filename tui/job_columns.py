"""The columns of the jobs table: what each says of a job, and how jobs are put in order by it."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from keras_mp.telemetry.format import (
    UNKNOWN,
    count,
    duration,
    goal,
    number,
    power_of_two,
    share,
    size,
)
from tui.drawing.roles import Piece, Role
from tui.room import scarce
from tui.snapshot import JobView
from tui.widgets.columns import Column

_MARKS: dict[str, Piece] = {"ok": ("  ", "text"), "warning": (" ·", "warn"), "error": (" !", "bad")}
# Waiting for this share of the time, a job gains from a faster pipeline before all else.
INPUT_BOUND = 0.25
ENDED = ("done", "stopped", "failed", "dead")
_STATE_ROLE: dict[str, Role] = {
    "starting": "muted",
    "slow": "warn",
    "stalled": "bad",
    "dead": "bad",
    "failed": "bad",
    "unreadable": "warn",
}
# As Lightning and the aliases of ``keras_mp.set_policy`` abbreviate them.
_SHORT_POLICY = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "mixed_float16": "16-mix",
    "mixed_bfloat16": "bf16-mix",
}


@dataclass(frozen=True)
class JobColumn:
    """A column and how to fill it.

    Attributes:
        cell: (job, short form?) -> (text, role).
        order: What to sort by, largest first where ``descending``; None sorts last.
    """

    column: Column
    cell: Callable[[JobView, bool], Piece]
    order: Callable[[JobView], Any]
    descending: bool = False


def _state(job: JobView, short: bool) -> Piece:
    state = job.verdict.state
    if job.away and state not in ENDED:
        return f"{state}?", "muted"
    return state, _STATE_ROLE.get(state, _tone(job))


def _policy(job: JobView, short: bool) -> Piece:
    policy = job.policy or UNKNOWN
    return (_SHORT_POLICY.get(policy, policy) if short else policy), _tone(job)


def _step(job: JobView, short: bool) -> Piece:
    text = count(job.step)
    if job.planned_steps:
        text += f"/{goal(job.planned_steps)}"
    return text, _tone(job)


def _epoch(job: JobView, short: bool) -> Piece:
    return epoch_text(job) or UNKNOWN, _tone(job)


def _loss(job: JobView, short: bool) -> Piece:
    if job.loss is None:
        return UNKNOWN, "muted"
    role: Role = _tone(job) if math.isfinite(job.loss) else "bad"
    text = number(job.loss, 3 if short else 4)
    return (f"{job.loss:.1e}" if short and len(text) > 7 else text), role


def _scale(job: JobView, short: bool) -> Piece:
    if job.scale is None:
        return UNKNOWN, "muted"
    bad = job.verdict.scale_state in ("collapsing", "exhausted")
    return power_of_two(job.scale), "bad" if bad else _tone(job)


def _skip(job: JobView, short: bool) -> Piece:
    if job.skipped_share is None:
        return UNKNOWN, "muted"
    text = share(job.skipped_share)
    state, role = job.verdict.scale_state, _tone(job)
    if state in ("collapsing", "exhausted"):
        role = "bad"
    elif state == "thrashing" or (state == "static" and job.verdict.severity != "ok"):
        role = "warn"
    return (text.replace(" ", "") if short else text), role


def _lately(job: JobView, short: bool) -> Piece:
    """Of the last 100 steps."""
    part = job.skipped_lately
    return (share(part), _skip(job, short)[1]) if part is not None else (UNKNOWN, "muted")


def _useful(job: JobView, short: bool) -> Piece:
    """Steps a second without the skipped ones."""
    over = job.verdict.state in (*ENDED, "stalled") and job.verdict.state != "done"
    rate = job.useful_steps_per_second
    return (UNKNOWN, "muted") if over or rate is None else (count(rate), _tone(job))


def _waits(job: JobView, short: bool) -> Piece:
    """Share of the time spent waiting for batches."""
    part = job.input_share
    if part is None:
        return UNKNOWN, "muted"
    return share(part), "warn" if part >= INPUT_BOUND else _tone(job)


def room_cell(job: JobView, short: bool = False) -> Piece:
    """Memory that the job may still take on its device."""
    left, total = job.room
    if left is None:
        return UNKNOWN, "muted"
    return size(left), "bad" if scarce(left, total) else _tone(job)


def _rate(job: JobView, short: bool) -> Piece:
    # The pace of a job that has ended or hangs is history, not a rate.
    if job.verdict.state in (*ENDED, "stalled") and job.verdict.state != "done":
        return UNKNOWN, "muted"
    return count(job.samples_per_second), _tone(job)


def _memory(job: JobView, short: bool) -> Piece:
    text = size(job.memory_bytes)
    return (text.replace(" ", "").removesuffix("B") if short else text), _tone(job)


def _eta(job: JobView, short: bool) -> Piece:
    if job.verdict.state not in ("running", "slow"):
        return UNKNOWN, "muted"
    text = duration(job.eta_seconds)
    return (text.replace(" min ", "m").replace(" ", "") if short else text), _tone(job)


def _took(job: JobView, short: bool) -> Piece:
    return duration(elapsed(job)), _tone(job)


def _result(job: JobView, short: bool) -> Piece:
    """The first of the user's own measures."""
    for name, value in job.results.items():
        return f"{name} {number(value, 3)}", "text"
    return "", "muted"


def _step_time(job: JobView, short: bool) -> Piece:
    last = job.points["step_time_p50"]
    return (duration(float(last[-1])) if len(last) else UNKNOWN), _tone(job)


def _norm(job: JobView, short: bool) -> Piece:
    last = job.points["grad_norm"]
    value = float(last[-1]) if len(last) else math.nan
    return (UNKNOWN if math.isnan(value) else number(value, 3)), _tone(job)


def _started(job: JobView, short: bool) -> Piece:
    began = job.meta.started if job.meta else job.started
    if began is None:
        return UNKNOWN, "muted"
    return time.strftime("%d.%m. %H:%M", time.localtime(began)), _tone(job)


def _mark(job: JobView, short: bool) -> Piece:
    """The sign of trouble; the table puts the cursor's before it."""
    return _MARKS[job.verdict.severity]


def _name(job: JobView, short: bool) -> Piece:
    return job.name, "strong" if job.verdict.needs_you else "text"


def _tone(job: JobView) -> Role:
    """What is over is quieter than what goes on."""
    return "muted" if job.verdict.state in ("done", "stopped") else "text"


def epoch_text(job: JobView) -> str:
    if job.epoch is None:
        return ""
    planned = job.meta.planned_epochs if job.meta else None
    return f"{job.epoch + 1}/{planned}" if planned else f"{job.epoch + 1}"


def elapsed(job: JobView) -> float | None:
    began = job.meta.started if job.meta else job.started
    return None if began is None or job.last_time is None else max(0.0, job.last_time - began)


def trouble_first(job: JobView) -> tuple[int, float, str]:
    """The order that the table opens with: who needs a person, who runs, who is over."""
    began = job.meta.started if job.meta else (job.started or 0.0)
    severity = job.verdict.severity
    if severity == "error":
        rank = 0
    elif job.verdict.state in ENDED:
        rank = 3
    else:
        rank = 1 if severity == "warning" else 2
    return rank, -began, job.name


def _last(column: str) -> Callable[[JobView], float | None]:
    return lambda job: float(job.points[column][-1]) if len(job.points) else None


# Rank 10 and above: shown where there is room to spare.
COLUMNS: tuple[JobColumn, ...] = (
    JobColumn(Column("mark", "", 2, tight=True), _mark, lambda j: None),
    JobColumn(Column("name", "job", 14, short=10, stretch=26), _name, lambda j: j.name.lower()),
    JobColumn(Column("state", "state", 8), _state, lambda j: j.verdict.state),
    JobColumn(Column("policy", "policy", 14, short=8, rank=2), _policy, lambda j: j.policy or ""),
    JobColumn(
        Column("epoch", "epoch", 7, right=True, rank=12),
        _epoch,
        lambda j: j.epoch,
        descending=True,
    ),
    JobColumn(
        Column("step", "step", 11, short=9, right=True), _step, lambda j: j.step, descending=True
    ),
    JobColumn(Column("loss", "loss", 8, short=7, right=True), _loss, lambda j: j.loss),
    JobColumn(Column("scale", "scale", 5, right=True), _scale, lambda j: j.scale, descending=True),
    JobColumn(
        Column("skip", "skip", 6, short=5, right=True),
        _skip,
        lambda j: j.skipped_share,
        descending=True,
    ),
    JobColumn(
        Column("lately", "last 100", 8, right=True, rank=10),
        _lately,
        lambda j: j.skipped_lately,
        descending=True,
    ),
    JobColumn(
        Column("rate", "samples/s", 9, short=5, right=True, rank=1, short_title="smp/s"),
        _rate,
        lambda j: j.samples_per_second,
        descending=True,
    ),
    JobColumn(
        Column("useful", "useful/s", 8, right=True, rank=11),
        _useful,
        lambda j: j.useful_steps_per_second,
        descending=True,
    ),
    JobColumn(
        Column("waits", "input", 6, right=True, rank=16),
        _waits,
        lambda j: j.input_share,
        descending=True,
    ),
    JobColumn(
        Column("step_time", "step time", 9, right=True, rank=15),
        _step_time,
        _last("step_time_p50"),
        descending=True,
    ),
    JobColumn(
        Column("norm", "grad norm", 9, right=True, rank=18),
        _norm,
        _last("grad_norm"),
        descending=True,
    ),
    JobColumn(
        Column("memory", "mem", 8, short=5, right=True, rank=3),
        _memory,
        lambda j: j.memory_bytes,
        descending=True,
    ),
    JobColumn(Column("room", "room left", 9, right=True, rank=13), room_cell, lambda j: j.room[0]),
    JobColumn(Column("eta", "ETA", 9, short=5, right=True, rank=1), _eta, lambda j: j.eta_seconds),
    JobColumn(Column("took", "elapsed", 9, right=True, rank=17), _took, elapsed, descending=True),
    JobColumn(
        Column("started", "started", 12, right=True, rank=19),
        _started,
        lambda j: j.started,
        descending=True,
    ),
    JobColumn(Column("result", "result", 12, rank=14, stretch=20), _result, lambda j: None),
)
BY_KEY = {c.column.key: c for c in COLUMNS}
