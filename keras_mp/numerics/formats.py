"""The number formats that training uses: bits, limits, and rounding. NumPy-only.

    from keras_mp.numerics.formats import FORMATS, round_to

    FORMATS["float16"].max                        # 65504.0
    round_to([1e-8, 0.1, 70000.0], "float16")     # [0., 0.09997559, inf]

Rounding is IEEE 754's default, to nearest with ties to even, subnormals included, straight from
float64 (no double rounding). What happens beyond the largest number is the format's own rule:
IEEE formats go to infinity, ``float8_e4m3`` (OCP 8-bit floating point, there "E4M3") has none and
goes to NaN (torch 2.13 stops at the largest number instead: ``saturate=True``).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: sign, exponent, mantissa.

    Attributes:
        name: As Keras calls it, where it has it ("float8_e4m3" is Keras' float8_e4m3fn).
        exponent_bits, mantissa_bits: Field widths; the mantissa's leading one is not stored.
        infinity: Whether the format has infinities. Without, its topmost exponent holds numbers,
            and only the pattern of all ones is NaN.
        storage_bits: Bits that a value takes in memory (tf32 is kept in 32).
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    infinity: bool = True
    storage_bits: int = 0

    @property
    def bits(self) -> int:
        """Width of the pattern: sign, exponent, mantissa."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def min_exponent(self) -> int:
        """floor(log2) of the smallest normal number."""
        return 1 - self.bias

    @property
    def max_exponent(self) -> int:
        """floor(log2) of the largest number."""
        return self.bias + (0 if self.infinity else 1)

    @property
    def max(self) -> float:
        """The largest finite number."""
        steps = 2**self.mantissa_bits - (1 if self.infinity else 2)
        return math.ldexp(1 + steps / 2**self.mantissa_bits, self.max_exponent)

    @property
    def min_normal(self) -> float:
        """The smallest positive number with full precision."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def min_subnormal(self) -> float:
        """The smallest positive number."""
        return math.ldexp(1.0, self.min_exponent - self.mantissa_bits)

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger number."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @property
    def zero_below(self) -> float:
        """Magnitudes up to this one round to zero; larger ones do not."""
        return self.min_subnormal / 2

    @property
    def overflow_from(self) -> float:
        """Magnitudes beyond ``max`` that still round to it end here.

        The half-way point to the number that would come next. It overflows itself where that
        neighbour is even (all formats with infinities), and rounds to ``max`` in float8_e4m3.
        """
        return self.max + math.ldexp(1.0, self.max_exponent - self.mantissa_bits - 1)

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(alias for alias, name in _ALIASES.items() if name == self.name)


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("float32", 8, 23, storage_bits=32),
        Format("tf32", 8, 10, storage_bits=32),
        Format("bfloat16", 8, 7, storage_bits=16),
        Format("float16", 5, 10, storage_bits=16),
        Format("float8_e4m3", 4, 3, infinity=False, storage_bits=8),
        Format("float8_e5m2", 5, 2, storage_bits=8),
    )
}
_ALIASES = {
    "fp32": "float32",
    "tensorfloat32": "tf32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "float8_e4m3fn": "float8_e4m3",
}


def get_format(fmt: "str | Format") -> Format:
    """The format that ``fmt`` names, or ``fmt`` itself.

    Raises:
        ValueError: There is no such format.
    """
    if isinstance(fmt, Format):
        return fmt
    found = FORMATS.get(_ALIASES.get(fmt, fmt)) if isinstance(fmt, str) else None
    if found is None:
        raise ValueError(
            f"`fmt` must be one of {[*FORMATS, *_ALIASES]}, or a Format. Received: fmt={fmt!r}"
        )
    return found


def round_to(x: Any, fmt: "str | Format", *, saturate: bool = False) -> np.ndarray:
    """``x`` as the format can hold it: to nearest, ties to even.

    Args:
        x: Numbers of any float or integer dtype (integers beyond 2**53 lose bits in float64 first).
        fmt: A name in FORMATS, or a Format.
        saturate: Take the largest number where the format's rule gives infinity or NaN, as
            quantisers for float8 do. NaN stays NaN.

    Returns:
        float32 array of x's shape: every value of every format here is a float32 number.
    """
    fmt = get_format(fmt)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = np.asarray(x, dtype=np.float64)
    _, exponent = np.frexp(values)  # |x| = m * 2**exponent with m in [0.5, 1)
    # The distance of two neighbours where x lies; below the smallest normal it stays the same.
    spacing = np.maximum(exponent - 1, fmt.min_exponent) - fmt.mantissa_bits
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(values, -spacing)), spacing)
        beyond = np.abs(rounded) > fmt.max
        if saturate:
            limit = np.float64(fmt.max)
        else:
            limit = np.float64(math.inf if fmt.infinity else math.nan)
        rounded = np.where(beyond, np.copysign(limit, rounded), rounded)
        return rounded.astype(np.float32)


def bits(x: Any, fmt: "str | Format") -> np.ndarray:
    """The bit patterns of ``round_to(x, fmt)``: sign first, then exponent, then mantissa.

    Returns:
        uint32 array of x's shape, ``fmt.bits`` bits used. NaN is the positive quiet one.
    """
    fmt = get_format(fmt)
    values = round_to(x, fmt).astype(np.float64)
    magnitude = np.abs(values)
    finite = np.isfinite(values)
    safe = np.where(finite, magnitude, 0.0)
    _, exponent = np.frexp(safe)
    exponent = np.where(safe == 0, fmt.min_exponent, np.maximum(exponent - 1, fmt.min_exponent))
    # In units of the spacing: below 2**mantissa_bits for subnormals, from there on with the
    # leading one, which adds 1 to the exponent field by itself.
    units = np.ldexp(safe, fmt.mantissa_bits - exponent).astype(np.uint32)
    field = (exponent - fmt.min_exponent).astype(np.uint32)
    pattern = (field << np.uint32(fmt.mantissa_bits)) + units
    all_ones = np.uint32(2**fmt.exponent_bits - 1) << np.uint32(fmt.mantissa_bits)
    quiet = np.uint32(1 << (fmt.mantissa_bits - 1) if fmt.infinity else 2**fmt.mantissa_bits - 1)
    pattern = np.where(np.isinf(values), all_ones, pattern)
    sign = np.signbit(values) & ~np.isnan(values)
    pattern = np.where(np.isnan(values), all_ones | quiet, pattern)
    return (pattern | (sign.astype(np.uint32) << np.uint32(fmt.bits - 1))).astype(np.uint32)


def from_bits(patterns: Any, fmt: "str | Format") -> np.ndarray:
    """The numbers that bit patterns (integers below ``2**fmt.bits``) stand for, as float32."""
    fmt = get_format(fmt)
    given = np.asarray(patterns).astype(np.int64)
    fraction = given & (2**fmt.mantissa_bits - 1)
    field = (given >> fmt.mantissa_bits) & (2**fmt.exponent_bits - 1)
    sign = np.where((given >> (fmt.bits - 1)) & 1, -1.0, 1.0)
    leading = np.where(field > 0, 2**fmt.mantissa_bits, 0)
    exponent = np.maximum(field, 1) - fmt.bias - fmt.mantissa_bits
    values = np.ldexp((leading + fraction).astype(np.float64), exponent)
    top = field == 2**fmt.exponent_bits - 1
    if fmt.infinity:
        values = np.where(top, np.where(fraction == 0, math.inf, math.nan), values)
    else:
        values = np.where(top & (fraction == 2**fmt.mantissa_bits - 1), math.nan, values)
    with np.errstate(over="ignore"):
        return (sign * values).astype(np.float32)
