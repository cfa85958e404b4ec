"""The loss scale's state as variables on the device, and its update in keras.ops.

``advance`` is ``state.update`` without branches, for kernels that must not ask the host (graphs,
jit). It is tested for equality with the reference, field by field, over random sequences.
"""

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_mp.scaling.ring import LOSS_FINITE, LOSS_NOT_FINITE, LOSS_NOT_SEEN, STEP_SPLIT
from keras_mp.scaling.state import COUNTER_MAX, ScaleConfig, ScaleState

# The rows of the counters variable.
HYSTERESIS_LEFT, SKIPPED, APPLIED, CONSECUTIVE_SKIPS = range(4)
COUNTERS = 4


class Values(NamedTuple):
    """The scaler's state as tensors.

    Attributes:
        scale: float32, shape (). good_steps: int32, shape ().
        counters: int32, shape (4,): hysteresis left, skipped, applied, consecutive skips.
        limits: float32, shape (2,): the smallest and the largest scale. (1, 1) where scaling
            serves nothing, because no layer computes in float16.
    """

    scale: Any
    good_steps: Any
    counters: Any
    limits: Any


class DeviceState:
    """The scaler's variables, created on an optimizer.

    ``dynamic_scale`` and ``step_counter`` carry the names (and so the checkpoint keys) of
    ``keras.optimizers.LossScaleOptimizer``.
    """

    def __init__(self, optimizer: Any, config: ScaleConfig):
        start = ScaleState.initial(config)
        self.config = config
        self.scale = _variable(optimizer, "dynamic_scale", "float32", np.float32(start.scale))
        self.good_steps = _variable(optimizer, "step_counter", "int32", np.int32(start.good_steps))
        self.counters = _variable(optimizer, "counters", "int32", _counters(start))
        self.limits = _variable(optimizer, "scale_limits", "float32", _limits(config, True))

    @property
    def variables(self) -> list[Any]:
        return [self.scale, self.good_steps, self.counters, self.limits]

    def switch(self, needed: bool) -> None:
        """Scale the loss, or stay at scale 1 where no layer computes in float16.

        A device variable and no Python branch: a traced step does not ask again.
        """
        limits = _limits(self.config, needed)
        if np.array_equal(ops.convert_to_numpy(self.limits), limits):
            return
        self.limits.assign(limits)
        self.scale.assign(np.float32(self.config.initial_scale if needed else 1.0))

    @property
    def is_switched_off(self) -> bool:
        """Whether the scale stays 1, because no layer computes in float16. Reads the device."""
        return not np.array_equal(ops.convert_to_numpy(self.limits), _limits(self.config, True))

    def values(self) -> Values:
        return Values(*(ops.convert_to_tensor(v) for v in self.variables))

    def assign(self, values: Values) -> None:
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)

    def read(self) -> ScaleState:
        """The state on the host. Three small copies from the device."""
        scale, good, counters = (ops.convert_to_numpy(v) for v in self.variables[:3])
        left, skipped, applied, run = (int(c) for c in counters)
        return ScaleState(float(scale), int(good), left, skipped, applied, run)

    def write(self, state: ScaleState) -> None:
        self.scale.assign(np.float32(state.scale))
        self.good_steps.assign(np.int32(state.good_steps))
        self.counters.assign(_counters(state))


