"""Dots on a grid, and the characters that show them.

A character cell holds a small block of dots: 2 x 4 in braille, 2 x 2 with quadrant blocks, 1 x 3 in
plain ASCII. A grid is a boolean array of (dot rows, dot columns), row 0 at the top.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tui.drawing.downsample import Columns, Floats

Dots = NDArray[np.bool_]


@dataclass(frozen=True)
class Charset:
    """How dots become characters.

    Attributes:
        across, down: Dots in a cell.
        characters: One character for each of the 2^(across*down) patterns; bit ``row * across +
            column`` is set where there is a dot. Pattern 0 is a space: fonts without braille show
            the empty braille cell as a box, and a space copies cleanly.
    """

    name: str
    across: int
    down: int
    characters: str


def _braille() -> str:
    # Unicode counts braille dots down the left column, then the right, then the bottom row.
    bit_of = {0: 0, 2: 1, 4: 2, 1: 3, 3: 4, 5: 5, 6: 6, 7: 7}
    codes = (
        0x2800 + sum(1 << bit_of[b] for b in range(8) if pattern >> b & 1) for pattern in range(256)
    )
    return " " + "".join(map(chr, codes))[1:]


BRAILLE = Charset("braille", 2, 4, _braille())
BLOCKS = Charset("blocks", 2, 2, " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█")
ASCII = Charset("ascii", 1, 3, " '-\".:;|")
CHARSETS = {c.name: c for c in (BRAILLE, BLOCKS, ASCII)}


def trace(columns: Columns, low: float, high: float, dot_rows: int) -> Dots:
    """Draw a line: each column from its lowest to its highest value, neighbours joined.

    Values outside [low, high] are drawn at the edge, so that an outlier stays visible when zoomed.
    """
    rows = np.arange(dot_rows)[:, None]
    top = _row_of(columns.high, low, high, dot_rows)
    bottom = _row_of(columns.low, low, high, dot_rows)
    entered = _row_of(columns.first, low, high, dot_rows)[1:]
    left = _row_of(columns.last, low, high, dot_rows)[:-1]
    # From where the last column ended to where this one starts, short of the other's own dot.
    with np.errstate(invalid="ignore"):
        top[1:] = np.where(left < entered, np.minimum(top[1:], left + 1), top[1:])
        bottom[1:] = np.where(left > entered, np.maximum(bottom[1:], left - 1), bottom[1:])
        return (rows >= top) & (rows <= bottom)


def _row_of(values: Floats, low: float, high: float, dot_rows: int) -> Floats:
    share = (np.clip(values, low, high) - low) / (high - low)
    return np.round((1.0 - share) * (dot_rows - 1))


def encode(dots: Dots, charset: Charset) -> list[str]:
    """The grid as text, a string for each row of cells."""
    down, across = charset.down, charset.across
    cells = dots.reshape(dots.shape[0] // down, down, dots.shape[1] // across, across)
    weights = (1 << np.arange(down * across)).reshape(1, down, 1, across)
    patterns = (cells * weights).sum(axis=(1, 3))
    table = np.array([ord(c) for c in charset.characters], dtype="<u4")
    return [row.tobytes().decode("utf-32-le") for row in table[patterns]]


def occupied(dots: Dots, charset: Charset) -> Dots:
    """Which cells hold a dot, as (cell rows, cell columns)."""
    down, across = charset.down, charset.across
    cells = dots.reshape(dots.shape[0] // down, down, dots.shape[1] // across, across)
    return np.asarray(cells.any(axis=(1, 3)))
