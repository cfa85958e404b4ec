"""Normalization on torch: the formula as an autograd function, and torch's own fused ones."""

from typing import Any

import torch
from torch.nn import functional

# Where torch's fused batch norm is known to take a half-precision input with float32 parameters.
_FUSED_BATCH_NORM = ("cpu", "cuda")
# Its fused layer norm takes them on the CPU alone.
_FUSED_LAYER_NORM = ("cpu",)


class Normalize(torch.autograd.Function):
    """``normalizing.normalize``: keeps the input in its own dtype."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, gamma: Any, beta: Any, rule: Any, mask: Any, mean: Any, variance: Any
    ) -> tuple:
        out, mean, variance = rule.forward(x, gamma, beta)
        # The rule has the mask too, but what is not saved this way autograd cannot account for.
        ctx.save_for_backward(x, gamma, mean, variance, mask)
        ctx.rule = rule
        ctx.mark_non_differentiable(mean, variance)
        return out, mean, variance

    @staticmethod
    def backward(ctx: Any, grad: Any, *_: Any) -> tuple:
        x, gamma, mean, variance, _ = ctx.saved_tensors
        if torch.is_grad_enabled():  # for the gradient's own gradient, which x's statistics are of
            mean, variance = ctx.rule.statistics(x)
        d_x, d_gamma, d_beta = ctx.rule.backward(grad, x, gamma, mean, variance)
        return d_x, d_gamma, d_beta, None, None, None, None


def fused_batch_norm(
    x: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    axis: int,
    epsilon: float,
    statistics: tuple[torch.Tensor, torch.Tensor] | None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None] | None:
    """Batch norm by torch's own operator; None where it cannot be used.

    Args:
        x: Values; ``axis`` (not negative) is their channels' axis.
        gamma, beta: Float32, a number a channel.
        statistics: Mean and variance to use; None for x's own.

    Returns:
        The values in x's dtype, and x's mean and variance in float32, a number a channel; those are
        None where ``statistics`` were given.
    """
    channels = x.shape[axis]
    count = x.numel() // max(channels, 1)
    if x.device.type not in _FUSED_BATCH_NORM or count < 2 or x.dtype == torch.float64:
        return None
    shape = x.shape
    if x.ndim != 4 and axis == x.ndim - 1:  # rows of channels: an image one pixel high
        x = x.reshape(1, 1, -1, channels)
        axis = 3
    x = x.movedim(axis, 1)  # a view: NHWC becomes torch's channels_last
    if statistics is not None:
        mean, variance = statistics
        out = functional.batch_norm(x, mean, variance, gamma, beta, False, 0.0, epsilon)
        return out.movedim(1, axis).reshape(shape), None, None
    # With momentum 1 the running statistics become the batch's own.
    mean, variance = torch.zeros_like(gamma), torch.zeros_like(gamma)
    out = functional.batch_norm(x, mean, variance, gamma, beta, True, 1.0, epsilon)
    variance = variance * ((count - 1) / count)  # torch's divides by one less
    return out.movedim(1, axis).reshape(shape), mean, variance


def fused_layer_norm(
    x: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    epsilon: float,
) -> torch.Tensor | None:
    """Layer norm over gamma's axes, the last ones, by torch's own operator; None where it cannot.

    Args:
        gamma, beta: Float32, of the shape of x's last axes.
    """
    if x.device.type not in _FUSED_LAYER_NORM or x.dtype == torch.float64:
        return None
    return functional.layer_norm(x, gamma.shape, gamma, beta, epsilon)
