"""jax: everything as a pure function; ``apply`` outside jit is the same function, assigned back."""

from typing import Any

import jax
from keras import ops

from keras_mp.scaling.device_state import Values
from keras_mp.scaling.kernels.common import OWN, Kernel


class JaxKernel(Kernel):
    def allocate_ring(self, rows: int) -> None:
        pass

    def read_ring(self) -> Any:
        return None

    def apply(self, grads: list[Any], variables: list[Any]) -> None:
        targets = self.optimizer._targets
        if [id(v) for v in variables] != [id(v) for v in targets]:
            by_id = {id(v): g for v, g in zip(variables, grads, strict=True)}
            grads = [by_id.get(id(v)) for v in targets]
        own = [*self.state.variables, *self.inner.variables]  # without the masters
        new_trainable, new_own = self.stateless_apply(
            [v.value for v in own], grads, [v.value for v in targets]
        )
        for variable, value in zip([*targets, *own], [*new_trainable, *new_own], strict=True):
            variable.assign(value)

    def stateless_apply(
        self, optimizer_values: list[Any], grads: list[Any], trainable_values: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        own, inner = Values(*optimizer_values[:OWN]), optimizer_values[OWN:]
        finite = ops.all(ops.stack([ops.all(ops.isfinite(g)) for g in grads if g is not None]))
        inverse = 1.0 / own.scale
        unscaled = [None if g is None else g * inverse.astype(g.dtype) for g in grads]
        index = [v is self.inner._iterations for v in self.inner.variables].index(True)
        new_own = self.advance(own, finite, self.is_update(inner[index]))

        def step() -> Any:
            trainable, new_inner = self.inner.stateless_apply(inner, unscaled, trainable_values)
            return list(trainable), list(new_inner)

        trainable, inner = jax.lax.cond(finite, step, lambda: (list(trainable_values), list(inner)))
        return trainable, [*new_own, *inner]
