"""torch under ``torch.compile``: step, then select the new or the old value of everything.

No branch on the flag and no host read, so no graph break: the compiler fuses the selections into
the update.
"""

from typing import Any

import torch
from keras import ops

from keras_mp import _keras_internals
from keras_mp.scaling.device_state import Values
from keras_mp.scaling.kernels.common import keep_overwrites
from keras_mp.scaling.kernels.torch_distributed import agree_compiled, several
from keras_mp.scaling.kernels.torch_general import HALF, widened


def select_apply(kernel: Any, grads: list[Any], variables: list[Any]) -> None:
    """Apply a step by selection; grads and variables as for ``Kernel.apply``."""
    state, inner = kernel.state, kernel.inner
    before = Values(*(v.value.clone() for v in state.variables))
    finite = torch.ones((), dtype=torch.bool, device=before.scale.device)
    unscaled: list[Any] = []
    for grad in widened(grads, variables):
        if grad is not None:
            dtype = grad.dtype
            grad = ((grad.float() if dtype in HALF else grad) / before.scale).to(dtype)
            finite = torch.logical_and(finite, torch.isfinite(grad).all())
        unscaled.append(grad)
    if several():
        found = torch.logical_not(finite).float()
        agree_compiled(found)
        finite = found == 0
    unscaled = keep_overwrites(unscaled, grads, variables)
    updated = kernel.is_update(_keras_internals.raw_iterations(inner).value)
    touched = [v.value for v in (*variables, *inner.variables)]
    saved = [t.clone() for t in touched]
    whole = len(variables) == len(kernel.variables) and all(g is not None for g in grads)
    if kernel.plain_sgd and whole:
        _sgd(kernel.optimizer, unscaled, variables)
    else:
        inner.apply(unscaled, variables)
    for tensor, old in zip(touched, saved, strict=True):
        tensor.copy_(torch.where(finite, tensor, old))
    after = kernel.advance(before, finite, ops.convert_to_tensor(updated))
    for variable, value in zip(state.variables, after, strict=True):
        variable.value.copy_(value)
    if kernel.guard is not None:
        kernel.guard.settle(finite)
    if kernel.ring is not None:
        norms = torch.stack(
            [torch.zeros_like(before.scale) if g is None else _norm(g) for g in grads]
        )
        kernel.ring.write_compiled(before, after, finite, kernel.loss, norms)


def _norm(grad: Any) -> Any:
    return torch.linalg.vector_norm(grad, dtype=torch.float32)


def _sgd(optimizer: Any, grads: list[Any], variables: list[Any]) -> None:
    """Keras' SGD without options. Its own step hands the learning rate over as a number, which
    reads it from the device and breaks the graph."""
    inner = optimizer.inner_optimizer
    rate = ops.convert_to_tensor(inner.learning_rate, dtype="float32")
    slots = _keras_internals.sgd_slots(inner)
    for grad, variable in zip(grads, variables, strict=True):
        weight, step = variable.value, grad * -rate
        if inner.weight_decay is not None and _keras_internals.uses_weight_decay(inner, variable):
            weight.mul_(1 - inner.weight_decay * rate)
        if slots:
            velocity = slots[optimizer._get_variable_index(variable)].value
            velocity.mul_(inner.momentum).add_(step)
            step = step + velocity * inner.momentum if inner.nesterov else velocity
        weight.add_(step)
    _keras_internals.raw_iterations(inner).value.add_(1)
