"""The private torch operators that the kernels use, in one place, each tried before it is used.

They are what ``torch.amp.GradScaler`` and ``torch.optim`` run on. ``probe`` calls each once on the
device: an operator that is missing, or refuses, is left out and the caller takes a path on torch's
public API.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

# Adam's bias correction is computed outside (Keras puts epsilon outside of it): with a step count
# this large the operator's own correction is exactly 1 in float32.
_NO_BIAS_CORRECTION = 1e9


def check_and_unscale_(tensors: list[Any], found: Any, inverse: Any) -> None:
    """Multiply in place by ``inverse``; set ``found`` to 1 where anything was not finite.

    Args:
        tensors: Of one device and dtype. found, inverse: float32, one element each.
    """
    torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, inverse)


def check_public(tensors: list[Any], found: Any) -> None:
    """The check of ``check_and_unscale_`` on torch's public API: several operators a tensor."""
    for tensor in tensors:
        bad = (~torch.isfinite(tensor)).any().to(device=found.device, dtype=found.dtype)
        torch.maximum(found, bad, out=found)


def update_scale_(
    scale: Any, tracker: Any, found: Any, growth: float, backoff: float, interval: int
) -> None:
    """torch's scale update; ``tracker`` (int32) counts clean steps. Refuses to grow to infinity."""
    torch._amp_update_scale_(scale, tracker, found, growth, backoff, interval)


def fused_adam_(
    parameters: list[Any],
    gradients: list[Any],
    momentums: list[Any],
    velocities: list[Any],
    steps: list[Any],
    *,
    rate: Any,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    decay: float = 0.0,
    grad_scale: Any,
    found: Any,
) -> None:
    """One Adam update of all tensors, nothing where ``found`` is 1.

    Args:
        steps: From ``adam_steps``. rate: float32 scalar tensor, bias correction included.
        decay: The parameters are multiplied by 1 - rate * decay first.
        grad_scale: Divides the gradients, in place; or None.
        found: float32, one element.
    """
    step = torch._fused_adamw_ if decay else torch._fused_adam_
    step(
        parameters,
        gradients,
        momentums,
        velocities,
        [],
        steps,
        lr=rate,
        beta1=beta_1,
        beta2=beta_2,
        weight_decay=decay,
        eps=epsilon,
        amsgrad=False,
        maximize=False,
        grad_scale=grad_scale,
        found_inf=found,
    )


def adam_steps(count: int, device: Any) -> list[Any]:
    """The step counts that switch the operator's own bias correction off: one shared tensor."""
    step = torch.full((), _NO_BIAS_CORRECTION, dtype=torch.float32, device=device)
    return [step] * count


def fused_sgd_(
    parameters: list[Any],
    gradients: list[Any],
    momentums: list[Any],
    *,
    momentum: float,
    nesterov: bool,
    grad_scale: Any,
    found: Any,
) -> None:
    """velocity = momentum * velocity + g / grad_scale; p += velocity (Keras' convention, in which
    the velocity carries the learning rate: grad_scale = -scale / learning_rate).

    Writes g / grad_scale to ``gradients``. Nothing happens where ``found`` is 1.
    """
    torch._fused_sgd_(
        parameters,
        gradients,
        momentums,
        weight_decay=0.0,
        momentum=momentum,
        lr=-1.0,
        dampening=0.0,
        nesterov=nesterov,
        maximize=False,
        is_first_step=False,
        grad_scale=grad_scale,
        found_inf=found,
    )


def dense(gradient: Any) -> Any:
    """A gradient's numbers: of a sparse one those that it stores, each place once."""
    return gradient if gradient.layout is torch.strided else gradient.coalesce()._values()


def norms(grads: list[Any], order: float) -> list[Any]:
    """Norm of each gradient, of any layout, by one operator; 0 where there is none.

    Args: order: 2.0, or infinity for the largest magnitude.
    """
    present = [dense(g) for g in grads if g is not None]
    measured = torch._foreach_norm(present, order) if present else ()
    if len(measured) == len(grads):
        return list(measured)
    following = iter(measured)
    zero = torch.zeros_like(measured[0]) if measured else torch.zeros((), dtype=torch.float32)
    return [zero if grad is None else next(following) for grad in grads]


@functools.cache
def probe(device: torch.device) -> frozenset[str]:
    """Names of the operators above that work on a device, by trying each on two small tensors."""
    ones = functools.partial(torch.ones, dtype=torch.float32, device=device)

    def check() -> bool:
        tensors, found = [ones(2), ones(3) * float("inf")], ones(()) * 0
        check_and_unscale_(tensors, found, ones(()) / 2)
        return bool(found == 1 and (tensors[0] == 0.5).all())

    def scale() -> bool:
        value, tracker = ones(()), torch.zeros((), dtype=torch.int32, device=device)
        update_scale_(value, tracker, ones(()) * 0, 2.0, 0.5, 1)
        return bool(value == 2 and tracker == 0)

    def adam() -> bool:
        works = True
        # p = 1 - decay - 0.5 / sqrt(0.25), m = 0.5, v = 0.25, or nothing at all
        for flag, decay, p_end in ((0.0, 0.5, -0.5), (0.0, 0.0, 0.0), (1.0, 0.5, 1.0)):
            p, m, v = [ones(2)], [ones(2) * 0], [ones(2) * 0]
            fused_adam_(
                p,
                [ones(2)],
                m,
                v,
                adam_steps(1, device),
                rate=ones(()),
                beta_1=0.5,
                beta_2=0.75,
                epsilon=0.0,
                decay=decay,
                grad_scale=None,
                found=ones(()) * flag,
            )
            expected = (p_end, *((0.5, 0.25) if flag == 0 else (0.0, 0.0)))
            works &= all(bool((t[0] == e).all()) for t, e in zip((p, m, v), expected, strict=True))
        return works

    def sgd() -> bool:
        works = True
        for flag, expected in ((0.0, (3.0, 2.0)), (1.0, (1.0, 2.0))):
            p, b = [ones(2)], [ones(2) * 2]
            fused_sgd_(
                p,
                [ones(2) * 4],
                b,
                momentum=0.5,
                nesterov=False,
                grad_scale=ones(()) * 4,
                found=ones(()) * flag,
            )
            works &= bool((p[0] == expected[0]).all() and (b[0] == expected[1]).all())
        return works

    tries = {"check": check, "scale": scale, "adam": adam, "sgd": sgd}
    return frozenset(name for name, attempt in tries.items() if _works(attempt))


def _works(attempt: Callable[[], bool]) -> bool:
    try:
        with torch.no_grad():
            return attempt()
    except (AttributeError, TypeError, RuntimeError, NotImplementedError):
        return False
