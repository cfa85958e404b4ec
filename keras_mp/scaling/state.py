"""The loss scale as a pure state machine: the reference that every kernel is tested against.

NumPy-only, Keras-free, immutable. The rules and their sources:

- skip on overflow, back off, grow after a run of clean updates: Micikevicius et al. 2018, 3.2;
- growth and backoff factors: ``torch.amp.GradScaler``; floor: tf.keras mixed precision;
- ceiling: Apex amp; hysteresis: Megatron-LM and DeepSpeed.
"""

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np

# 1 / scale must itself be a normal float32, or a device that flushes subnormals would unscale
# every gradient to zero: the widest possible range is 2**-126 .. 2**126.
SMALLEST_SCALE = 2.0**-126
LARGEST_SCALE = 2.0**126

# Counters saturate here: the largest int32, the dtype in which the devices keep them.
COUNTER_MAX = 2**31 - 1

OnExhausted = Literal["warn", "raise", "continue"]
GrowthDelay = Literal["none", "after_overflow", "always"]
HysteresisRefill = Literal["growth", "finite"]
CountedAs = Literal["updates", "micro_batches"]


@dataclass(frozen=True)
class ScaleConfig:
    """How a loss scale moves. Immutable; every field is checked on construction.

    Attributes:
        dynamic: False keeps ``initial_scale`` for good (a static scale). Steps whose gradients are
            not finite are skipped all the same.
        initial_scale: Loss scale of the first step. Defaults to 2**15.
        growth_interval: Clean updates since the last change (of the scale, or overflow) after
            which the scale grows. Defaults to 2000.
        growth_factor: What it grows by; at least 1. Defaults to 2.
        backoff_factor: What an overflow multiplies it by; in (0, 1]. Defaults to 0.5.
        hysteresis: Overflows until the scale backs off. 1, the default, backs off on each.
        hysteresis_refill: When the tolerance is refilled: at each "growth" (Megatron-LM, DeepSpeed)
            or at each "finite" step (DeepSpeed's ``consecutive_hysteresis``).
        min_scale, max_scale: Limits, inclusive. Defaults: 2**-14 and 2**24.
        growth_delay: Whether growth comes one clean update late: "none", "after_overflow" (only for
            the first growth after an overflow or the start, as DeepSpeed), "always" (flax).
        counts: What the growth interval counts when gradients are accumulated: weight "updates", or
            "micro_batches" (stock Keras).
        exhausted_after: Skips in a row, the last of them at ``min_scale`` and with no hysteresis
            left, that count as exhausted.
        on_exhausted: What that does: "warn", "raise" or "continue".

    Raises:
        ValueError: For a value out of range. TypeError: for a value of the wrong type.
    """

    dynamic: bool = True
    initial_scale: float = 2.0**15
    growth_interval: int = 2000
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    hysteresis: int = 1
    hysteresis_refill: HysteresisRefill = "growth"
    min_scale: float = 2.0**-14
    max_scale: float = 2.0**24
    growth_delay: GrowthDelay = "none"
    counts: CountedAs = "updates"
    exhausted_after: int = 3
    on_exhausted: OnExhausted = "warn"

    def __post_init__(self) -> None:
        for name in ("initial_scale", "growth_factor", "backoff_factor", "min_scale", "max_scale"):
            object.__setattr__(self, name, positive_finite(name, getattr(self, name)))
        for name in ("growth_interval", "hysteresis", "exhausted_after"):
            object.__setattr__(self, name, _positive_int(name, getattr(self, name)))
        if not isinstance(self.dynamic, bool):
            raise TypeError(f"`dynamic` must be a bool. Received: dynamic={self.dynamic!r}")
        _one_of("hysteresis_refill", self.hysteresis_refill, ("growth", "finite"))
        _one_of("growth_delay", self.growth_delay, ("none", "after_overflow", "always"))
        _one_of("counts", self.counts, ("updates", "micro_batches"))
        _one_of("on_exhausted", self.on_exhausted, ("warn", "raise", "continue"))
        if self.growth_factor < 1:
            raise ValueError(
                "`growth_factor` must be at least 1 (1 never grows). "
                f"Received: growth_factor={self.growth_factor!r}"
            )
        if self.backoff_factor > 1:
            raise ValueError(
                "`backoff_factor` must be at most 1 (1 never backs off). "
                f"Received: backoff_factor={self.backoff_factor!r}"
            )
        for name in ("min_scale", "max_scale", "initial_scale"):
            value = getattr(self, name)
            if not SMALLEST_SCALE <= value <= LARGEST_SCALE:
                raise ValueError(
                    f"`{name}` must lie between 2**-126 and 2**126, so that a scale and its "
                    f"reciprocal are normal float32 numbers. Received: {name}={value!r}"
                )
        if self.min_scale > self.max_scale:
            raise ValueError(
                "`min_scale` must not exceed `max_scale`. Received: "
                f"min_scale={self.min_scale!r}, max_scale={self.max_scale!r}"
            )
        if not self.min_scale <= self.initial_scale <= self.max_scale:
            raise ValueError(
                "`initial_scale` must lie within [min_scale, max_scale]. Received: "
                f"initial_scale={self.initial_scale!r}, min_scale={self.min_scale!r}, "
                f"max_scale={self.max_scale!r}"
            )

    @property
    def start_good_steps(self) -> int:
        """``good_steps`` at the start and after an overflow; -1 where growth comes a step late."""
        return 0 if self.growth_delay == "none" else -1

    @property
    def grown_good_steps(self) -> int:
        """``good_steps`` right after growth."""
        return -1 if self.growth_delay == "always" else 0

    def as_dict(self) -> dict[str, Any]:
        """All fields, JSON-ready; ``ScaleConfig(**config.as_dict())`` is equal to the original."""
        return asdict(self)

    def within(self, low: float, high: float) -> "ScaleConfig":
        """The same with these limits, such as those in force where scaling serves nothing: (1, 1).

        The initial scale is the nearest within them.
        """
        if (low, high) == (self.min_scale, self.max_scale):
            return self
        start = min(max(self.initial_scale, low), high)
        return replace(self, min_scale=low, max_scale=high, initial_scale=start)


