"""Bits: a number in each format, bit by bit; where formats end; an addition that is swallowed."""

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from keras_mp.numerics.formats import FORMATS, Format, bits, from_bits, round_to
from keras_mp.telemetry.format import power_of_two
from tui.drawing.roles import Piece, Role, Row
from tui.drawing.text import fit
from tui.keys import Key
from tui.lab.numbers import full, parse, signed
from tui.lab.page import Page, press, text, turn
from tui.look import Look

# Numbers that show something: each is worth a look in some format.
EXAMPLES = (0.1, 1 / 3, 1.0, 300.0, 448.0, 65504.0, 65520.0, 3e-8, 2.0**-14, 2.0**-24, 2.0**-25)
NAMES = {"float8_e4m3": "e4m3", "float8_e5m2": "e5m2"}
LINE = 64  # cells of the number line
REACH = (-152, 130)  # the powers of two that it covers: all of float32


class BitsPage(Page):
    TITLE: ClassVar[str] = "Bits"
    prompt: ClassVar[str | None] = "a number (0.1, 3e-8, 2^-24, 1/3)"
    KEYS: ClassVar[tuple[Key, ...]] = (
        press("enter", "⏎", "type", "Type a number: 0.1, 3e-8, 2^-24, 1/3, inf.", 1),
        press("left", "← →", "neighbour", "The format's next smaller or larger number.", 1),
        press("right", "", "", ""),
        press("up,k", "↑↓", "format", "Another format.", 1),
        press("down,j", "", "", ""),
        press("plus,equals_sign", "+ -", "×2 ÷2", "Double or halve the number.", 2),
        press("minus", "", "", ""),
        press("n", "n", "negate", "Turn the sign.", 4),
        press("x", "x", "example", "The next number that shows something.", 2),
        press("left_square_bracket", "[ ]", "update", "A larger or smaller update to add.", 3),
        press("right_square_bracket", "", "", ""),
    )

    def __init__(self) -> None:
        self.value = EXAMPLES[0]
        self.format = FORMATS["float16"]
        # The paper: a weight 2,048 times its update and more does not move in float16.
        self.ratio = 2048

    def press(self, key: str) -> None:
        formats = list(FORMATS.values())
        match key:
            case "up" | "down":
                self.format = turn(formats, self.format, 1 if key == "down" else -1)
            case "left" | "right":
                self.value = neighbour(self.value, self.format, 1 if key == "right" else -1)
            case "plus" | "minus":
                self._set(self.value * (2.0 if key == "plus" else 0.5))
            case "n":
                self.value = -self.value
            case "x":
                known = self.value in EXAMPLES
                self.value = turn(EXAMPLES, self.value) if known else EXAMPLES[0]
            case "left_square_bracket":
                self.ratio = max(2, self.ratio // 2)
            case "right_square_bracket":
                self.ratio = min(2**30, self.ratio * 2)

    def take(self, typed: str) -> str | None:
        try:
            self._set(parse(typed))
        except ValueError as error:
            return str(error)
        return None

    def _set(self, value: float) -> None:
        # Beyond float64's own range there is nothing to show.
        if math.isfinite(value) and abs(value) > 1e300:
            value = math.copysign(1e300, value)
        self.value = 0.0 if value != 0 and abs(value) < 1e-300 else value

    def rows(self, width: int, height: int, look: Look) -> Sequence[Row]:
        rows: list[Row] = [
            text((_exact(self.value), "strong"), ("   as each format holds it", "muted"))
        ]
        rows += [[], text((_HEAD, "muted"))]
        rows += [self._format_row(f, look) for f in FORMATS.values()]
        rows += [[], *self._neighbours(), *self._limits(), *self._line(look), []]
        return [*rows, *self._addition()]

    def _format_row(self, f: Format, look: Look) -> Row:
        chosen = f is self.format
        pattern = f"{int(bits(self.value, f)):0{f.bits}b}"
        sign, exponent = pattern[0], pattern[1 : 1 + f.exponent_bits]
        mantissa = pattern[1 + f.exponent_bits :]
        kept = float(round_to(self.value, f))
        error, role = _error(self.value, kept)
        mark = ("▸ " if look.unicode else "> ") if chosen else "  "
        name: Role = "strong" if chosen else "text"
        cells: list[Piece] = [
            (mark + fit(NAMES.get(f.name, f.name), 10), name),
            (sign + " ", "line2"),
            (exponent + " ", "line"),
            (fit(mantissa, 36 - len(exponent) - 3), "line3"),
            (fit(full(kept, 9), 16, right=True), role if role == "bad" else name),
            (fit(error, 14, right=True), role),
        ]
        return cells

    def _neighbours(self) -> Iterator[Row]:
        f = self.format
        kept = float(round_to(self.value, f))
        if not math.isfinite(kept):
            yield text((f"{_name(f)} has no number there", "bad"))
            return
        below, above = neighbour(kept, f, -1), neighbour(kept, f, 1)
        gap = above - kept if math.isfinite(above) else kept - below
        yield text(
            (f"{_name(f)} around it   ", "muted"),
            f"{full(below, 8)}  ",
            (full(kept, 8), "strong"),
            f"  {full(above, 8)}",
            (f"   {power_of_two(gap)} apart", "muted"),
        )

    def _limits(self) -> Iterator[Row]:
        f = self.format
        beyond = "infinity" if f.infinity else "NaN"
        yield text(
            ("underflow  ", "muted"),
            f"fewer bits below {power_of_two(f.min_normal)}, ",
            f"zero up to {power_of_two(f.zero_below)}",
        )
        yield text(
            ("overflow   ", "muted"),
            f"{beyond} from {full(f.overflow_from, 6)}"
            if f.infinity
            else f"{beyond} above {full(f.overflow_from, 6)}",
        )

    def _line(self, look: Look) -> Iterator[Row]:
        """Where the number stands among the powers of two, and what the format covers of them."""
        f = self.format
        low = math.log2(f.zero_below)
        marks = []
        for cell in range(LINE):
            exponent = REACH[0] + (cell + 0.5) * (REACH[1] - REACH[0]) / LINE
            if exponent < low:
                marks.append(0)
            elif exponent < f.min_exponent:
                marks.append(1)
            elif exponent < f.max_exponent + 1:
                marks.append(2)
            else:
                marks.append(3)
        magnitude = abs(self.value)
        at = None
        if math.isfinite(magnitude) and magnitude > 0:
            share = (math.log2(magnitude) - REACH[0]) / (REACH[1] - REACH[0])
            at = min(max(int(share * LINE), 0), LINE - 1)
        signs = "·░█×" if look.unicode else ".:#x"
        roles: tuple[Role, ...] = ("faint", "warn", "line", "bad")
        row: Row = [(fit(power_of_two(2.0 ** REACH[0]), 6), "muted")]
        for cell, kind in enumerate(marks):
            here = cell == at
            row.append(
                (
                    "▼" if look.unicode and here else "V" if here else signs[kind],
                    "strong" if here else roles[kind],
                )
            )
        row.append((" " + power_of_two(2.0 ** REACH[1]), "muted"))
        yield row
        words = ("becomes zero", "fewer bits", "all bits", "infinity" if f.infinity else "NaN")
        legend: Row = [(" " * 6, "muted")]
        for sign, role, word in zip(signs, roles, words, strict=True):
            legend += [(sign, role), (f" {word}   ", "muted")]
        legend += [("▼" if look.unicode else "V", "strong"), (" the number", "muted")]
        yield legend

    def _addition(self) -> Iterator[Row]:
        f = self.format
        weight = float(round_to(self.value, f))
        if not math.isfinite(weight) or weight == 0:
            yield text(("Add an update to a weight: choose a number the format can hold.", "muted"))
            return
        update = float(round_to(weight / self.ratio, f))
        total = float(round_to(weight + update, f))
        moved = total != weight
        yield text((f"a weight and an update in {_name(f)}", "strong"))
        yield text(
            f"  {full(weight, 9)} + {full(update, 6)} = ",
            (full(total, 9), "good" if moved else "bad"),
            ("   it moves" if moved else "   swallowed: it stays where it is", "muted"),
        )
        first, whole = swallowed_from(weight, f), 2 ** (f.mantissa_bits + 1)
        yield text(
            (f"  {self.ratio:,} : 1. It never moves from ", "muted"),
            (f"{first:,} : 1", "text"),
            (" on" if first == whole else f" on (1.0: {whole:,} : 1)", "muted"),
        )


_HEAD = (
    "  format    sign, exponent, mantissa"
    + fit("kept", 28, right=True)
    + fit("error", 14, right=True)
)


def _exact(value: float) -> str:
    """As it was typed: the shortest decimal that is this float64."""
    return repr(value).replace("e-0", "e-") if math.isfinite(value) else full(value)


def _name(f: Format) -> str:
    return NAMES.get(f.name, f.name)


def _error(value: float, kept: float) -> tuple[str, Role]:
    if math.isnan(value) or value == kept:
        return ("exact", "good") if not math.isnan(value) else ("", "muted")
    if not math.isfinite(kept):
        return "overflow", "bad"
    if kept == 0:
        return "underflow", "bad"
    return f"{signed((kept - value) / abs(value) * 100, 2)} %", "text"


def neighbour(value: float, f: Format, by: int) -> float:
    """The number of the format next to ``value``: above it for +1, below it for -1.

    Beyond the largest number come infinity, and then nothing; float8_e4m3 ends at its largest.
    """
    kept = float(round_to(value, f, saturate=math.isfinite(value)))
    if math.isnan(kept) or (by > 0 and kept > value) or (by < 0 and kept < value):
        return kept
    if math.isinf(kept):
        return math.copysign(f.max, kept) if (kept > 0) != (by > 0) else kept
    if kept == 0:
        return math.copysign(f.min_subnormal, by)
    if abs(kept) == f.max and (kept > 0) == (by > 0):
        return math.copysign(math.inf, kept) if f.infinity else kept
    outwards = (kept > 0) == (by > 0)
    pattern = int(bits(abs(kept), f)) + (1 if outwards else -1)
    return math.copysign(float(from_bits(np.uint32(pattern), f)), kept)


def swallowed_from(weight: float, f: Format) -> int:
    """The smallest power of two ``r`` such that ``weight + weight / r`` is ``weight`` again.

    From there on every smaller update is swallowed too.
    """
    ratio = 2
    while ratio < 2**40:
        if float(round_to(weight + weight / ratio, f)) == weight:
            return ratio
        ratio *= 2
    return ratio
