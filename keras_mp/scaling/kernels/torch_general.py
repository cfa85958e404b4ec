"""torch, any Keras optimizer: unscale and check in two operators, one host read, step or skip."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from keras_mp.scaling.kernels import torch_ops
from keras_mp.scaling.kernels.common import half_dtype
from keras_mp.scaling.kernels.torch_ops import dense

HALF = (torch.float16, torch.bfloat16)


def unscale_and_check(
    grads: list[Any], scale: Any, found: Any, agree: Callable[[Any], None], variables: list[Any]
) -> tuple[list[Any], bool]:
    """Gradients divided by the scale, and whether all of them are finite (one host read).

    Args:
        grads: Any floating dtype, dense or sparse; None where there is none. They stay as they are.
        scale: float32, shape (). found: float32, shape (), 0 on entry; 1 on return if not finite.
        agree: Makes all processes see the same ``found``.
        variables: Those whose gradients these are.

    Returns:
        (unscaled, finite). Half-precision gradients are unscaled in float32, where the quotient
        does not underflow, and then rounded back where the variable is in half precision too.
    """
    grads = widened(grads, variables)
    unscaled: list[Any] = list(grads)
    groups: dict[Any, list[int]] = defaultdict(list)
    for i, grad in enumerate(grads):
        if grad is not None:
            groups[(grad.dtype, grad.device, grad.layout)].append(i)
    for (dtype, device, layout), members in groups.items():
        tensors = [grads[i] for i in members]
        if dtype in HALF:
            tensors = [t.float() for t in tensors]
        if layout == torch.strided:
            quotients = list(torch._foreach_div(tensors, scale.to(device)))
        else:
            quotients = [t.coalesce() / scale.to(t.dtype) for t in tensors]
        if dtype in HALF:
            quotients = [q.to(dtype) for q in quotients]
        # As the optimizer gets them: with a scale below 1 they may be too large for their dtype.
        _check([dense(q) for q in quotients], found)
        for i, quotient in zip(members, quotients, strict=True):
            unscaled[i] = quotient
    agree(found)
    return unscaled, found.item() == 0


def widened(grads: list[Any], variables: list[Any]) -> list[Any]:
    """The gradients, in float32 where they are in half precision and their variable is not."""
    return [
        g.float() if g is not None and g.dtype in HALF and half_dtype(v) is None else g
        for g, v in zip(grads, variables, strict=True)
    ]


def _check(tensors: list[Any], found: Any) -> None:
    """Set ``found`` to 1 where one is not finite."""
    device = tensors[0].device
    one = _ONES.get(device)
    if one is None:
        one = _ONES[device] = torch.ones((), dtype=torch.float32, device=device)
    real = not tensors[0].is_complex()
    if real and device == found.device and "check" in torch_ops.probe(device):
        torch_ops.check_and_unscale_(tensors, found, one)
    else:
        torch_ops.check_public(tensors, found)


_ONES: dict[Any, Any] = {}