def advance(values: Values, finite: Any, updated: Any, config: ScaleConfig) -> Values:
    """``state.update`` on tensors, by selection.

    Args:
        values: The state before the step.
        finite: bool tensor, shape (): every gradient of the step was finite.
        updated: bool (tensor or Python): the clean step was an update, not only a micro-batch.
        config: How the scale moves.
    """
    scale, good, counters, limits = values
    left, run = counters[HYSTERESIS_LEFT], counters[CONSECUTIVE_SKIPS]
    ok = ops.cast(finite, "int32")
    bad = 1 - ok
    skipped = _saturating_add(counters[SKIPPED], bad)
    applied = _saturating_add(counters[APPLIED], ok)
    run = _saturating_add(run, bad) * bad
    if config.dynamic:
        if config.counts == "micro_batches":
            updated = True
        counted = good + ops.cast(updated, "int32")
        grow = ops.logical_and(finite, counted >= config.growth_interval)
        left_bad = ops.maximum(left - 1, 0)
        back_off = ops.logical_and(ops.logical_not(finite), ops.equal(left_bad, 0))
        grown = ops.minimum(scale * np.float32(config.growth_factor), limits[1])
        backed = ops.maximum(scale * np.float32(config.backoff_factor), limits[0])
        scale = ops.where(grow, grown, ops.where(back_off, backed, scale))
        good = ops.where(finite, ops.where(grow, config.grown_good_steps, counted), 0)
        if config.start_good_steps:
            good = ops.where(finite, good, config.start_good_steps)
        if config.hysteresis > 1:
            refill = finite if config.hysteresis_refill == "finite" else grow
            left = ops.where(refill, config.hysteresis, ops.where(finite, left, left_bad))
    # A scale that somebody assigned comes back within the limits too; NaN counts as too small.
    scale = ops.minimum(ops.where(scale >= limits[0], scale, limits[0]), limits[1])
    return Values(
        ops.cast(scale, "float32"),
        ops.cast(good, "int32"),
        ops.stack([ops.cast(c, "int32") for c in (left, skipped, applied, run)]),
        limits,
    )


def ring_row(
    before: Values, after: Values, finite: Any, loss: Any, norms: Any, seen: Any = None
) -> Any:
    """One row of the ring (see ``ring``): float32, shape (COLUMNS + variables,).

    Args:
        before, after: The state around the step.
        finite: bool tensor, shape ().
        loss: Unscaled loss, shape (), or None where it was not seen.
        norms: float32, shape (variables,): norms of the scaled gradients; or None.
        seen: What is known of the loss, as ``ring`` codes it. Defaults to whether it is finite.
    """
    step = steps_done(after.counters)
    if loss is None:
        loss, seen = np.float32(0), LOSS_NOT_SEEN
    else:
        loss = ops.cast(loss, "float32")
        if seen is None:
            seen = ops.where(ops.isfinite(loss), LOSS_FINITE, LOSS_NOT_FINITE)
    head = [
        step % STEP_SPLIT,
        step // STEP_SPLIT,
        before.scale,
        after.scale,
        finite,
        loss,
        seen,
        after.good_steps,
        after.counters[HYSTERESIS_LEFT],
    ]
    row = ops.stack([ops.cast(value, "float32") for value in head])
    return row if norms is None else ops.concatenate([row, ops.cast(norms, "float32")])


def steps_done(counters: Any) -> Any:
    """Attempted steps: skipped + applied, staying at COUNTER_MAX like them."""
    skipped, applied = counters[SKIPPED], counters[APPLIED]
    return skipped + ops.minimum(applied, COUNTER_MAX - skipped)


def _saturating_add(counter: Any, amount: Any) -> Any:
    """counter + amount (0 or 1), staying at COUNTER_MAX; the sum itself would wrap around."""
    return ops.where(counter < COUNTER_MAX, counter + amount, counter)


def _counters(state: ScaleState) -> np.ndarray:
    return np.array(
        [state.hysteresis_left, state.skipped, state.applied, state.consecutive_skips], np.int32
    )


def _limits(config: ScaleConfig, needed: bool) -> np.ndarray:
    return np.array([config.min_scale, config.max_scale] if needed else [1, 1], np.float32)


def _variable(optimizer: Any, name: str, dtype: str, value: Any) -> Any:
    value = np.asarray(value)
    # By the initializer and not by assign: TensorFlow lifts the one out of a traced train step,
    # and would run the other at every step. Keras' own method: ours adds to the inner optimizer.
    return keras.optimizers.LossScaleOptimizer.add_variable(
        optimizer,
        shape=value.shape,
        dtype=dtype,
        initializer=lambda shape, dtype: ops.convert_to_tensor(value, dtype=dtype),
        aggregation="only_first_replica",
        name=name,
    )
