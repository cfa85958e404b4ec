"""How a job's loss scale is doing, in words: the one definition.

A dynamic scale is meant to overflow now and then: it grows every ``growth_interval`` clean steps
until a step overflows, and backs off. So a skipped step is no fault; what matters is how often.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

import numpy as np

from keras_mp.telemetry.format import power_of_two, share, whole
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.records import Overflow
from keras_mp.telemetry.thresholds import (
    CALIBRATION_FLOOR,
    CALIBRATION_STEPS,
    COLLAPSE_RUN,
    DEFAULT_INTERVAL,
    EXHAUSTED_RUN,
    STATIC_ERROR,
    STATIC_SKIPS,
    STATIC_WARNING,
    STATIC_WINDOW,
    THRASH_BACKOFFS,
)

ScaleState = Literal[
    "calibrating", "healthy", "thrashing", "collapsing", "exhausted", "static", "n/a"
]
Severity = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class ScaleVerdict:
    """State of the loss scale, the sentence that explains it, and what to do (or "")."""

    state: ScaleState
    sentence: str
    advice: str = ""
    severity: Severity = "ok"


def scale_verdict(job: Job) -> ScaleVerdict:
    """Judge the scale of ``job`` from its records alone."""
    settings = (job.meta.scaler if job.meta else None) or {}
    if job.scale is None and not settings:
        return _without_scale(job)
    if job.step == 0 or job.scale is None:
        return ScaleVerdict("calibrating", "no step yet")
    if settings.get("dynamic") is False:
        return _static(job)
    interval = _interval(settings)
    run = trailing_skips(job)
    if _exhausted(job, run, settings):
        return _exhausted_verdict(job)
    searching = job.step - fresh_since(job) <= CALIBRATION_STEPS
    if run >= COLLAPSE_RUN and not (searching and job.scale >= CALIBRATION_FLOOR):
        return ScaleVerdict(
            "collapsing",
            f"collapsing: the last {run} steps were all skipped, scale down to "
            f"{power_of_two(job.scale)}",
            advice(job),
            "error",
        )
    if searching and _skipped_since(job, fresh_since(job)):
        steps = job.step - fresh_since(job)
        return ScaleVerdict(
            "calibrating",
            f"calibrating: {_skips(_skipped_since(job, fresh_since(job)))} in the first "
            f"{_steps(steps)} while the first scale is being found, which is normal",
        )
    skips, backoffs = skips_since_calibration(job, interval), backoffs_within(job, interval)
    if backoffs >= THRASH_BACKOFFS:
        return ScaleVerdict(
            "thrashing",
            f"thrashing: {_skips(skips)} in the last {_steps(min(interval, job.step))}; the "
            f"scale ({power_of_two(job.scale)}) was halved again before it could grow",
            advice(job),
            "warning",
        )
    return ScaleVerdict("healthy", _healthy(job, skips, interval, settings.get("max_scale")))


def fresh_since(job: Job) -> int:
    """The step after which the scale was last a fresh one: 0, or where a process started anew."""
    settings = (job.meta.scaler if job.meta else None) or {}
    initial = settings.get("initial_scale")
    for start in reversed(job.starts):
        if not 0 < start < job.step:
            continue
        # The first scale that is told of it, a skipped step's own included. (One that was restored
        # may stand at the initial scale too; then nothing is overlooked but a hundred steps.)
        first = np.searchsorted(job.scales["step"], start, side="right")
        if first < len(job.scales) and job.scales["scale"][first] == initial:
            return start
    return 0


def backoffs_within(job: Job, steps: int) -> int:
    """How often the scale was cut among the last ``steps``, the first search left out.

    An overflow that the hysteresis bears cuts nothing. Where single steps are not told (a stock
    Keras optimizer) each skip is a cut.
    """
    if not job.overflows:
        return skips_since_calibration(job, steps)
    first = max(job.step - steps, fresh_since(job) + CALIBRATION_STEPS)
    return sum(
        o.scale_before is None or o.scale_after is None or o.scale_after < o.scale_before
        for o in _since(job, first)
    )


def _told(job: Job) -> Iterator[Overflow]:
    """Skipped steps, the latest first.

    A window's skipped steps are written before the window itself: until that has come, nobody knows
    what followed them, and they do not count yet.
    """
    return (o for o in reversed(job.overflows) if o.step <= job.step)


def _since(job: Job, step: int) -> Iterator[Overflow]:
    return takewhile(lambda o: o.step > step, _told(job))


def _skipped_since(job: Job, start: int) -> int:
    if start == 0:
        return job.skipped or 0
    return sum(1 for _ in _since(job, start))


def trailing_skips(job: Job) -> int:
    """Skipped steps in a row, up to the last one said."""
    expected = job.step
    run = 0
    for overflow in _told(job):
        if overflow.step != expected:
            break
        run += 1
        expected -= 1
    if run or job.overflows:
        return run
    # Without single steps (a stock Keras optimizer): whole windows in which nothing was applied.
    applied = job.series["applied"]
    steps = job.series["step"]
    if len(applied) < 2 or not math.isfinite(applied[-1]):
        return 0
    still = len(applied) - 1
    while still > 0 and applied[still - 1] == applied[-1]:
        still -= 1
    return int(steps[-1] - steps[still])


def skips_since_calibration(job: Job, steps: int) -> int:
    """Skips among the last ``steps``, those of the search for the first scale left out."""
    searched = fresh_since(job) + CALIBRATION_STEPS
    if job.overflows or job.skipped in (None, 0):
        first = max(job.step - steps, searched)
        return sum(1 for _ in _since(job, first))
    step, skipped = job.series["step"], job.series["skipped"]
    before = skipped[step <= max(job.step - steps, searched)]
    return int(skipped[-1] - (before[-1] if len(before) else 0))


def advice(job: Job) -> str:
    """What to do about too many skips, from where they came."""
    recent = list(job.overflows)[-100:]
    if not recent:
        return "Look at the gradients' size: a lower learning rate or gradient clipping helps."
    from_loss = sum(o.origin == "loss" for o in recent)
    if 2 * from_loss > len(recent):
        return (
            "The loss itself was not finite, so no scale can help: look at the data and the loss "
            "function in float16, or lower the learning rate."
        )
    layers = Counter(o.layer for o in recent if o.layer)
    if layers:
        layer, times = layers.most_common(1)[0]
        return (
            f"{times} of the last {len(recent)} overflows were in {layer}: keep that layer in "
            "float32, clip the gradients or lower the learning rate."
        )
    return "A lower learning rate or gradient clipping helps; so does mixed_bfloat16."


def _interval(settings: dict[str, object]) -> int:
    value = settings.get("growth_interval")
    if isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value < 2**53:
        return int(value)
    return DEFAULT_INTERVAL


def _without_scale(job: Job) -> ScaleVerdict:
    if job.policy in ("mixed_float16", "float16"):
        return ScaleVerdict(
            "n/a",
            "float16 without a loss scale: small gradients become zero and nothing says so",
            "Compile with keras_mp.LossScaleOptimizer(...), or use mixed_bfloat16.",
            "warning",
        )
    policy = f"{job.policy} needs" if job.policy else "uses"
    return ScaleVerdict("n/a", f"{policy} no loss scale")


def _static(job: Job) -> ScaleVerdict:
    window = min(STATIC_WINDOW, job.step)
    recent = sum(1 for _ in _since(job, job.step - window)) / window
    skipped = max(job.skipped_share or 0.0, recent)
    scale = power_of_two(job.scale)
    if job.skipped is None:
        return ScaleVerdict("static", f"static scale {scale}; nothing tells of overflows")
    if skipped <= STATIC_WARNING or job.skipped < STATIC_SKIPS:
        some = "no step was skipped" if not job.skipped else f"{_skips(job.skipped)} so far"
        return ScaleVerdict("static", f"static scale {scale}: {some}")
    return ScaleVerdict(
        "static",
        f"static scale {scale} is too large: {share(skipped)} of the steps were skipped",
        'Lower it, or use scale="dynamic".',
        "error" if skipped >= STATIC_ERROR else "warning",
    )


def _exhausted(job: Job, run: int, settings: dict[str, object]) -> bool:
    scale, minimum = job.scale, settings.get("min_scale")
    if scale is None:
        return False
    if scale <= 0 or not math.isfinite(scale):
        return True
    after = settings.get("exhausted_after")
    enough = after if isinstance(after, int | float) and after >= 1 else EXHAUSTED_RUN
    borne = settings.get("hysteresis")
    if isinstance(borne, int | float) and borne > 1:
        enough = max(enough, borne)  # a shorter run may not have used it up
    return isinstance(minimum, int | float) and scale <= minimum and run >= enough


def _exhausted_verdict(job: Job) -> ScaleVerdict:
    if not job.scale or not math.isfinite(job.scale):
        return ScaleVerdict(
            "exhausted",
            f"exhausted: the scale is {power_of_two(job.scale)} and cannot recover; nothing is "
            "learnt any more",
            "Restart from the last good checkpoint with keras_mp.LossScaleOptimizer, which keeps "
            "the scale within limits.",
            "error",
        )
    return ScaleVerdict(
        "exhausted",
        f"exhausted: steps are skipped even at the smallest scale ({power_of_two(job.scale)}); "
        f"{share(job.skipped_share)} skipped so far",
        advice(job),
        "error",
    )


def _healthy(job: Job, skips: int, interval: int, maximum: object) -> str:
    window = _steps(min(interval, job.step))
    if skips == 0:
        text = f"healthy: no skip in the last {window}"
    else:
        # (More than two where a hysteresis bears some.)
        words = {1: "one skip", 2: "two skips"}.get(skips, f"{whole(skips)} skips")
        text = f"healthy: {words} in the last {window}, as dynamic scaling expects"
    good = job.latest.good_steps if job.latest else None
    if isinstance(maximum, int | float) and job.scale is not None and job.scale >= maximum:
        return f"{text} · at its largest, {power_of_two(job.scale)}"
    if good is None or job.end is not None:
        return text
    left = max(1, interval - good)
    return f"{text} · grows in {whole(left)} step{'s' if left > 1 else ''}"


def _steps(number: int) -> str:
    return "step" if number == 1 else f"{whole(number)} steps"


def _skips(number: int) -> str:
    return "one skip" if number == 1 else f"{whole(number)} skips"
