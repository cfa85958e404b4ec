"""Many points into few columns, without losing the one that matters.

A loss scale that drops for a single step in 100,000 is what a person looks for. Taking every n-th
point loses it and a mean hides it (65536 becomes 65460), so each column keeps the lowest, highest,
first and last value of its points.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Columns:
    """What each column holds; all arrays have one entry a column.

    Attributes:
        low, high: Lowest and highest finite value; NaN in a column without one.
        first, last: The finite values that enter and leave the column, in order of x.
        mean: Of the finite values.
        bad: How many values in the column were NaN or infinite.
    """

    low: Floats
    high: Floats
    first: Floats
    last: Floats
    mean: Floats
    bad: NDArray[np.int64]


def minmax(x: Floats, y: Floats, start: float, stop: float, columns: int) -> Columns:
    """Reduce the points with ``start <= x <= stop`` to ``columns`` columns of equal width.

    Args:
        x: Positions in ascending order. y: Values, as many; NaN and infinities are counted apart.
        start, stop: The range that the columns cover; ``stop`` itself falls in the last column.
        columns: At least 1.
    """
    if columns < 1:
        raise ValueError(f"A chart needs at least one column. Received: columns={columns}")
    if len(x) != len(y):
        raise ValueError(f"x and y must be of one length. Received: {len(x)} and {len(y)}")
    edges = np.linspace(start, stop, columns + 1)
    edges[-1] = np.nextafter(stop, np.inf)
    finite = np.isfinite(y)
    bad = np.zeros(columns, np.int64)
    if not finite.all():
        bad = np.diff(np.searchsorted(x[~finite], edges))
        x, y = x[finite], y[finite]
    empty = np.full(columns, np.nan)
    low, high, first, last = empty, empty.copy(), empty.copy(), empty.copy()
    mean = empty.copy()
    bounds = np.searchsorted(x, edges)
    filled = bounds[1:] > bounds[:-1]
    starts = bounds[:-1][filled]
    if len(starts):
        inside = y[: bounds[-1]]
        low[filled] = np.minimum.reduceat(inside, starts)
        high[filled] = np.maximum.reduceat(inside, starts)
        first[filled] = y[starts]
        last[filled] = y[bounds[1:][filled] - 1]
        mean[filled] = np.add.reduceat(inside, starts) / np.diff(bounds)[filled]
    return Columns(low, high, first, last, mean, bad)


def bridge(columns: Columns, hold: bool) -> Columns:
    """Fill the empty columns between two full ones, so that a line has no holes.

    Args:
        hold: True for a value that stays until it is set again (the loss scale); False joins the
            neighbours by a straight line.
    """
    full = np.flatnonzero(~np.isnan(columns.first))
    if len(full) < 2:
        return columns
    inner = np.arange(full[0], full[-1] + 1)
    inner = inner[np.isnan(columns.first[inner])]
    if not len(inner):
        return columns
    after = np.searchsorted(full, inner)
    left, right = full[after - 1], full[after]
    value = columns.last[left]
    if not hold:
        value = value + (columns.first[right] - value) * (inner - left) / (right - left)
    parts = [a.copy() for a in (columns.low, columns.high, columns.first, columns.last)]
    for part in parts:
        part[inner] = value
    return Columns(parts[0], parts[1], parts[2], parts[3], columns.mean, columns.bad)


def trend(columns: Columns, weight: float = 0.12) -> Columns:
    """The columns' means, smoothed: a line to draw *over* the lows and highs, never instead.

    An exponential mean, forth and back so that it does not lag. ``weight`` of each new column.
    """
    full = np.flatnonzero(~np.isnan(columns.mean))
    smooth = columns.mean[full]
    for order in (slice(None), slice(None, None, -1)):
        values = smooth[order]
        for at in range(1, len(values)):
            values[at] = values[at - 1] + weight * (values[at] - values[at - 1])
    line = np.full(len(columns.mean), np.nan)
    line[full] = smooth
    return Columns(line, line, line, line, line, np.zeros_like(columns.bad))
