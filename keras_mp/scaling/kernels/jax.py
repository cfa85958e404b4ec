"""jax: a pure function of values; one cond under jit, a Python branch outside it.

What the device remembers (the ring, the overflows of each variable) are variables of the optimizer,
because Keras' trainer hands a step only those; they are no part of checkpoints.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import ops

from keras_mp._keras_internals import raw_iterations
from keras_mp.scaling.device_state import (
    APPLIED,
    CONSECUTIVE_SKIPS,
    SKIPPED,
    Values,
    advance,
    ring_row,
)
from keras_mp.scaling.kernels.common import OWN, Kernel
from keras_mp.scaling.ring import COLUMNS
from keras_mp.scaling.state import COUNTER_MAX, ScaleConfig
from keras_mp.scaling.told import LONG_RUN

HOW_OFTEN, FIRST, LAST = range(3)  # the rows of the overflow counts
LARGEST = np.finfo(np.float32).max


class JaxKernel(Kernel):
    """See the module.

    Attributes:
        counts: int32, [3, variables]: overflows of each variable, the first and the last step of
            them; None with attribution off.
        ring: float32, [rows, columns], the last steps; None until it is asked for.
    """

    def __init__(self, optimizer: Any):
        super().__init__(optimizer)
        self.counts: Any = None
        self.ring: Any = None
        self.run_told = 0  # the step before the run of skips that was last looked at
        if optimizer.attribution:
            self.counts = self._variable("overflow_counts", self.overflows.astype(np.int32))

    @property
    def carried(self) -> list[Any]:
        return [v for v in (self.counts, self.ring) if v is not None]

    def allocate_ring(self, rows: int) -> None:
        if self.ring is None or self.ring.shape[0] < rows:
            columns = COLUMNS + (len(self.counts[0]) if self.counts is not None else 0)
            self.ring = self._variable("ring", np.zeros((rows, columns), np.float32))

    def read_ring(self) -> Any:
        return None if self.ring is None else np.asarray(self.ring.value)

    def overflow_counts(self) -> np.ndarray:
        return self.overflows if self.counts is None else np.asarray(self.counts.value, np.int64)

    # The step.

    def scale_loss(self, loss: Any) -> Any:
        # Under jax.grad the loss is a tracer, which must not outlive it. Who knows the loss outside
        # (GuardedTrainStep) hands it to ``observe_loss``.
        if not isinstance(loss, jax.core.Tracer):
            self.loss = loss
        return ops.multiply(loss, ops.cast(self.state.scale, loss.dtype))

    def observe_loss(self, loss: Any) -> None:
        """The unscaled loss of the step that ``stateless_apply`` is called for next, or None."""
        self.loss = loss

    def apply(self, grads: list[Any], variables: list[Any]) -> None:
        if any(isinstance(x, jax.core.Tracer) for x in (*grads, self.state.scale.value)):
            self._apply_traced(grads, variables)
            return
        before = Values(*(v.value for v in self.state.variables))
        unscaled, flags, norms = self._check(grads, variables, before.scale)
        finite = bool(np.all(flags))
        updated = self.is_update(raw_iterations(self.inner).value)
        if finite:
            self.inner.apply(unscaled, variables)
        loss, self.loss = self.loss, None
        order = np.array([self.optimizer._get_variable_index(v) for v in variables])
        count = len(self.optimizer._targets)
        if len(order) != count or not np.array_equal(order, np.arange(count)):
            flags = jnp.ones(count, bool).at[order].set(flags)
            norms = None if norms is None else jnp.zeros(count, jnp.float32).at[order].set(norms)
        own = [*self.state.variables, *self.carried]
        after, carried = self._record(
            before, flags, norms, loss, updated, [v.value for v in self.carried]
        )
        for variable, value in zip(own, [*after, *carried], strict=True):
            variable.assign(value)
        self._look(finite, before, after, flags)

    def _apply_traced(self, grads: list[Any], variables: list[Any]) -> None:
        """``apply`` in a jit of the user's: the stateless step, assigned to the scope around it."""
        targets = self.optimizer._targets
        by_id = {id(v): g for v, g in zip(variables, grads, strict=True)}
        own = [*self.state.variables, *self.inner.variables, *self.carried]
        new_targets, new_own = self.stateless_apply(
            [v.value for v in own],
            [by_id.get(id(v)) for v in targets],
            [v.value for v in targets],
        )
        for variable, value in zip([*targets, *own], [*new_targets, *new_own], strict=True):
            variable.assign(value)

    def stateless_apply(
        self, optimizer_values: list[Any], grads: list[Any], trainable_values: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        loss, self.loss = self.loss, None
        before = Values(*optimizer_values[:OWN])
        inner_count = len(self.inner.variables)
        inner = list(optimizer_values[OWN : OWN + inner_count])
        carried = list(optimizer_values[OWN + inner_count :])
        unscaled, flags, norms = self._check(grads, self.optimizer._targets, before.scale)
        finite = jnp.all(flags)
        traced = isinstance(finite, jax.core.Tracer)
        if traced and not isinstance(loss, jax.core.Tracer):
            loss = None  # of another step: it would be a constant of the compiled function
        counter = raw_iterations(self.inner)
        iterations = inner[[v is counter for v in self.inner.variables].index(True)]
        after, carried = self._record(
            before, flags, norms, loss, self.is_update(iterations), carried
        )

        def step() -> tuple[list[Any], list[Any]]:
            new, new_inner = self.inner.stateless_apply(inner, unscaled, trainable_values)
            return list(new), list(new_inner)

        def skip() -> tuple[list[Any], list[Any]]:
            return list(trainable_values), inner

        trainable, inner = choose(finite, step, skip)
        if traced:
            self._look_from_the_device(before, after, flags)
        else:
            self._look(bool(finite), before, after, flags)
        return trainable, [*after, *inner, *carried]

    def _check(self, grads: list[Any], variables: list[Any], scale: Any) -> tuple[Any, Any, Any]:
        """(gradients / scale, a finite flag each, a norm each where the ring keeps it)."""
        if all(g is None for g in grads):
            raise ValueError("No gradients provided for any variable.")
        overwrites = tuple(getattr(v, "overwrite_with_gradient", False) for v in variables)
        return unscale_and_check(
            list(grads), scale, overwrites, self.ring is not None and self.counts is not None
        )

    def _record(
        self, before: Values, flags: Any, norms: Any, loss: Any, updated: Any, carried: list[Any]
    ) -> tuple[Values, list[Any]]:
        counts = carried.pop(0) if self.counts is not None else None
        ring = carried.pop(0) if self.ring is not None else None
        after, counts, ring = record(before, flags, norms, loss, updated, counts, ring, self.config)
        return after, [x for x in (counts, ring) if x is not None]

    # What is said aloud.

    def _look(self, finite: bool, before: Values, after: Values, flags: Any) -> None:
        if not finite:
            self._tell(before.scale, before.limits, after.counters, flags)

    def _look_from_the_device(self, before: Values, after: Values, flags: Any) -> None:
        """Call the host from a compiled step, but only in one that the teller has a word for."""
        config = self.config
        if config.on_exhausted == "continue":
            return
        run = after.counters[CONSECUTIVE_SKIPS]
        at_floor = True if not config.dynamic else before.scale <= before.limits[0]
        lost = jnp.logical_and(at_floor, run >= config.exhausted_after)
        arguments = before.scale, before.limits, after.counters, flags
        jax.lax.cond(
            jnp.logical_or(lost, run == LONG_RUN),
            lambda: jax.debug.callback(self._tell, *arguments),
            lambda: None,
        )

    def _tell(self, scale: Any, limits: Any, counters: Any, flags: Any) -> None:
        counters = np.asarray(counters)
        run = int(counters[CONSECUTIVE_SKIPS])
        step = int(counters[SKIPPED]) + int(counters[APPLIED])
        if step - run != self.run_told:
            self.run_told = step - run
            self.teller.check(float(scale), 0)  # a clean step came between
        nonfinite = tuple(int(i) for i in np.flatnonzero(~np.asarray(flags)))
        self.note_overflow(step, nonfinite, None)
        self.teller.check(float(scale), run, self._in_force(limits))

    def _in_force(self, limits: Any) -> ScaleConfig | None:
        """The settings with the limits of the device, where scaling serves nothing."""
        low, high = (float(x) for x in np.asarray(limits))
        if (low, high) == (self.config.min_scale, self.config.max_scale):
            return None
        values = {**self.config.as_dict(), "initial_scale": low}
        return ScaleConfig(**{**values, "min_scale": low, "max_scale": high})

    def _variable(self, name: str, value: np.ndarray) -> Any:
        with keras.name_scope(self.optimizer.name, caller=self.optimizer):
            return keras.Variable(value, dtype=value.dtype.name, trainable=False, name=name)


def choose(finite: Any, step: Callable[[], Any], skip: Callable[[], Any]) -> Any:
    """``step()`` or ``skip()``: by Python where ``finite`` is known, else by one cond."""
    if isinstance(finite, jax.core.Tracer):
        return jax.lax.cond(finite, step, skip)
    return step() if finite else skip()


@partial(jax.jit, static_argnames=("overwrites", "with_norms"))
def unscale_and_check(
    grads: list[Any], scale: Any, overwrites: tuple[bool, ...], with_norms: bool
) -> tuple[list[Any], Any, Any]:
    """Gradients divided by the scale, and what is known of them.

    Args:
        grads: Gradients of the scaled loss, or None. scale: float32, shape ().
        overwrites: Whether the variable takes its gradient as its value (float8's scales): such a
            gradient was never scaled.
        with_norms: Whether to measure norms.

    Returns:
        (unscaled gradients in float32 or wider, bool [n] whether all of a gradient is finite,
        float32 [n] norms of the scaled gradients, NaN where not finite; or None).
    """
    # Division and not the product with the reciprocal: right for any scale.
    wide = [None if g is None else g.astype(jnp.promote_types(g.dtype, jnp.float32)) for g in grads]
    unscaled = [
        g if g is None or overwrite else g / scale
        for g, overwrite in zip(wide, overwrites, strict=True)
    ]
    # After the division: a scale below 1 makes them larger. And one by one, not by their norm: the
    # squares of large finite numbers overflow.
    flags = jnp.stack([jnp.array(True) if g is None else jnp.isfinite(g).all() for g in unscaled])
    if not with_norms:
        return unscaled, flags, None
    squares = [jnp.zeros(()) if g is None else jnp.sum(jnp.square(g)) for g in wide]
    norms = jnp.sqrt(jnp.stack([s.astype(jnp.float32) for s in squares]))
    return unscaled, flags, jnp.where(flags, jnp.minimum(norms, LARGEST), jnp.nan)


@partial(jax.jit, static_argnames=("config",))
def record(
    before: Values,
    flags: Any,
    norms: Any,
    loss: Any,
    updated: Any,
    counts: Any,
    ring: Any,
    config: ScaleConfig,
) -> tuple[Values, Any, Any]:
    """The scale's next state, and the step in the counts and the ring (None stays None)."""
    finite = jnp.all(flags)
    after = advance(before, finite, updated, config)
    step = after.counters[SKIPPED] + after.counters[APPLIED]
    if counts is not None:
        bad = jnp.logical_not(flags)
        often = counts[HOW_OFTEN]
        counts = jnp.stack(
            [
                jnp.where(jnp.logical_and(bad, often < COUNTER_MAX), often + 1, often),
                jnp.where(jnp.logical_and(bad, often == 0), step, counts[FIRST]),
                jnp.where(bad, step, counts[LAST]),
            ]
        )
    if ring is not None:
        ring = ring.at[step % ring.shape[0]].set(ring_row(before, after, finite, loss, norms))
    return after, counts, ring
