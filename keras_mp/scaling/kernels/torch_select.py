"""torch under ``torch.compile``: step, then select the new or the old value of everything.

No branch on the flag and no host read, so no graph break: the compiler fuses the selections into
the update.
"""

from typing import Any

import torch
from keras import ops

from keras_mp.scaling.device_state import Values


def select_apply(kernel: Any, grads: list[Any], variables: list[Any]) -> Any:
    """Apply a step by selection. Returns the flag: bool tensor, shape ()."""
    state, inner = kernel.state, kernel.inner
    before = Values(*(v.value.clone() for v in state.variables))
    finite = torch.ones((), dtype=torch.bool, device=before.scale.device)
    unscaled: list[Any] = []
    for grad in grads:
        if grad is not None:
            grad = grad / before.scale.to(grad.dtype)
            flag = torch.isfinite(grad).all()
            finite = torch.logical_and(finite, flag)
        unscaled.append(grad)
    updated = kernel.is_update(inner._iterations.value)
    touched = [v.value for v in (*variables, *inner.variables)]
    saved = [t.clone() for t in touched]
    inner.apply(unscaled, variables)
    for tensor, old in zip(touched, saved, strict=True):
        tensor.copy_(torch.where(finite, tensor, old))
    after = kernel.advance(before, finite, ops.convert_to_tensor(updated))
    for variable, value in zip(state.variables, after, strict=True):
        variable.value.copy_(value)
    return finite
