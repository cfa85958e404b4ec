"""A histogram of magnitudes against what a format can hold, as rows of text."""

import math
from collections.abc import Iterator

from keras_mp.numerics.formats import Format
from keras_mp.numerics.histogram import Histogram, Shares
from keras_mp.telemetry.format import power_of_two, share
from tui.drawing.roles import Role, Row
from tui.drawing.text import fit
from tui.look import Look

# Powers of two shown below the one from which the format keeps anything, and above its largest.
BELOW, ABOVE = 16, 3
EIGHTHS = " ▁▂▃▄▅▆▇█"

FATES: tuple[tuple[str, str, Role], ...] = (
    ("zero", "zero already", "faint"),
    ("lost", "lost", "bad"),
    ("subnormal", "fewer bits", "warn"),
    ("normal", "kept", "good"),
    ("near", "near the limit", "line2"),
    ("overflow", "overflow", "bad"),
    ("nan", "NaN", "bad"),
)


def columns(f: Format, width: int) -> tuple[int, int, int]:
    """(lowest power of two, powers a column, columns) that show all of the format."""
    low = math.floor(math.log2(f.zero_below)) - BELOW
    span = f.max_exponent + 1 + ABOVE - low
    each = -(-span // width)
    return low, each, -(-span // each)


def draw(
    h: Histogram, f: Format, scale: float, width: int, height: int, look: Look
) -> Iterator[Row]:
    """``height`` rows of bars, a base line, and a line of the format's limits."""
    low, each, count = columns(f, width)
    shift = round(math.log2(scale))
    amounts = [0] * count
    for exponent, number in h.exponents.items():
        at = (exponent + shift - low) // each
        amounts[min(max(at, 0), count - 1)] += number
    top = max(amounts, default=0) or 1
    roles = [_role(f, low + column * each) for column in range(count)]
    for row in range(height, 0, -1):
        cells: Row = []
        for amount, role in zip(amounts, roles, strict=True):
            filled = amount / top * height - (row - 1)
            level = min(max(math.ceil(filled * 8 - 1e-9), 0), 8)
            sign = EIGHTHS[level] if look.unicode else (" " if level < 4 else "#")
            # Whatever is there is seen, however little it is.
            if row == 1 and amount and level == 0:
                sign = EIGHTHS[1] if look.unicode else "."
            cells.append((sign, role))
        yield cells
    yield [("─" if look.unicode else "-", role if role != "line" else "good") for role in roles]
    yield _limits(f, low, each, count)


def _role(f: Format, exponent: int) -> Role:
    if exponent < math.log2(f.zero_below):
        return "bad"
    if exponent < f.min_exponent:
        return "warn"
    if exponent > f.max_exponent:
        return "bad"
    return "line2" if exponent > f.max_exponent - 2 else "good"


def _limits(f: Format, low: int, each: int, count: int) -> Row:
    marks = {
        math.floor(math.log2(f.zero_below)): "zero up to ",
        f.min_exponent: "all bits from ",
        f.max_exponent + 1: "",
    }
    line = ""
    for exponent, word in marks.items():
        at = (exponent - low) // each
        label = f"{word}{power_of_two(2.0**exponent)}"
        start = at if len(line) <= at else len(line) + 1
        if start + len(label) > count + 6:
            start = max(len(line) + 1, count + 6 - len(label))
        line = line.ljust(start) + label
    return [(line, "muted")]


def fates(of: Shares, width: int, look: Look) -> Iterator[Row]:
    """The shares as a bar and in figures."""
    known = [(word, getattr(of, name), role) for name, word, role in FATES]
    signs = "·×░█▓××" if look.unicode else ".x:#+xx"
    row: Row = []
    done, before = 0, 0.0
    for (_, value, role), sign in zip(known, signs, strict=True):
        before += value
        end = round(before * width)
        if value > 0 and end == done:
            end = min(done + 1, width)
        row.append((sign * (end - done), role))
        done = max(end, done)
    yield row
    figures: Row = []
    used = 0
    for (word, value, role), sign in zip(known, signs, strict=True):
        if value > 0 or word == "lost":
            pieces: Row = [(sign, role), (f" {word} ", "muted"), (fit(share(value), 7), "text")]
            length = sum(len(piece) for piece, _ in pieces)
            if used + length > width + 8:
                yield figures
                figures, used = [], 0
            figures += pieces
            used += length
    yield figures
