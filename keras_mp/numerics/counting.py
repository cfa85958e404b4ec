"""Histograms of tensors where they lie: on the device, with two host reads for any number of them.

The exponent of a float32 is eight of its bits: shifted out and counted, no logarithm. Subnormal
float32 numbers (below 2**-126) fall into one bin, 2**-127.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_mp.numerics.histogram import Histogram

_FIELDS, _BIAS, _MANTISSA_BITS = 256, 127, 23


def counted(tensors: Sequence[tuple[Any, float]]) -> list[tuple[Histogram, float]]:
    """(histogram, L2 norm) of each tensor divided by its divisor.

    Args:
        tensors: (tensor of any float dtype and shape, divisor). A divisor that is a power of two
            divides exactly.

    Returns:
        One entry a tensor. The norm leaves non-finite values out.
    """
    if not tensors:
        return []
    parts = [_count(tensor, divisor) for tensor, divisor in tensors]
    counts = np.asarray(ops.convert_to_numpy(ops.stack([c for c, _ in parts])))
    measures = np.asarray(ops.convert_to_numpy(ops.stack([m for _, m in parts])), np.float64)
    return [_decoded(c, m) for c, m in zip(counts, measures, strict=True)]


def zeros(tensor: Any) -> Any:
    """Where a tensor is zero: a bool tensor, a byte a value."""
    return ops.equal(tensor, ops.cast(0, tensor.dtype))


def underflows(own_zeros: Any, twin: Any) -> Any:
    """How many values are zero in the own pass and not in the twin's; a scalar on the device."""
    lost = ops.logical_and(own_zeros, ops.logical_not(zeros(twin)))
    return ops.sum(ops.cast(lost, "int32"))


def _count(tensor: Any, divisor: float) -> tuple[Any, Any]:
    flat = ops.cast(ops.reshape(tensor, (-1,)), "float32")
    if flat.shape[0] == 0:
        return ops.zeros((_FIELDS + 2,), "int32"), ops.zeros((2,), "float32")
    size = ops.abs(flat)
    if divisor != 1.0:
        size = size / divisor
    fields = ops.right_shift(ops.view(size, "int32"), _MANTISSA_BITS)
    counts = ops.cast(ops.bincount(fields, minlength=_FIELDS), "int32")
    zero = ops.sum(ops.cast(ops.equal(size, 0.0), "int32"))
    nan = ops.sum(ops.cast(ops.isnan(size), "int32"))
    finite = ops.where(ops.isfinite(size), size, ops.zeros_like(size))
    largest = ops.max(finite)
    # Relative to the largest: squares of small gradients would leave float32.
    unit = ops.where(largest > 0, largest, ops.ones_like(largest))
    relative = ops.sqrt(ops.sum(ops.square(finite / unit)))
    return (
        ops.concatenate([counts, ops.reshape(zero, (1,)), ops.reshape(nan, (1,))]),
        ops.stack([largest, relative]),
    )


def _decoded(counts: np.ndarray, measures: np.ndarray) -> tuple[Histogram, float]:
    zero, nan = int(counts[_FIELDS]), int(counts[_FIELDS + 1])
    bins = counts[:_FIELDS].copy()
    bins[0] -= zero
    infinities = int(bins[_FIELDS - 1]) - nan
    exponents = {int(i) - _BIAS: int(bins[i]) for i in np.flatnonzero(bins[: _FIELDS - 1])}
    largest, relative = float(measures[0]), float(measures[1])
    return Histogram(exponents, zero, infinities, nan, largest), largest * relative
