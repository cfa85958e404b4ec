"""How the magnitudes of a tensor lie in a number format: exponents, and what becomes of them.

    h = exponent_histogram(gradients)                 # counts by floor(log2 |x|)
    shares(h, "float16", scale=1024.0).lost           # share that float16 makes zero at that scale

NumPy-only. A histogram is made once; shares at any scale and in any format follow from it, because
a scale that is a power of two only shifts the exponents (Micikevicius et al. 2018, figure 3).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from keras_mp.numerics.formats import Format, get_format, round_to

# "Near overflow": in this many topmost powers of two of the format. A loss scale that grows twice,
# or gradients that quadruple, overflow from there.
NEAR_POWERS = 2


@dataclass(frozen=True)
class Histogram:
    """Counts of a tensor's values.

    Attributes:
        exponents: floor(log2 |x|) -> how many finite, non-zero values have it.
        zeros, infinities, nans: The rest.
        largest: The largest finite magnitude; 0 if there is none, None if it was not kept.
    """

    exponents: Mapping[int, int] = field(default_factory=dict)
    zeros: int = 0
    infinities: int = 0
    nans: int = 0
    largest: float | None = None

    @property
    def total(self) -> int:
        return sum(self.exponents.values()) + self.zeros + self.infinities + self.nans

    def __add__(self, other: "Histogram") -> "Histogram":
        """Both together."""
        counts = dict(self.exponents)
        for exponent, count in other.exponents.items():
            counts[exponent] = counts.get(exponent, 0) + count
        known = self.largest is not None and other.largest is not None
        return Histogram(
            dict(sorted(counts.items())),
            self.zeros + other.zeros,
            self.infinities + other.infinities,
            self.nans + other.nans,
            max(self.largest or 0.0, other.largest or 0.0) if known else None,
        )


@dataclass(frozen=True)
class Shares:
    """What becomes of a tensor's values in a format at a scale; each 0 to 1, their sum 1.

    Attributes:
        zero: Zero already, before any rounding.
        lost: Not zero, but too small: rounded to zero (float16: below 2**-25).
        subnormal: Kept with fewer bits than the format has.
        normal: Kept in full, with room above.
        near: Kept in full, in the two topmost powers of two (float16: from 2**14 on).
        overflow: Infinite, before or after rounding. nan: NaN before.
    """

    zero: float = 0.0
    lost: float = 0.0
    subnormal: float = 0.0
    normal: float = 0.0
    near: float = 0.0
    overflow: float = 0.0
    nan: float = 0.0

    @property
    def lost_of_nonzero(self) -> float:
        """Share of the values that were not zero which become zero; 0 if there are none."""
        nonzero = 1.0 - self.zero
        return self.lost / nonzero if nonzero > 0 else 0.0


def exponent_histogram(x: Any) -> Histogram:
    """Count the magnitudes of ``x`` (any float dtype, any shape; integers count as float64)."""
    values = np.asarray(x)
    if values.dtype not in (np.float32, np.float64):
        # bfloat16 and float8 arrays (ml_dtypes) as much as float16: all fit in float32.
        is_integer = np.issubdtype(values.dtype, np.integer) or values.dtype == np.bool_
        values = values.astype(np.float64 if is_integer else np.float32)
    magnitudes = np.abs(values.reshape(-1))
    finite = np.isfinite(magnitudes)
    nans = int(np.isnan(magnitudes).sum())
    infinities = int(magnitudes.size - finite.sum()) - nans
    kept = magnitudes if nans == infinities == 0 else magnitudes[finite]
    nonzero = kept[kept > 0]
    counts: dict[int, int] = {}
    if nonzero.size:
        exponents = np.frexp(nonzero)[1] - 1
        lowest = int(exponents.min())
        for offset, count in enumerate(np.bincount(exponents - lowest)):
            if count:
                counts[lowest + offset] = int(count)
    largest = float(nonzero.max()) if nonzero.size else 0.0
    return Histogram(counts, int(kept.size - nonzero.size), infinities, nans, largest)


def shares(hist: Histogram, fmt: str | Format = "float16", scale: float = 1.0) -> Shares:
    """What the format makes of the values times ``scale``.

    A limit that falls inside a bin (the upper limit of most formats; every limit if the scale is no
    power of two) splits it as if the magnitudes in it were spread evenly over their logarithm. The
    histogram's ``largest`` says for certain whether anything overflows.

    Raises:
        ValueError: The format is unknown, or the scale is not a positive finite number.
    """
    fmt = get_format(fmt)
    scale = _scale(scale)
    total = hist.total
    if total == 0:
        return Shares()
    limits = [fmt.zero_below, fmt.min_normal, _near_from(fmt), fmt.overflow_from]
    edges = [math.log2(limit) - math.log2(scale) for limit in limits]
    parts = [0.0] * (len(edges) + 1)
    for exponent, count in hist.exponents.items():
        below = 0.0
        for place, edge in enumerate([*edges, math.inf]):
            until = min(max(edge - exponent, 0.0), 1.0)
            parts[place] += (until - below) * count
            below = until
    lost, subnormal, normal, near, overflow = parts
    if hist.largest is not None:
        beyond = not math.isfinite(float(round_to(hist.largest * scale, fmt)))
        certain = 1.0 if beyond and overflow < 1.0 else overflow
        certain = certain if beyond else 0.0
        near, overflow = max(0.0, near + overflow - certain), certain
    return Shares(
        zero=hist.zeros / total,
        lost=lost / total,
        subnormal=subnormal / total,
        normal=normal / total,
        near=near / total,
        overflow=(overflow + hist.infinities) / total,
        nan=hist.nans / total,
    )


def shares_of(x: Any, fmt: str | Format = "float16", scale: float = 1.0) -> Shares:
    """The same from the values themselves, exactly, value by value (slower, and not kept)."""
    fmt = get_format(fmt)
    scale = _scale(scale)
    values = np.asarray(x, dtype=np.float64).reshape(-1)
    if values.size == 0:
        return Shares()
    scaled = np.abs(values) * scale
    rounded = round_to(scaled, fmt)
    nan = np.isnan(values)
    overflow = ~np.isfinite(rounded) & ~nan
    zero = values == 0
    lost = (rounded == 0) & ~zero
    subnormal = (rounded > 0) & (scaled < fmt.min_normal)
    near = ~overflow & (scaled >= _near_from(fmt))
    normal = ~(nan | overflow | zero | lost | subnormal | near)
    kinds = {
        "zero": zero,
        "lost": lost,
        "subnormal": subnormal,
        "normal": normal,
        "near": near,
        "overflow": overflow,
        "nan": nan,
    }
    return Shares(**{f.name: float(kinds[f.name].mean()) for f in fields(Shares)})


def headroom(
    largest: float | None, fmt: str | Format = "float16", scale: float = 1.0
) -> float | None:
    """By how many doublings ``largest * scale`` may still grow within the format.

    Returns:
        A number of powers of two, negative where it overflows already; None if ``largest`` is not
        known or there is nothing but zeros.
    """
    if largest is None or largest == 0 or math.isnan(largest):
        return None
    if math.isinf(largest):
        return -math.inf
    return math.log2(get_format(fmt).max) - math.log2(largest) - math.log2(_scale(scale))


def _near_from(fmt: Format) -> float:
    return math.ldexp(1.0, fmt.max_exponent - NEAR_POWERS + 1)


def _scale(scale: float) -> float:
    value = float(scale)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"`scale` must be a positive finite number. Received: scale={scale!r}")
    return value
