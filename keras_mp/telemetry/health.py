"""How a job is doing: state and verdict, in words, with what to do. The one definition.

    from keras_mp.telemetry.health import verdict

    v = verdict(job, time.time())
    print(v.state, v.sentence, v.advice, v.severity, v.exit_status)

Pure functions of a Job and the time; whether the process lives is asked through ``alive``, so that
tests and replays can answer for themselves.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from keras_mp.telemetry.format import duration, number, share, whole
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.process import is_alive
from keras_mp.telemetry.scale_health import ScaleState, ScaleVerdict, Severity, scale_verdict
from keras_mp.telemetry.thresholds import (
    DEAD_SECONDS,
    SLOW_BEFORE,
    SLOW_FACTOR,
    SLOW_RECENT,
    SLOW_SECONDS,
    STALL_GAPS,
    STALL_SECONDS,
    STALL_STEPS,
    START_SECONDS,
)

State = Literal[
    "starting", "running", "slow", "stalled", "dead", "done", "failed", "stopped", "unreadable"
]
Alive = Callable[[int, float | None, str | None], bool | None]

# Waiting for input this much of the time, a job gains little from a faster step.
INPUT_SHARE = 0.3

EXIT_NOTHING = 3
_EXIT: dict[Severity, int] = {"ok": 0, "warning": 1, "error": 2}
_ORDER: dict[Severity, int] = {"ok": 0, "warning": 1, "error": 2}


@dataclass(frozen=True)
class Verdict:
    """What is to be said about a job now.

    Attributes:
        state: Of the job. scale_state: of its loss scale.
        nan: "no"; "now" while the loss is not finite; "was" if it has been and nobody has
            acknowledged it.
        sentence: The most urgent thing, in one sentence without a full stop.
        advice: What to do about it; empty if there is nothing to do.
        severity: "ok", "warning" or "error", of the worst finding.
        findings: All sentences, the most urgent first.
    """

    state: State
    scale_state: ScaleState
    nan: Literal["no", "now", "was"]
    sentence: str
    advice: str
    severity: Severity
    findings: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        """0 well, 1 a warning, 2 unhealthy."""
        return _EXIT[self.severity]

    @property
    def needs_you(self) -> bool:
        return self.severity == "error"


@dataclass(frozen=True)
class Finding:
    """One thing to say about a job. code: A word for it that never changes."""

    severity: Severity
    sentence: str
    advice: str = ""
    code: str = ""


def verdict(
    job: Job, now: float, *, alive: Alive = is_alive, acknowledged: int | None = None
) -> Verdict:
    """Judge ``job`` at ``now`` (seconds since the epoch).

    Args:
        alive: ``(pid, process_started, host) -> True | False | None`` (not known).
        acknowledged: ``job.nan_step`` that the user has seen; a NaN of the past is then left out.
    """
    state, scale, nan, found = _judged(job, now, alive, acknowledged)
    # The worst first; their own order decides among equals, but a healthy scale tells more than
    # "running".
    found.sort(key=lambda f: -_ORDER[f.severity])
    if found[0].severity == "ok" and scale.state not in ("n/a",):
        found.sort(key=lambda f: f.sentence != scale.sentence)
    top = found[0]
    sentences = tuple(f.sentence for f in found)
    return Verdict(state, scale.state, nan, top.sentence, top.advice, top.severity, sentences)


def findings(
    job: Job, now: float, *, alive: Alive = is_alive, acknowledged: int | None = None
) -> list[Finding]:
    """All that is to be said about a job, as ``verdict`` puts together; well or not."""
    return _judged(job, now, alive, acknowledged)[3]


def _judged(
    job: Job, now: float, alive: Alive, acknowledged: int | None
) -> tuple[State, ScaleVerdict, Literal["no", "now", "was"], list[Finding]]:
    state, found = job_state(job, now, alive)
    out = [replace(found, code=state)]
    scale = scale_verdict(job)
    nan = _nan(job, acknowledged)
    out += _of_training(job, scale, nan)
    out += [Finding("warning", problem, code="problem") for problem in job.problems]
    return state, scale, nan, out


def own_findings(job: Job) -> list[Finding]:
    """What a job can tell of itself while it trains: all but whether its process still does."""
    slow = _slow(job) if job.step else None
    found = [] if slow is None else [replace(slow, code="slow")]
    return [*found, *_of_training(job, scale_verdict(job), _nan(job, None))]


def _of_training(job: Job, scale: ScaleVerdict, nan: str) -> list[Finding]:
    found = [] if nan == "no" else [replace(_nan_finding(job, nan), code="nan")]
    code = "unscaled" if scale.state == "n/a" else scale.state
    found.append(Finding(scale.severity, scale.sentence, scale.advice, code))
    if job.numerics:  # few jobs have any: the others need none of what reads them
        from keras_mp.telemetry.number_health import number_findings

        found += [Finding("warning", said, todo, code) for code, said, todo in number_findings(job)]
    waits = job.input_share
    if waits is not None and waits >= INPUT_SHARE:
        found.append(
            Finding(
                "ok",
                f"waits for its batches {share(waits)} of the time: no precision makes that faster",
                "Prefetch, read with more workers, or keep the decoded data.",
                "input",
            )
        )
    return found


def exit_status(verdicts: Iterable[Verdict]) -> int:
    """Of several jobs: the worst; 3 if there is none that could be read."""
    codes = [v.exit_status for v in verdicts if v.state != "unreadable"]
    return max(codes, default=EXIT_NOTHING)


def job_state(job: Job, now: float, alive: Alive = is_alive) -> tuple[State, Finding]:
    """State of the job's process and the finding that goes with it."""
    meta, end = job.meta, job.end
    if job.records == 0 and (job.problems or meta is None):
        why = "; ".join(job.problems) or "nothing is written yet"
        return "unreadable", Finding("warning", why)
    if end is not None:
        return _ended(job)
    silence = now - (job.last_time or (meta.started if meta else now))
    living = alive(meta.pid, meta.process_started, meta.host) if meta else None
    # Below zero the clock was set back, which nobody's process outlives by itself.
    if living is False and abs(silence) > DEAD_SECONDS:
        return "dead", Finding(
            "error",
            f"dead: process {meta.pid if meta else '?'} is gone since step {whole(job.step)} and "
            "did not say why",
            "Look for an out-of-memory kill (dmesg) or the job's own output; then resume from the "
            "last checkpoint under the same name.",
        )
    limit = stall_limit(job)
    if silence > limit:
        return "stalled", Finding(
            "error",
            f"stalled: silent for {duration(silence)}; its own pace allows {duration(limit)}",
            "Look at the input pipeline, a hanging collective or a full disk.",
        )
    if job.step == 0:
        return "starting", Finding("ok", "starting: no step yet (loading data, compiling)")
    slow = _slow(job)
    if slow is not None:
        return "slow", slow
    return "running", Finding("ok", f"running: step {whole(job.step)}")


