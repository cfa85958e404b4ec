"""Histograms and shares, against counting value by value and against known distributions."""

import math
from dataclasses import astuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_mp.numerics.formats import FORMATS
from keras_mp.numerics.histogram import (
    Histogram,
    exponent_histogram,
    headroom,
    shares,
    shares_of,
)


def test_counts_are_floor_log2():
    x = np.array([0.0, -0.0, 1.0, 1.999, -2.0, 0.5, 2.0**-25, 3e-30, np.inf, -np.inf, np.nan])
    h = exponent_histogram(x)
    assert h.exponents == {-99: 1, -25: 1, -1: 1, 0: 2, 1: 1}
    assert (h.zeros, h.infinities, h.nans, h.total) == (2, 2, 1, 11)
    assert h.largest == 2.0


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=50))
def test_any_values_fall_where_their_logarithm_says(values):
    h = exponent_histogram(np.array(values, np.float32))
    expected: dict[int, int] = {}
    for v in values:
        if v:
            exponent = math.frexp(abs(v))[1] - 1
            expected[exponent] = expected.get(exponent, 0) + 1
    assert dict(h.exponents) == dict(sorted(expected.items()))
    assert h.total == len(values)
    assert h.largest == max((abs(v) for v in values), default=0.0)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, np.int32])
def test_other_dtypes(dtype):
    assert exponent_histogram(np.array([[0, 1], [2, 3]]).astype(dtype)).exponents == {0: 1, 1: 2}


def test_nothing_at_all():
    h = exponent_histogram([])
    assert h.total == 0 and shares(h) == shares_of([])
    assert headroom(h.largest) is None


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize("power", [-3, 0, 8, 15])
def test_shares_from_bins_are_those_of_the_values(name, power):
    rng = np.random.default_rng(power + 10)
    x = np.exp2(rng.uniform(-40, 20, 200_000)) * rng.choice([-1, 1], 200_000)
    x[::10] = 0.0
    scale = 2.0**power
    told, exact = shares(exponent_histogram(x), name, scale), shares_of(x, name, scale)
    # Limits at powers of two are exact; near and overflow split the format's topmost bins.
    for kind in ("zero", "lost", "subnormal"):
        assert getattr(told, kind) == getattr(exact, kind), kind
    for kind in ("normal", "near", "overflow"):
        assert getattr(told, kind) == pytest.approx(getattr(exact, kind), abs=2e-3), kind
    assert sum(astuple(told)) == pytest.approx(1.0) and sum(astuple(exact)) == pytest.approx(1.0)


def test_a_known_share_is_lost():
    rng = np.random.default_rng(0)
    lost = np.exp2(rng.uniform(-40, -25.01, 300))
    kept = np.exp2(rng.uniform(-24.99, -5, 600))
    h = exponent_histogram(np.concatenate([lost, kept, np.zeros(100)]).astype(np.float32))
    assert shares(h).lost == 0.3 and shares(h).zero == 0.1
    assert shares(h).lost_of_nonzero == pytest.approx(1 / 3)
    assert shares(h, scale=2.0**16).lost == 0.0
    assert shares(h, scale=2.0**-24).lost == 0.9  # all are: the largest is below 2**-29
    # What float16 really makes of them.
    x = np.concatenate([lost, kept, np.zeros(100)])
    assert (x.astype(np.float16) == 0).mean() == 0.4


def test_the_tie_itself_becomes_zero_value_by_value():
    assert shares_of([2.0**-25]).lost == 1.0 == float(np.float16(2.0**-25) == 0)
    assert shares_of([np.nextafter(2.0**-25, 1)]).lost == 0.0


def test_overflow_is_certain_where_the_largest_is_known():
    fits, beyond = np.array([65519.0, 1.0]), np.array([65520.0, 1.0])
    assert shares(exponent_histogram(fits)).overflow == 0.0
    assert shares(exponent_histogram(beyond)).overflow == 0.5
    assert not np.isinf(np.float32(65519).astype(np.float16))
    assert shares(exponent_histogram(fits)).near == 0.5
    assert shares(exponent_histogram([16384.0])).near == 1.0
    assert shares(exponent_histogram([16383.0])).normal == 1.0
    assert shares(exponent_histogram([np.inf, np.nan, 1.0, 1.0])).overflow == 0.25
    assert shares(exponent_histogram([np.inf, np.nan, 1.0, 1.0])).nan == 0.25


def test_histograms_add_up():
    x, y = np.array([1.0, 0.0, np.nan]), np.array([4.0, 1.5])
    both = exponent_histogram(x) + exponent_histogram(y)
    assert both == exponent_histogram(np.concatenate([x, y]))
    assert (Histogram({0: 1}) + exponent_histogram(y)).largest is None


def test_headroom_is_in_doublings():
    assert headroom(65504.0) == 0.0
    assert headroom(1.0, scale=2.0**15) == pytest.approx(math.log2(65504) - 15)
    assert headroom(2.0**17) < 0 and headroom(math.inf) == -math.inf
    assert headroom(1.0, FORMATS["bfloat16"]) > 127
    assert headroom(0.0) is None and headroom(None) is None


@pytest.mark.parametrize("scale", [0, -1.0, math.nan, math.inf])
def test_a_scale_must_be_positive_and_finite(scale):
    with pytest.raises(ValueError, match="Received: scale="):
        shares(Histogram(), scale=scale)
