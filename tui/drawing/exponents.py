"""The magnitudes of a tensor as bars over the powers of two, with what a format makes of them."""

import math
from dataclasses import dataclass

import numpy as np

from keras_mp.numerics.formats import Format
from keras_mp.numerics.histogram import Histogram
from keras_mp.telemetry.format import power_of_two
from tui.drawing.roles import Role, Row
from tui.drawing.text import fit

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_FULLEST = 4  # cells that a power of two takes at most
_MARGIN = 2  # powers of two beyond the format's limits


@dataclass(frozen=True)
class _Region:
    """Exponents from ``start`` to below ``stop`` fare alike."""

    name: str
    start: float
    stop: float
    role: Role


def regions(fmt: Format) -> list[_Region]:
    lost = math.floor(math.log2(fmt.zero_below))
    over = fmt.max_exponent + 1
    return [
        _Region("lost", -math.inf, lost, "bad"),
        _Region("subnormal", lost, fmt.min_exponent, "warn"),
        _Region("normal", fmt.min_exponent, over, "line"),
        _Region("overflow", over, math.inf, "bad"),
    ]


def draw(
    hist: Histogram, fmt: Format, scale: float, width: int, height: int, unicode: bool = True
) -> list[Row]:
    """``height`` rows: the bars, a base line with the format's limits, their powers and names.

    The axis stands still while the scale moves the bars: it is the format's, and wide enough for
    the values without a scale.
    """
    shift = round(math.log2(scale))
    own = [e for e, count in hist.exponents.items() if count]
    parts = regions(fmt)
    low = min([parts[0].stop - 2 * _MARGIN, *own]) if own else parts[0].stop - 2 * _MARGIN
    low = min(low, min(own) + shift) if own else low
    high = max([fmt.max_exponent + 1 + _MARGIN, *own, *(e + shift for e in own)])
    low, high = math.floor(low), math.floor(high)
    powers = high - low + 1
    group = max(1, math.ceil(powers / width))
    cells = max(1, min(width // powers, _FULLEST)) if group == 1 else 1
    columns = math.ceil(powers / group)
    counts = np.zeros(columns)
    for exponent, count in hist.exponents.items():
        counts[(exponent + shift - low) // group] += count
    bars = height - 3
    roles = [_role(parts, low + at * group) for at in range(columns)]
    rows = _bars(counts, roles, cells, bars, unicode) if bars > 0 else []
    base: Row = []
    powers_row, names_row = [" "] * width, [" "] * width
    for part in parts:
        first = max(0, math.ceil((part.start - low) / group)) if part.start > low else 0
        last = columns if part.stop > high else max(0, math.ceil((part.stop - low) / group))
        if last <= first:
            continue
        inside = (last - first) * cells
        edge = ("┴" if unicode else "+") if first else ("─" if unicode else "-")
        line = edge + ("─" if unicode else "-") * (inside - 1)
        base.append((line, part.role if part.role != "line" else "faint"))
        if first:
            _write(powers_row, first * cells, power_of_two(2.0 ** float(part.start)))
        room = width - first * cells if last == columns else inside
        _write(names_row, first * cells, fit(part.name, min(room, len(part.name))))
    rows.append(base)
    rows.append([("".join(powers_row), "muted")])
    rows.append([("".join(names_row), "muted")])
    return rows[:height]


def _role(parts: list[_Region], exponent: int) -> Role:
    return next(part.role for part in parts if part.start <= exponent < part.stop)


def _bars(
    counts: np.ndarray, roles: list[Role], cells: int, height: int, unicode: bool
) -> list[Row]:
    top = counts.max() or 1.0
    eighths = np.ceil(counts / top * height * 8).astype(int)  # what is there is seen
    rows: list[Row] = []
    for row in range(height):
        level = np.clip(eighths - (height - 1 - row) * 8, 0, 8)
        pieces: Row = []
        for amount, role in zip(level, roles, strict=True):
            sign = _EIGHTHS[amount] if unicode else ("#" if amount > 4 else "." if amount else " ")
            # A gap between wide bars, so that each is a power of two by itself.
            text = sign * (cells - 1) + " " if cells > 2 else sign * cells
            if pieces and pieces[-1][1] == role:
                pieces[-1] = (pieces[-1][0] + text, role)
            else:
                pieces.append((text, role))
        rows.append(pieces)
    return rows


def _write(row: list[str], at: int, text: str) -> None:
    """Put a text into the row, where it does not run into the one before."""
    if at and at <= len(row) and row[at - 1] != " ":
        return
    for offset, character in enumerate(text):
        if at + offset < len(row):
            row[at + offset] = character