@dataclass(frozen=True)
class ScaleState:
    """Where a loss scale stands.

    Attributes:
        scale: The loss scale of the next step. Always finite, within the config's limits.
        good_steps: Clean updates counted toward growth since the last change (-1 where the preset
            grows a step late).
        hysteresis_left: The scale backs off on the overflow that brings this to 0.
        skipped: Steps skipped since the start; saturates at 2**31 - 1.
        applied: Steps whose gradients were used since the start; saturates likewise.
        consecutive_skips: Length of the current run of skipped steps; saturates likewise.
    """

    scale: float
    good_steps: int
    hysteresis_left: int
    skipped: int = 0
    applied: int = 0
    consecutive_skips: int = 0

    @classmethod
    def initial(cls, config: ScaleConfig) -> "ScaleState":
        return cls(
            scale=config.initial_scale,
            good_steps=config.start_good_steps,
            hysteresis_left=config.hysteresis,
        )

    @property
    def step(self) -> int:
        """Steps attempted so far."""
        return self.skipped + self.applied


def update(
    state: ScaleState, finite: bool, config: ScaleConfig, *, updated: bool = True
) -> ScaleState:
    """The state after one step: the whole algorithm.

    Args:
        state: Where the scale stood when the step's loss was scaled.
        finite: Whether every gradient of the step was finite.
        config: How the scale moves.
        updated: False for a clean micro-batch that was only accumulated: it counts toward growth
            only where ``config.counts`` is "micro_batches".

    Returns:
        The state of the next step. On overflow the step was skipped: ``good_steps`` starts over and
        the scale backs off once the hysteresis is used up, never below ``min_scale``. Otherwise,
        after ``growth_interval`` clean updates, it grows, never above ``max_scale``.
    """
    scale, good, left = state.scale, state.good_steps, state.hysteresis_left
    skipped, applied, run = state.skipped, state.applied, state.consecutive_skips
    if not finite:
        skipped, run = _count(skipped), _count(run)
        good = config.start_good_steps
        left = max(left - 1, 0)
        if left == 0:
            scale = float(np.float32(max(scale * config.backoff_factor, config.min_scale)))
    else:
        applied, run = _count(applied), 0
        if config.hysteresis_refill == "finite":
            left = config.hysteresis
        if updated or config.counts == "micro_batches":
            good += 1
        if good >= config.growth_interval:
            scale = float(np.float32(min(scale * config.growth_factor, config.max_scale)))
            good, left = config.grown_good_steps, config.hysteresis
    if config.hysteresis == 1:
        left = 1  # no tolerance to use up
    if not config.dynamic:
        scale, good, left = state.scale, state.good_steps, state.hysteresis_left
    # A scale that somebody assigned comes back too; NaN counts as too small.
    scale = min(scale if scale >= config.min_scale else config.min_scale, config.max_scale)
    return ScaleState(scale, good, left, skipped, applied, run)


