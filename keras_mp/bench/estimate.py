"""Hours from hours: what mixed precision would make of a training time. No Keras, no NumPy.

A speed-up is one of three things, in order of trust: measured on the user's model by a short trial,
published for a model and a card, or a guess. Each gives a range; only a guess is one number.

The parts of a step decide what a speed-up of the arithmetic is worth (Amdahl, 1967): what waits for
input data, or is the optimizer's, does not get faster.

``from_trial`` takes the figures of a trial (``keras_mp.bench.results``, what ``keras-mp bench
--json`` writes): the median and the quartiles of the rounds' own ratios.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from keras_mp.bench.results import Trial, Variant

# A whole training outside of these has been reported by nobody whose figures we know: published
# speed-ups go from 0.74 to 4.92 (published.csv).
PLAUSIBLE = (0.5, 5.0)


@dataclass(frozen=True)
class Range:
    """A quantity that lies between two numbers.

    Attributes:
        low, high: The ends, inclusive.
        middle: The likeliest, where there is one.
    """

    low: float
    high: float
    middle: float | None = None

    @property
    def is_point(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True)
class Hours:
    """A training time with a speed-up.

    Attributes:
        before: Hours now. speedup: The range it was computed with. after: Hours then; its low end
            belongs to the speed-up's high end.
    """

    before: float
    speedup: Range
    after: Range

    @property
    def saved(self) -> Range:
        """Hours saved; negative where it gets slower."""
        middle = None if self.after.middle is None else self.before - self.after.middle
        return Range(self.before - self.after.high, self.before - self.after.low, middle)


def hours_after(hours: float, speedup: float | Range) -> Hours:
    """How long a training of ``hours`` takes at a speed-up: ``100`` at ``2.1`` is 47.6.

    Raises:
        ValueError: Either is zero, negative or not finite, or the hours then would not be.
    """
    before = positive("hours", hours)
    given = speedup if isinstance(speedup, Range) else Range(speedup, speedup)
    low, high = positive("speedup", given.low), positive("speedup", given.high)
    if low > high:
        raise ValueError(
            f"A range goes from its lower end to its higher. Received: speedup={low} to {high}"
        )
    middle = None if given.middle is None else before / positive("speedup", given.middle)
    positive("hours / speedup", before / low)
    return Hours(before, given, Range(before / high, before / low, middle))


def question(speedup: float | Range) -> str | None:
    """Why a speed-up is hard to believe, as a sentence; None if it is not."""
    given = speedup if isinstance(speedup, Range) else Range(speedup, speedup)
    low, high = PLAUSIBLE
    if given.high > high:
        return (
            f"{given.high:g}× is more than any published training has gained (at most 4.92×): "
            "was one step measured, or the arithmetic alone?"
        )
    if given.low < low:
        return (
            f"{given.low:g}× makes training take more than twice as long: was float16 emulated "
            "(keras-mp doctor says), or did the runs differ in batch size?"
        )
    return None


@dataclass(frozen=True)
class Overall:
    """What a speed-up of one part is worth for the whole step.

    Attributes:
        speedup: Of the whole step.
        limit: What the whole step could gain if that part took no time at all.
        held_back_by: The largest part that does not get faster, and its share of the step.
    """

    speedup: float
    limit: float
    held_back_by: tuple[str, float] | None


def amdahl(split: Mapping[str, float], compute_speedup: float) -> Overall:
    """The speed-up of a whole step when only its ``compute`` part gets faster.

    Args:
        split: How long each part of a step takes, in any one unit: "compute", and as many other
            parts as there are ("input", "optimizer"). Measured, of the float32 run.
        compute_speedup: Of forward and backward pass.

    Raises:
        ValueError: A part is negative or not finite, or there is no "compute" above zero.
    """
    gain = positive("compute_speedup", compute_speedup)
    for name, seconds in split.items():
        if not (isinstance(seconds, int | float) and math.isfinite(seconds) and seconds >= 0):
            raise ValueError(
                f"A part of a step takes some time, or none. Received: {name}={seconds!r}"
            )
    compute = split.get("compute", 0.0)
    if compute <= 0:
        raise ValueError(
            "A split needs the part 'compute' (forward and backward pass), above zero. "
            f"Received: split={dict(split)!r}"
        )
    whole = sum(split.values())
    rest = whole - compute
    others = {name: seconds for name, seconds in split.items() if name != "compute" and seconds}
    held = max(others, key=lambda name: others[name], default=None)
    return Overall(
        speedup=whole / (rest + compute / gain),
        limit=whole / rest if rest > 0 else math.inf,
        held_back_by=None if held is None else (held, others[held] / whole),
    )


@dataclass(frozen=True)
class TrialSpeedup:
    """What a trial measured for one variant, against its float32.

    Attributes:
        name: Such as "mixed_bfloat16".
        speedup: Quartiles and median of the rounds' ratios. rounds: How many there were.
        overall: What the measured split of float32's step allows, given what forward and backward
            pass gained; None where the split was not measured.
    """

    name: str
    speedup: Range
    rounds: int
    overall: Overall | None = None


def from_trial(trial: Trial) -> list[TrialSpeedup]:
    """The speed-ups of a trial, the largest first.

    Raises:
        ValueError: The trial has nothing to compare: float32 failed, or every other variant did.
    """
    base = next((v for v in trial.variants if v.name == "float32"), None)
    found = [speedup_of(base, variant) for variant in trial.variants if variant.speedup]
    if not found:
        errors = {v.name: v.error for v in trial.variants if v.error}
        raise ValueError(
            "The trial has no speed-up. Expected float32 and another variant with figures. "
            f"Received: {[v.name for v in trial.variants]}"
            + (f", failed: {errors}" if errors else "")
        )
    return sorted(found, key=lambda each: -(each.speedup.middle or 0.0))


# Quartiles further apart than this say more about the machine than about the model.
WIDE_SPREAD = 1.5


def question_trial(up: TrialSpeedup) -> list[str]:
    """What is hard to believe about a measured speed-up, as sentences."""
    found = (question(up.speedup), disturbed(up))
    return [said for said in found if said is not None]


def disturbed(up: TrialSpeedup) -> str | None:
    """Why a busy machine is likelier than a measured speed-up, as a sentence; None if it is not."""
    if up.speedup.high > WIDE_SPREAD * up.speedup.low:
        return (
            f"the rounds of {up.name} differ by more than half ({up.speedup.low:.3g}× to "
            f"{up.speedup.high:.3g}×): the machine was busy; repeat the trial on a calm one"
        )
    if up.overall is not None and (up.speedup.middle or 0.0) > 1.1 * up.overall.limit:
        return (
            f"{up.name} gained more than the split of a step allows ({up.overall.limit:.3g}×): "
            "one of the two was measured while the machine was busy"
        )
    return None


def speedup_of(float32: Variant | None, variant: Variant) -> TrialSpeedup:
    """A variant's measured speed-up, and what float32's split of a step makes of it."""
    spread = variant.speedup
    if spread is None:
        raise ValueError(f"{variant.name} has no speed-up")
    overall = None
    base = float32.split if float32 is not None else None
    if base and variant.split and base.compute > 0 and variant.split.compute > 0:
        parts = {
            "compute": base.compute,
            "input": base.input,
            "optimizer": base.optimizer,
            "other": base.other,
        }
        overall = amdahl(parts, base.compute / variant.split.compute)
    rounds = len(variant.samples_per_s)
    return TrialSpeedup(
        variant.name, Range(spread.low, spread.high, spread.median), rounds, overall
    )


def positive(name: str, value: float) -> float:
    """``value``, if it is a positive finite number. Raises ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"`{name}` must be a number. Received: {name}={value!r}")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"`{name}` must be positive and finite. Received: {name}={value!r}")
    return float(value)
