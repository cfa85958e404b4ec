"""torch, any Keras optimizer: one multi-tensor check and unscale, one host read, step or skip."""

from typing import Any

import torch

from keras_mp.scaling.device_state import APPLIED, SKIPPED, Values, ring_row
from keras_mp.scaling.kernels.common import OWN, Kernel
from keras_mp.scaling.ring import COLUMNS


class TorchGeneralKernel(Kernel):
    def __init__(self, optimizer: Any):
        super().__init__(optimizer)
        self.ring: Any = None

    def allocate_ring(self, rows: int) -> None:
        if self.ring is None or len(self.ring) < rows:
            columns = COLUMNS + len(self.optimizer._trainable_variables)
            self.ring = torch.zeros(
                (rows, columns), dtype=torch.float32, device=self.state.scale.value.device
            )

    def read_ring(self) -> Any:
        return None if self.ring is None else self.ring.cpu().numpy()

    def apply(self, grads: list[Any], variables: list[Any]) -> None:
        with torch.no_grad():
            before = Values(*(v.value for v in self.state.variables))
            before = before._replace(scale=before.scale.clone())
            unscaled, finite = _unscale(grads, before.scale)
            updated = self.is_update(self.inner._iterations.value)
            if finite:
                self.inner.apply(unscaled, variables)
            flag = torch.tensor(finite, device=before.scale.device)
            after = self.advance(before, flag, updated)
            self.state.assign(after)
            if self.ring is not None:
                norms = self._norms(grads, variables)
                row = ring_row(before, after, flag, self.loss, norms)
                step = int(after.counters[SKIPPED] + after.counters[APPLIED])
                self.ring[step % len(self.ring)] = row.detach()
            self.loss = None

    def _norms(self, grads: list[Any], variables: list[Any]) -> Any:
        """Norm of each variable's scaled gradient, in the order of the optimizer's variables."""
        out = torch.zeros(self.ring.shape[1] - COLUMNS, device=self.ring.device)
        index = self.optimizer._get_variable_index
        for grad, variable in zip(grads, variables, strict=True):
            if grad is not None:
                out[index(variable)] = torch.linalg.vector_norm(grad, dtype=torch.float32)
        return out

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
