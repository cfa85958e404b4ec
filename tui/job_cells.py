"""What each column of the jobs table says of a job: ``(job, short form?) -> (text, role)``."""

import math
import time

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


def state(job: JobView, short: bool) -> Piece:
    state = job.verdict.state
    if job.away and state not in ENDED:
        return f"{state}?", "muted"
    if short and state == "unreadable":
        return "no data", _STATE_ROLE[state]
    return state, _STATE_ROLE.get(state, _tone(job))


def policy(job: JobView, short: bool) -> Piece:
    policy = job.policy or UNKNOWN
    return (_SHORT_POLICY.get(policy, policy) if short else policy), _tone(job)


def step(job: JobView, short: bool) -> Piece:
    planned = job.planned_steps
    text = f"{count(job.step)}/{goal(planned)}" if planned else count(job.step)
    if short and planned and len(text) > 9:
        text = "/".join(goal(float(f"{steps:.2g}")) for steps in (job.step, planned))
    return text, _tone(job)


def epoch(job: JobView, short: bool) -> Piece:
    return epoch_text(job) or UNKNOWN, _tone(job)


def loss(job: JobView, short: bool) -> Piece:
    if job.loss is None:
        return UNKNOWN, "muted"
    role: Role = _tone(job) if math.isfinite(job.loss) else "bad"
    text, width = number(job.loss, 3 if short else 4), 7 if short else 8
    for digits in (1, 0):  # a number whose exponent is cut is another number
        if len(text) > width:
            text = f"{job.loss:.{digits}e}"
    return text, role


def scale(job: JobView, short: bool) -> Piece:
    if job.scale is None:
        return UNKNOWN, "muted"
    bad = job.verdict.scale_state in ("collapsing", "exhausted")
    return power_of_two(job.scale), "bad" if bad else _tone(job)


def skip(job: JobView, short: bool) -> Piece:
    if job.skipped_share is None:
        return UNKNOWN, "muted"
    text = share(job.skipped_share)
    state, role = job.verdict.scale_state, _tone(job)
    if state in ("collapsing", "exhausted"):
        role = "bad"
    elif state == "thrashing" or (state == "static" and job.verdict.severity != "ok"):
        role = "warn"
    return (text.replace(" ", "") if short else text), role


def lately(job: JobView, short: bool) -> Piece:
    """Of the last 100 steps."""
    part = job.skipped_lately
    return (share(part), skip(job, short)[1]) if part is not None else (UNKNOWN, "muted")


def useful(job: JobView, short: bool) -> Piece:
    """Steps a second without the skipped ones."""
    over = job.verdict.state in (*ENDED, "stalled") and job.verdict.state != "done"
    rate = job.useful_steps_per_second
    return (UNKNOWN, "muted") if over or rate is None else (count(rate), _tone(job))


def waits(job: JobView, short: bool) -> Piece:
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


def rate(job: JobView, short: bool) -> Piece:
    # The pace of a job that has ended or hangs is history, not a rate.
    if job.verdict.state in (*ENDED, "stalled") and job.verdict.state != "done":
        return UNKNOWN, "muted"
    return count(job.samples_per_second), _tone(job)


def memory(job: JobView, short: bool) -> Piece:
    text = size(job.memory_bytes)
    return (text.replace(" ", "").removesuffix("B") if short else text), _tone(job)


def eta(job: JobView, short: bool) -> Piece:
    if job.verdict.state not in ("running", "slow"):
        return UNKNOWN, "muted"
    text = duration(job.eta_seconds)
    return (text.replace(" min ", "m").replace(" ", "") if short else text), _tone(job)


def took(job: JobView, short: bool) -> Piece:
    return duration(elapsed(job)), _tone(job)


def result(job: JobView, short: bool) -> Piece:
    """The first of the user's own measures."""
    for name, value in job.results.items():
        return f"{name} {number(value, 3)}", "text"
    return "", "muted"


def step_time(job: JobView, short: bool) -> Piece:
    last = job.points["step_time_p50"]
    return (duration(float(last[-1])) if len(last) else UNKNOWN), _tone(job)


def norm(job: JobView, short: bool) -> Piece:
    last = job.points["grad_norm"]
    value = float(last[-1]) if len(last) else math.nan
    return (UNKNOWN if math.isnan(value) else number(value, 3)), _tone(job)


def started(job: JobView, short: bool) -> Piece:
    began = job.meta.started if job.meta else job.started
    if began is None:
        return UNKNOWN, "muted"
    return time.strftime("%d.%m. %H:%M", time.localtime(began)), _tone(job)


def mark(job: JobView, short: bool) -> Piece:
    """The sign of trouble; the table puts the cursor's before it."""
    return _MARKS[job.verdict.severity]


def name(job: JobView, short: bool) -> Piece:
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
