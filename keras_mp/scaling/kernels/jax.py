"""jax: a pure function of values; one cond under jit, a Python branch outside it.

What the device remembers (the ring, the overflows of each variable) are variables of the optimizer,
because Keras' trainer hands a step only those; they are no part of checkpoints.
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import ops

from keras_mp._keras_internals import raw_iterations
from keras_mp.scaling.device_state import (
    APPLIED,
    SKIPPED,
    Values,
)
from keras_mp.scaling.kernels.common import OWN, Kernel, half_dtype
from keras_mp.scaling.kernels.jax_graph import ModelDistances
from keras_mp.scaling.kernels.jax_ops import (
    LAST,
    LOSS_FINITE,
    choose,
    overflowed,
    record,
    unscale_and_check,
)
from keras_mp.scaling.kernels.jax_told import JaxTold
from keras_mp.scaling.ring import COLUMNS


class JaxKernel(Kernel):
    """See the module.

    Attributes:
        counts: int32, [4, variables]: overflows of each variable, the first and the last step of
            them, and whether the loss of the last was finite (-1: not seen); None with attribution
            off.
        ring: float32, [rows, columns], the last steps; None until it is asked for.
        largest: float32, [variables], of each scaled gradient; None until it is asked for.
    """

    def __init__(self, optimizer: Any):
        super().__init__(optimizer)
        self.counts: Any = None
        self.ring: Any = None
        self.largest: Any = None
        self.headroom_every = 0
        self.model_distances = ModelDistances(optimizer)
        self.told = JaxTold(self)
        if optimizer.attribution:
            empty = np.zeros((4, len(optimizer._trainable_variables)), np.int32)
            self.counts = self._variable("overflow_counts", empty)

    @property
    def carried(self) -> list[Any]:
        return [v for v in (self.counts, self.ring, self.largest) if v is not None]

    def allocate_ring(self, rows: int) -> None:
        if self.ring is None or self.ring.shape[0] < rows:
            columns = COLUMNS + (len(self.counts[0]) if self.counts is not None else 0)
            self.ring = self._variable("ring", np.zeros((rows, columns), np.float32))

    def read_ring(self) -> Any:
        if self.ring is None:
            return None
        self.look()
        return np.asarray(self.ring.value)

    def measure_headroom(self, every: int) -> None:
        self.headroom_every = every
        if self.largest is None:
            empty = np.full(len(self.optimizer._trainable_variables), np.nan, np.float32)
            self.largest = self._variable("largest_gradients", empty)

    def largest_gradients(self) -> np.ndarray | None:
        return None if self.largest is None else np.asarray(self.largest.value)

    def overflow_counts(self) -> np.ndarray:
        self.look()
        return self.overflows

    def look(self) -> None:
        self.told.raise_what_ended_a_step()
        try:
            values = [v.value for v in (*self.state.variables, *self.carried)]
        except TypeError:
            # Keras takes the values out of variables during a fit; one that failed left them out.
            return
        if any(getattr(value, "is_deleted", bool)() for value in values):
            return  # given away to a step that failed
        self._look_at(Values(*values[:OWN]), values[OWN:])

    def look_at(self, optimizer_values: list[Any]) -> None:
        """``look`` at the values that a compiled step returned. Waits for the step."""
        start = OWN + len(self.inner.variables)
        carried = optimizer_values[start : start + len(self.carried)]
        self._look_at(Values(*optimizer_values[:OWN]), carried)

    def _look_at(self, own: Values, carried: list[Any]) -> None:
        if self.counts is not None:
            counts = np.asarray(carried[0], np.int64)
            self.overflows = counts[: LAST + 1]
            last = counts[LAST].max(initial=0)
            if last:
                nonfinite = np.flatnonzero(counts[LAST] == last)
                seen = int(counts[LOSS_FINITE, nonfinite[0]])
                self.last_overflow = overflowed(last, nonfinite, None if seen < 0 else bool(seen))
        self.told.tell(own.scale, own.limits, own.counters)

    def part_from_averages(self, variables: list[Any]) -> None:
        # Keras assigns the array itself, and the next fit would give it away twice.
        for variable in variables:
            variable.assign(jnp.copy(variable.value))

    def distances(self) -> dict[int, int]:
        return self.model_distances.get()

    def _layer_to_blame(self) -> str | None:
        # Nothing may be traced while the device waits for Python: the layer is then named later.
        if self.told.inside_a_step and not self.model_distances.found:
            return None
        return super()._layer_to_blame()

    def bind(self, binding: Any, protected: list[Any]) -> None:
        from keras_mp.scaling.jax_training import GuardedTrainStep

        model = binding.model
        if not protected or isinstance(model, GuardedTrainStep):
            return
        warnings.warn(
            f"Keras' train step for jax updates {len(protected)} non-trainable variables of the "
            f"model {model.name!r} (such as {protected[0].path!r}) on skipped steps too: one "
            "overflow makes them NaN. Derive the model's class from keras_mp.GuardedTrainStep, as "
            "in `class Net(keras_mp.GuardedTrainStep, keras.Model)`; a training loop of your own "
            "finds the choice in keras_mp.scaling.jax_training.",
            stacklevel=4,
        )

    # The step.

    def is_tracing(self) -> bool:
        return isinstance(ops.convert_to_tensor(self.state.scale), jax.core.Tracer)

    def current_scale(self) -> Any:
        self._refuse_a_constant()
        return super().current_scale()

    def _refuse_a_constant(self) -> None:
        """Not under ``jax.grad`` alone, where what is known stays known: an operation tells."""
        if (
            self.config.dynamic
            and not self.is_tracing()
            and isinstance(self.state.scale.value + 0, jax.core.Tracer)
            and not self.state.is_switched_off
        ):
            raise ValueError(
                "The loss scale of now would become a constant of the function that is being "
                "compiled (jax.jit, jax.checkpoint, jax.lax.scan): later steps would be scaled by "
                "it and unscaled by another. Hand the optimizer's values to that function, and "
                "scale inside `with keras.StatelessScope(state_mapping=list(zip("
                "optimizer.variables, optimizer_values))):`. "
                f"Received: loss_scale={float(self.state.scale.value)}, outside of the trace"
            )

    def scale_loss(self, loss: Any) -> Any:
        self._refuse_a_constant()
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
        spread = unscaled
        if len(order) != count or not np.array_equal(order, np.arange(count)):
            spread = [None] * count
            for position, grad in zip(order, unscaled, strict=True):
                spread[position] = grad
            flags = jnp.ones(count, bool).at[order].set(flags)
            norms = None if norms is None else jnp.zeros(count, jnp.float32).at[order].set(norms)
        own = [*self.state.variables, *self.carried]
        after, carried = self._record(
            before, flags, norms, loss, updated, [v.value for v in self.carried], spread
        )
        for variable, value in zip(own, [*after, *carried], strict=True):
            variable.assign(value)
        if not finite:
            self.told.tell(before.scale, before.limits, after.counters, flags)

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
            before, flags, norms, loss, self.is_update(iterations), carried, unscaled
        )

        def step() -> tuple[list[Any], list[Any]]:
            new, new_inner = self.inner.stateless_apply(inner, unscaled, trainable_values)
            return list(new), list(new_inner)

        def skip() -> tuple[list[Any], list[Any]]:
            return list(trainable_values), inner

        trainable, inner = choose(finite, step, skip)
        if traced:
            self.told.from_the_device(before, after, flags)
        elif not finite:
            self.told.tell(before.scale, before.limits, after.counters, flags)
        return trainable, [*after, *inner, *carried]

    def _check(self, grads: list[Any], variables: list[Any], scale: Any) -> tuple[Any, Any, Any]:
        """(gradients / scale, a finite flag each, a norm each where the ring keeps it)."""
        if all(g is None for g in grads):
            raise ValueError("No gradients provided for any variable.")
        overwrites = tuple(getattr(v, "overwrite_with_gradient", False) for v in variables)
        halves = tuple(half_dtype(v) for v in variables)
        with_norms = self.ring is not None and self.counts is not None
        return unscale_and_check(list(grads), scale, overwrites, halves, with_norms)

    def _record(
        self,
        before: Values,
        flags: Any,
        norms: Any,
        loss: Any,
        updated: Any,
        carried: list[Any],
        grads: list[Any],
    ) -> tuple[Values, list[Any]]:
        counts = carried.pop(0) if self.counts is not None else None
        ring = carried.pop(0) if self.ring is not None else None
        largest = carried.pop(0) if self.largest is not None else None
        after, counts, ring = record(before, flags, norms, loss, updated, counts, ring, self.config)
        if largest is not None:
            step = after.counters[SKIPPED] + after.counters[APPLIED]
            due = step % self.headroom_every == 0
            largest = jax.lax.cond(due, lambda: self._sizes(grads, before.scale), lambda: largest)
        return after, [x for x in (counts, ring, largest) if x is not None]

    def _sizes(self, grads: list[Any], scale: Any) -> Any:
        """Largest magnitude of each scaled gradient, from unscaled ones; 0 where there is none."""
        zero = jnp.zeros((), jnp.float32)
        sizes = [zero if g is None else jnp.max(jnp.abs(g)).astype(jnp.float32) for g in grads]
        return jnp.stack(sizes) * scale

    def _variable(self, name: str, value: np.ndarray) -> Any:
        with keras.name_scope(self.optimizer.name, caller=self.optimizer):
            return keras.Variable(value, dtype=value.dtype.name, trainable=False, name=name)
