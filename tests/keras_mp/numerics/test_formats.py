"""Formats against three other implementations, pattern by pattern."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_mp.numerics.formats import FORMATS, Format, bits, from_bits, get_format, round_to

REFERENCES = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
HALF_OR_LESS = [name for name in REFERENCES if name != "float32"]


def same(a, b):
    """Equal values, signs of zero included; NaN equals NaN."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    np.testing.assert_array_equal(a, b)
    numbers = ~np.isnan(a)
    np.testing.assert_array_equal(np.signbit(a[numbers]), np.signbit(b[numbers]))


def tf32_reference(x):
    """Round-to-nearest-even on the low 13 bits of the float32 pattern, in integers."""
    u = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (u + 0xFFF + ((u >> 13) & 1)) & ~np.uint64(0x1FFF)
    out = rounded.astype(np.uint32).view(np.float32)
    return np.where(np.isnan(np.asarray(x, np.float32)), np.float32(np.nan), out)


def reference(x, name):
    if name == "tf32":
        return tf32_reference(x)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(x, np.float32).astype(REFERENCES[name]).astype(np.float32)


def dense_float32():
    """All upper halves of float32 patterns, with lower halves around each format's ties."""
    high = np.arange(2**16, dtype=np.uint32) << np.uint32(16)
    low = [0, 1, 0x0FFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    return np.concatenate([high | np.uint32(part) for part in low]).view(np.float32)


@pytest.mark.parametrize("name", HALF_OR_LESS)
def test_every_pattern_stands_for_the_same_number(name):
    fmt = FORMATS[name]
    patterns = np.arange(2**fmt.bits).astype(f"uint{fmt.bits}")
    expected = patterns.view(REFERENCES[name]).astype(np.float32)
    same(from_bits(patterns, fmt), expected)
    same(round_to(expected, fmt), expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(bits(expected, fmt)[numbers], patterns[numbers])
    assert np.isnan(from_bits(bits(math.nan, fmt), fmt))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3", "float8_e5m2", "tf32"])
def test_rounding_is_that_of_numpy_and_ml_dtypes(name):
    x = dense_float32()
    same(round_to(x, name), reference(x, name))


@pytest.mark.parametrize("name", HALF_OR_LESS)
def test_ties_between_all_neighbours_go_to_even(name):
    fmt = FORMATS[name]
    count = int(bits(fmt.max, fmt)) + 1
    grid = from_bits(np.arange(count), fmt).astype(np.float64)
    between = (grid[:-1] + grid[1:]) / 2
    even = np.where(np.arange(count - 1) % 2 == 0, grid[:-1], grid[1:])
    same(round_to(between, fmt), even)
    same(round_to(np.nextafter(between, 0), fmt), grid[:-1])
    same(round_to(np.nextafter(between, np.inf), fmt), grid[1:])


def test_float32_and_tf32_patterns():
    x = dense_float32()
    same(round_to(x, "float32"), x)
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(bits(x, "float32")[numbers], x.view(np.uint32)[numbers])
    short = tf32_reference(x)
    np.testing.assert_array_equal(
        bits(x, "tf32")[numbers], (short.view(np.uint32) >> np.uint32(13))[numbers]
    )
    same(from_bits(bits(x, "tf32"), "tf32"), short)


@pytest.mark.parametrize(
    ("name", "torch_name", "saturate"),
    [
        ("float16", "float16", False),
        ("bfloat16", "bfloat16", False),
        ("float8_e4m3", "float8_e4m3fn", None),  # see below
        ("float8_e5m2", "float8_e5m2", False),
    ],
)
def test_rounding_is_torchs(name, torch_name, saturate):
    torch = pytest.importorskip("torch")
    x = dense_float32()
    expected = torch.from_numpy(x.copy()).to(getattr(torch, torch_name)).to(torch.float32).numpy()
    if saturate is None:  # torch changed its mind: 2.13 saturates to 448, earlier ones give NaN
        saturate = bool(torch.tensor(1e6).to(torch.float8_e4m3fn).to(torch.float32) == 448)
    same(round_to(x, name, saturate=saturate), expected)


@given(st.floats(width=64, allow_nan=True))
def test_from_float64_there_is_one_rounding(x):
    with np.errstate(over="ignore"):
        same(round_to(x, "float16"), np.float64(x).astype(np.float16))
        same(round_to(x, "float32"), np.float64(x).astype(np.float32))


def test_a_double_rounding_would_be_seen():
    # Just above the tie between 1 and 1 + 2**-10; in float32 it would fall onto the tie.
    x = 1 + 2.0**-11 + 2.0**-40
    assert round_to(x, "float16") == 1 + 2.0**-10
    assert np.float32(x).astype(np.float16) == 1


@pytest.mark.parametrize("name", HALF_OR_LESS)
def test_limits_are_those_of_ml_dtypes(name):
    fmt, info = FORMATS[name], ml_dtypes.finfo(REFERENCES[name])
    assert fmt.max == float(info.max)
    assert fmt.min_normal == float(info.tiny)
    assert fmt.min_subnormal == float(info.smallest_subnormal)
    assert fmt.epsilon == float(info.eps)
    assert fmt.mantissa_bits == info.nmant
    assert fmt.exponent_bits == info.bits - 1 - info.nmant
    assert fmt.bits == fmt.storage_bits == info.bits


def test_published_constants():
    half = FORMATS["float16"]
    assert (half.bias, half.max, half.min_normal) == (15, 65504.0, 2.0**-14)
    assert (half.min_subnormal, half.zero_below) == (2.0**-24, 2.0**-25)
    assert FORMATS["float8_e4m3"].max == 448 and FORMATS["float8_e5m2"].max == 57344
    assert (FORMATS["tf32"].bits, FORMATS["tf32"].storage_bits) == (19, 32)


@pytest.mark.parametrize("name", list(FORMATS))
def test_what_lies_beyond_the_largest_number(name):
    fmt = FORMATS[name]
    beyond = float(np.nextafter(fmt.overflow_from, np.inf))
    before = float(np.nextafter(fmt.overflow_from, 0))
    assert round_to(before, fmt) == fmt.max
    assert round_to(-before, fmt) == -fmt.max
    for x in (beyond, math.inf):
        if fmt.infinity:
            assert round_to(x, fmt) == math.inf and round_to(-x, fmt) == -math.inf
        else:
            assert np.isnan(round_to(x, fmt)) and np.isnan(round_to(-x, fmt))
        assert round_to(x, fmt, saturate=True) == fmt.max
        assert round_to(-x, fmt, saturate=True) == -fmt.max
    # The half-way point itself: to the even neighbour.
    tie = round_to(fmt.overflow_from, fmt)
    assert tie == (math.inf if fmt.infinity else fmt.max)
    assert np.isnan(round_to(math.nan, fmt, saturate=True))


def test_names_and_shapes():
    assert get_format("fp16") is FORMATS["float16"]
    assert get_format("float8_e4m3fn") is FORMATS["float8_e4m3"]
    assert get_format(FORMATS["tf32"]) is FORMATS["tf32"]
    assert isinstance(get_format("bf16"), Format)
    with pytest.raises(ValueError, match="Received: fmt='float12'"):
        round_to(1.0, "float12")
    out = round_to(np.ones((2, 3)), "bf16")
    assert out.shape == (2, 3) and out.dtype == np.float32
    assert round_to([], "float16").shape == (0,)
    assert bits(1.0, "float16") == 0x3C00 and bits(-2.0, "float16") == 0xC000
