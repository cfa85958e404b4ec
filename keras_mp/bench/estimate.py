"""Hours from hours: what mixed precision would make of a training time. No Keras, no NumPy.

A speed-up is one of three things, in order of trust: measured on the user's model by a short trial,
published for a model and a card, or a guess. Each gives a range; only a guess is one number.

The parts of a step decide what a speed-up of the arithmetic is worth (Amdahl, 1967): what waits for
input data, or is the optimizer's, does not get faster.

``from_trial`` reads what ``keras-mp bench --json`` writes. Of that file it needs::

    {"schema": 1, "kind": "trial", "model": "...", "device": "...", "baseline": "float32",
     "variants": {NAME: {"samples_per_second": [one figure a repetition, in order],
                         "split": {"input": s, "compute": s, "optimizer": s}}}}

The repetitions of the variants are interleaved: the n-th of each ran at about the same time, and
their quotient is what the machine's mood does not touch. ``split`` (seconds a step) may be absent.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A whole training outside of these has been reported by nobody whose figures we know: published
# speed-ups go from 0.74 to 4.92 (published.csv).
PLAUSIBLE = (0.5, 5.0)
# What a speed-up of the arithmetic leaves as it is.
UNTOUCHED = ("input", "optimizer")


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
        ValueError: Either is zero, negative or not finite.
    """
    before = positive("hours", hours)
    given = speedup if isinstance(speedup, Range) else Range(speedup, speedup)
    low, high = positive("speedup", given.low), positive("speedup", given.high)
    if low > high:
        raise ValueError(
            f"A range goes from its lower end to its higher. Received: speedup={low} to {high}"
        )
    middle = None if given.middle is None else before / positive("speedup", given.middle)
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
    """What a trial measured for one variant.

    Attributes:
        name: Such as "mixed_bfloat16". speedup: Over the baseline: the median of the repetitions'
            quotients, and the lowest and highest of them. repetitions: How many there were.
        overall: What the time split of the baseline says about this gain; None where not measured.
    """

    name: str
    speedup: Range
    repetitions: int
    overall: Overall | None = None


@dataclass(frozen=True)
class Trial:
    """A trial's file, as far as an estimate needs it. ``best``: the variant that gained most."""

    model: str
    device: str
    baseline: str
    variants: tuple[TrialSpeedup, ...]

    @property
    def best(self) -> TrialSpeedup:
        return max(self.variants, key=lambda v: v.speedup.middle or 0.0)


def from_trial(path: str | Path) -> Trial:
    """Read the file of a trial.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is not a trial's, or has no pair of variants to compare.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no JSON file ({error}). Expected a trial's") from error
    if not isinstance(found, dict) or found.get("kind") != "trial":
        raise ValueError(
            f"{path} is not the file of a trial. Expected what keras-mp bench MODEL --json writes"
        )
    if found.get("schema") != 1:
        raise ValueError(
            f"{path} is of another version of keras-mp. Expected schema 1. "
            f"Received: schema={found.get('schema')!r}"
        )
    variants = found.get("variants") or {}
    baseline = str(found.get("baseline", "float32"))
    if baseline not in variants or len(variants) < 2:
        raise ValueError(
            f"{path} has nothing to compare. Expected {baseline!r} and another variant. "
            f"Received: {sorted(variants)}"
        )
    base = variants[baseline]
    others = tuple(_variant(name, one, base) for name, one in variants.items() if name != baseline)
    return Trial(str(found.get("model", "")), str(found.get("device", "")), baseline, others)


def _variant(name: str, one: Mapping[str, Any], base: Mapping[str, Any]) -> TrialSpeedup:
    rates, base_rates = _rates(name, one), _rates("the baseline", base)
    if len(rates) == len(base_rates):
        quotients = [a / b for a, b in zip(rates, base_rates, strict=True)]
        middle = statistics.median(quotients)
        speedup = Range(min(quotients), max(quotients), middle)
    else:  # not interleaved: the widest that the figures allow
        speedup = Range(
            min(rates) / max(base_rates),
            max(rates) / min(base_rates),
            statistics.median(rates) / statistics.median(base_rates),
        )
    overall = None
    split, mixed = base.get("split"), one.get("split")
    if split and mixed and mixed.get("compute"):
        overall = amdahl(split, split.get("compute", 0.0) / mixed["compute"])
    return TrialSpeedup(name, speedup, len(rates), overall)


def _rates(name: str, variant: Mapping[str, Any]) -> Sequence[float]:
    rates = variant.get("samples_per_second")
    good = (
        isinstance(rates, list)
        and rates
        and all(isinstance(r, int | float) and math.isfinite(r) and r > 0 for r in rates)
    )
    if not good:
        raise ValueError(
            f"The trial's figures of {name} are incomplete. Expected samples_per_second, a list "
            f"of positive numbers. Received: {rates!r}"
        )
    return rates


def positive(name: str, value: float) -> float:
    """``value``, if it is a positive finite number. Raises ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"`{name}` must be a number. Received: {name}={value!r}")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"`{name}` must be positive and finite. Received: {name}={value!r}")
    return float(value)