def _slow(job: Job) -> Finding | None:
    factor = slowdown(job)
    if factor is None or factor < SLOW_FACTOR:
        return None
    return Finding(
        "warning",
        f"slow: steps take {number(factor, 2)} × as long as this run's own median",
        "Look for another job on the same device, a slow disk, or the input pipeline.",
    )


def stall_limit(job: Job) -> float:
    """Seconds of silence that this job's own pace explains."""
    if job.step == 0:
        return START_SECONDS
    limit = STALL_SECONDS
    p95 = job.series["step_time_p95"][-50:]
    known = sorted(x for x in p95.tolist() if math.isfinite(x))
    if known:
        limit = max(limit, STALL_STEPS * _quantile(known, 0.5))
    gaps = np.diff(job.series["time"][-50:])
    silences = sorted(x for x in gaps.tolist() if x > 0)
    if silences:
        limit = max(limit, STALL_GAPS * _quantile(silences, 0.95))
    return limit


def _quantile(ordered: list[float], share: float) -> float:
    """As ``np.quantile`` has it, which takes ten times as long for fifty numbers."""
    at = (len(ordered) - 1) * share
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def slowdown(job: Job) -> float | None:
    """Recent step time over the run's median; None while there is too little to tell."""
    pace, step = job.series["steps_per_second"], job.series["step"]
    known = np.isfinite(pace) & (pace > 0)
    pace, steps = pace[known], np.diff(step, prepend=0.0)[known]
    passed = np.cumsum((steps / pace)[::-1])
    recent = max(SLOW_RECENT, int(np.searchsorted(passed, SLOW_SECONDS)) + 1)
    if pace.size < recent + SLOW_BEFORE:
        return None
    return float(np.median(pace[:-recent]) / np.median(pace[-recent:]))


def _ended(job: Job) -> tuple[State, Finding]:
    end = job.end
    if end is None:
        raise ValueError("`job` has not ended. Received: job.end=None")
    where = f"at step {whole(max(job.step, end.step))}"
    why = f": {end.reason}" if end.reason else ""
    if end.status == "failed":
        return "failed", Finding("error", f"failed {where}{why}", "See the job's own output.")
    if end.status == "stopped":
        return "stopped", Finding("warning", f"stopped {where}{why}")
    return "done", Finding("ok", f"done {where}{why}")


def _nan(job: Job, acknowledged: int | None) -> Literal["no", "now", "was"]:
    if job.nan_step is not None and job.loss is not None and not math.isfinite(job.loss):
        return "now"
    return "was" if job.nan_step is not None and job.nan_step != acknowledged else "no"


def _nan_finding(job: Job, nan: str) -> Finding:
    since = whole(job.nan_step if job.nan_step is not None else job.step)
    if nan == "was":
        return Finding("warning", f"the loss was not finite at step {since}, and is again now")
    return Finding(
        "error",
        f"the loss is {number(job.loss)} since step {since}",
        "Stop it and go back to a checkpoint before that step; then lower the learning rate or "
        "look at the batch that did it.",
    )