def exhausted(
    scale: float, consecutive_skips: int, config: ScaleConfig, hysteresis_left: int = 0
) -> bool:
    """Whether a run of skips goes on although the scale cannot fall any further.

    Args:
        scale: The loss scale that the last step used.
        consecutive_skips: The run of skips, that step included.
        config: With the floor and the length of the run.
        hysteresis_left: After that step. While some is left an overflow is tolerated, and lowers
            the scale nowhere: DeepSpeed asks for it first, too. Defaults to 0.
    """
    tolerated = config.hysteresis > 1 and hysteresis_left > 0
    at_floor = not config.dynamic or (scale <= config.min_scale and not tolerated)
    return at_floor and consecutive_skips >= config.exhausted_after


def state_from_dict(values: dict[str, Any]) -> ScaleState:
    """A state from a mapping with (at least) its fields. Raises ValueError for what is missing."""
    missing = [f.name for f in fields(ScaleState) if f.name not in values]
    if missing:
        raise ValueError(f"A loss scale state needs {missing}. Received: {sorted(values)}")
    return ScaleState(
        scale=float(values["scale"]),
        **{f.name: int(values[f.name]) for f in fields(ScaleState) if f.name != "scale"},
    )


def _count(value: int) -> int:
    return min(value + 1, COUNTER_MAX)


def positive_finite(name: str, value: Any) -> float:
    """A number as the devices hold it, a normal float32 one. Raises by the argument's name."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"`{name}` must be a number. Received: {name}={value!r} ({type(value)})")
    if np.ndim(value):
        raise TypeError(f"`{name}` must be one number. Received: {name}={value!r}")
    number = float(value)
    if not math.isfinite(number) or number <= 0:
        raise ValueError(f"`{name}` must be positive and finite. Received: {name}={value!r}")
    # The devices compute in float32: the reference rounds where they do.
    with np.errstate(over="ignore", under="ignore"):
        rounded = float(np.float32(number))
    if not np.finfo(np.float32).tiny <= rounded < math.inf:
        raise ValueError(f"`{name}` must be a normal float32 number. Received: {name}={value!r}")
    return rounded


def _positive_int(name: str, value: Any) -> int:
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__int__"):
        raise TypeError(f"`{name}` must be an integer. Received: {name}={value!r} ({type(value)})")
    # Half of what a counter holds, so that a count on its way there cannot wrap around.
    if not math.isfinite(value) or int(value) != value or not 1 <= value <= COUNTER_MAX // 2:
        raise ValueError(f"`{name}` must be an integer from 1 on. Received: {name}={value!r}")
    return int(value)


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"`{name}` must be one of {list(allowed)}. Received: {name}={value!r}")
