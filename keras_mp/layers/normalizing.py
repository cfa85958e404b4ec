"""Normalization whose arithmetic is float32 and whose memory is the input's: one for all backends.

Keras' layers cast their input to float32 first, so the copy is what the backward pass keeps. Here
the input is kept as it came, with the float32 statistics, and cast again for the gradient.
"""

from typing import Any

import keras
from keras import ops

# What was found: normalized values in the input's dtype; mean and variance in float32.
Result = tuple[Any, Any, Any]


def floating(x: Any) -> Any:
    """Values to normalize: whole numbers, which no policy casts, in float32."""
    dtype = keras.backend.standardize_dtype(x.dtype)
    return x if keras.backend.is_float_dtype(dtype) else ops.cast(x, "float32")


def normalize(
    x: Any,
    gamma: Any,
    beta: Any,
    axes: list[int],
    epsilon: float,
    *,
    mask: Any = None,
    statistics: tuple[Any, Any] | None = None,
    centered: bool = True,
) -> Result:
    """``(x - mean) / sqrt(variance + epsilon) * gamma + beta``, differentiable in x, gamma, beta.

    Args:
        x: Values, of any floating-point dtype.
        gamma: Float32, of x's rank, broadcast against it.
        beta: As gamma.
        axes: The axes that the statistics are taken over; not negative.
        epsilon: Added to the variance.
        mask: Booleans broadcast against x: which values the statistics are of. Defaults to all.
        statistics: Mean and variance, which are constants then, in place of x's own.
        centered: False: the mean is taken to be zero.

    Returns:
        The values, in x's dtype, and mean and variance, with the axes kept, in float32 (float64 for
        a float64 x).
    """
    if keras.backend.backend() == "torch":
        from keras_mp.layers.casting_torch import is_transformed
        from keras_mp.layers.normalizing_torch import Normalize

        rule = _Rule(axes, epsilon, mask, statistics, centered)
        if is_transformed():
            return rule.forward(x, gamma, beta)
        return Normalize.apply(x, gamma, beta, rule, mask, *(statistics or (None, None)))

    # Tensors of the rule come as arguments: jax may ask for the gradient later, when what the
    # function had seen around it means nothing any more.
    masks = () if mask is None else (ops.cast(mask, "float32"),)

    @ops.custom_gradient
    def normalized(x: Any, gamma: Any, beta: Any, *constants: Any) -> Any:
        own = None if mask is None else ops.cast(constants[0], "bool")
        given = constants[len(masks) :] or None
        rule = _Rule(axes, epsilon, own, given, centered)
        out, mean, variance = rule.forward(x, gamma, beta)

        def gradient(*upstream: Any) -> Any:
            # jax hands the gradients of all results over as one, tensorflow each.
            first = upstream[0]
            grad = first[0] if isinstance(first, (tuple, list)) else first
            found = rule.backward(grad, x, gamma, mean, variance)
            return (*found, *(ops.zeros_like(constant) for constant in constants))

        return (out, mean, variance), gradient

    out, mean, variance = normalized(x, gamma, beta, *masks, *(statistics or ()))
    return out, ops.stop_gradient(mean), ops.stop_gradient(variance)


class _Rule:
    """The formula and its derivative, in ``keras.ops``."""

    def __init__(
        self,
        axes: list[int],
        epsilon: float,
        mask: Any,
        statistics: tuple[Any, Any] | None,
        centered: bool,
    ):
        self._axes, self._epsilon, self._centered = axes, epsilon, centered
        self._mask, self._statistics = mask, statistics

    def forward(self, x: Any, gamma: Any, beta: Any) -> Result:
        wide = _wide(x)
        mean, variance = self.statistics(wide)
        scale = ops.rsqrt(variance + self._epsilon) * gamma
        return ops.cast((wide - mean) * scale + beta, x.dtype), mean, variance

    def backward(self, grad: Any, x: Any, gamma: Any, mean: Any, variance: Any) -> tuple:
        """The gradients of x, gamma and beta.

        With g = grad * gamma, n values and xhat the normalized ones, x's own mean and variance give
        ``(g - mean(g) - xhat * mean(g * xhat)) / sqrt(variance + epsilon)``.
        """
        wide, grad = _wide(x), _wide(grad)
        inverse = ops.rsqrt(variance + self._epsilon)
        xhat = (wide - mean) * inverse
        own = [axis for axis in range(len(x.shape)) if gamma.shape[axis] == 1]
        d_gamma = ops.sum(grad * xhat, axis=own, keepdims=True)
        d_beta = ops.sum(grad, axis=own, keepdims=True)
        g = grad * gamma
        if self._statistics is None:
            through = xhat * ops.sum(g * xhat, axis=self._axes, keepdims=True)
            if self._centered:
                through = through + ops.sum(g, axis=self._axes, keepdims=True)
            through = through / self._count(wide)
            g = g - (through if self._mask is None else ops.where(self._mask, through, 0.0))
        return ops.cast(g * inverse, x.dtype), d_gamma, d_beta

    def statistics(self, x: Any) -> tuple[Any, Any]:
        """Mean and variance: x's own, or the given ones."""
        return self._statistics or self._moments(_wide(x))

    def _moments(self, wide: Any) -> tuple[Any, Any]:
        def mean_of(values: Any) -> Any:
            if self._mask is not None:
                values = ops.where(self._mask, values, 0.0)
            return ops.sum(values, axis=self._axes, keepdims=True) / self._count(wide)

        mean = mean_of(wide)
        if not self._centered:
            return ops.zeros_like(mean), mean_of(ops.square(wide))
        return mean, mean_of(ops.square(wide - mean))

    def _count(self, wide: Any) -> Any:
        """How many values a mean is of. Keras adds its epsilon, for a mask that leaves none."""
        if self._mask is not None:
            ones = ops.cast(ops.broadcast_to(self._mask, ops.shape(wide)), wide.dtype)
            return ops.sum(ones, axis=self._axes, keepdims=True) + keras.backend.epsilon()
        shape, count = ops.shape(wide), 1
        for axis in self._axes:
            count = count * shape[axis]
        return ops.cast(count, wide.dtype)


def _wide(x: Any) -> Any:
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
