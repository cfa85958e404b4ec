"""Value axes: which range to show and where to put round ticks."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tui.drawing.downsample import Floats

Kind = Literal["linear", "log2", "log10"]

# A positive series that spans more than this is unreadable on a linear axis: a loss that starts at
# 200 and ends at 0.5 would be a corner and a flat line.
_SPREAD_FOR_LOG = 50.0


# A range of larger values overflows; what lies beyond stands at the edge.
LARGEST = 1e307


@dataclass(frozen=True)
class Axis:
    """A range of values and how they map to height.

    Attributes:
        low, high: The range in *mapped* units (log2 of the value for "log2").
        ticks: Positions in mapped units. labels: One a tick.
    """

    kind: Kind
    low: float
    high: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]

    def map(self, values: Floats) -> Floats:
        """Values in mapped units, at the edge where they fall outside (0 on a log axis too)."""
        return np.clip(_to_units(values, self.kind), self.low, self.high)


def _to_units(values: Floats, kind: Kind) -> Floats:
    if kind == "linear":
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.log2(values) if kind == "log2" else np.log10(values)
    return np.where(values <= 0, -np.inf, out)


def value_axis(
    low: float,
    high: float,
    kind: Kind,
    count: int,
    label: Callable[[float], str],
) -> Axis:
    """An axis that covers ``low`` to ``high`` with at most ``count`` round ticks.

    Args:
        low, high: Smallest and largest value to show, in the series' own units; NaN when there is
            nothing to show.
        count: At least 2.
        label: Formats a value (not a mapped unit).
    """
    ends = _to_units(np.clip(np.array([low, high]), -LARGEST, LARGEST), kind)
    if not np.isfinite(ends).all():
        return Axis(kind, 0.0, 1.0, (), ())
    bottom, top = float(ends[0]), float(ends[1])
    if kind == "log2":
        bottom, top, ticks = _octaves(bottom, top, count)
        return Axis(kind, bottom, top, ticks, _tidy([label(2.0**t) for t in ticks]))
    if top - bottom <= 1e-9 * max(abs(top), abs(bottom), 1e-300):
        pad = (abs(top) * 0.05 if kind == "linear" else 0.5) or 0.5
        bottom, top = bottom - pad, top + pad
    if kind == "log10":
        if top - bottom < 1.0:
            middle = (top + bottom) / 2
            bottom, top = min(bottom, middle - 0.5), max(top, middle + 0.5)
        marks = _decades(bottom, top, count)
        return Axis(kind, bottom, top, marks, tuple(_tidy([label(10.0**t)])[0] for t in marks))
    marks = _round_ticks(bottom, top, count)
    labels = _tidy([label(t) for t in marks])
    # Where the formatter rounds two ticks to one text, the text stands at the first of them.
    kept = [n for n in range(len(marks)) if n == 0 or labels[n] != labels[n - 1]]
    marks, labels = tuple(marks[n] for n in kept), tuple(labels[n] for n in kept)
    return Axis(kind, bottom, top, marks, labels)


_DECIMAL = re.compile(r"^(-?\d+)(?:\.(\d+))?(\D*)$")


def _tidy(labels: list[str]) -> tuple[str, ...]:
    """The zeros that no label of a unit needs are left out: 2.200 and 1.800 become 2.2 and 1.8."""
    parts = [_DECIMAL.match(label) for label in labels]
    places: dict[str, int] = {}
    for part in parts:
        if part is not None:
            needed = len((part[2] or "").rstrip("0"))
            places[part[3]] = max(places.get(part[3], 0), needed)
    out = []
    for part, label in zip(parts, labels, strict=True):
        if part is None:
            out.append(label)
            continue
        count = places[part[3]]
        decimals = (part[2] or "").ljust(count, "0")[:count]
        out.append(part[1] + (f".{decimals}" if decimals else "") + part[3])
    return tuple(out)


def best_kind(low: float, high: float) -> Kind:
    """Linear, unless the values are positive and spread so far that a line would say nothing."""
    return "log10" if low > 0 and high / low > _SPREAD_FOR_LOG else "linear"


# Octaves between two ticks; float64 has 2,100 in all.
_STRIDES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 30, 40, 50, 100, 200, 500, 1000, 5000)


def _octaves(bottom: float, top: float, count: int) -> tuple[float, float, tuple[float, ...]]:
    lowest, highest = math.floor(bottom), math.ceil(top)
    if highest - lowest < 2:
        lowest, highest = lowest - 1, max(highest, lowest + 1)
    stride = next(n for n in _STRIDES if (highest - lowest) / n <= count - 1)
    first = -(-lowest // stride) * stride
    ticks = tuple(float(t) for t in range(first, highest + 1, stride))
    return float(lowest), float(highest), ticks


def _round_ticks(bottom: float, top: float, count: int) -> tuple[float, ...]:
    span = top - bottom
    exponent = math.floor(math.log10(span / count))
    for mantissa in (1, 2, 5, 10, 20, 50):
        stride = mantissa * 10.0**exponent
        first, final = math.ceil(bottom / stride), math.floor(top / stride)
        if final - first + 1 <= count:
            # Multiples of the stride, not sums of it: 0.3 and not 0.30000000000000004.
            return tuple(float(f"{k * stride:.12g}") for k in range(first, final + 1))
    return ()


def _decades(bottom: float, top: float, count: int) -> tuple[float, ...]:
    for mantissas in ((1, 2, 5), (1, 3), (1,)):
        exponents = range(math.floor(bottom), math.ceil(top) + 1)
        marks = [math.log10(m) + e for e in exponents for m in mantissas]
        inside = tuple(m for m in marks if bottom - 1e-9 <= m <= top + 1e-9)
        if len(inside) <= count:
            return inside
    stride = math.ceil(len(inside) / count)
    return inside[::stride]
