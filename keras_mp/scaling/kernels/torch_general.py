"""torch, any Keras optimizer: one multi-tensor check and unscale, one host read, step or skip."""

from typing import Any

import torch

from keras_mp.scaling.device_state import Values
from keras_mp.scaling.kernels.common import OWN, Kernel


class TorchGeneralKernel(Kernel):
    def apply(self, grads: list[Any], variables: list[Any]) -> None:
        with torch.no_grad():
            values = Values(*(v.value for v in self.state.variables))
            unscaled, finite = _unscale(grads, values.scale)
            updated = self.is_update(self.inner._iterations.value)
            if finite:
                self.inner.apply(unscaled, variables)
            device = values.scale.device
            self.state.assign(self.advance(values, torch.tensor(finite, device=device), updated))

    def stateless_apply(
        self, optimizer_values: list[Any], grads: list[Any], trainable_values: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        with torch.no_grad():
            own, inner = Values(*optimizer_values[:OWN]), optimizer_values[OWN:]
            unscaled, finite = _unscale(grads, own.scale)
            index = [v is self.inner._iterations for v in self.inner.variables].index(True)
            updated = self.is_update(inner[index])
            new_own = self.advance(own, torch.tensor(finite, device=own.scale.device), updated)
            if finite:
                # Keras' multi-tensor updates write in place: into copies, not the caller's tensors.
                trainable_values, inner = self.inner.stateless_apply(
                    [t.clone() for t in inner], unscaled, [t.clone() for t in trainable_values]
                )
            return list(trainable_values), [*new_own, *inner]


def _unscale(grads: list[Any], scale: Any) -> tuple[list[Any], bool]:
    """(gradients / scale, whether all were finite); the gradients themselves stay as they are."""
    present = [g for g in grads if g is not None]
    found = torch.zeros((), dtype=torch.float32, device=scale.device)
    out = iter(torch._foreach_mul(present, 1.0))
    copies = [None if g is None else next(out) for g in grads]
    torch._amp_foreach_non_finite_check_and_unscale_(
        [c for c in copies if c is not None], found, scale.reciprocal()
    )
    return copies, found.item() == 0
