import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.drawing.axis import best_kind, value_axis


def label(value):
    return f"{value:g}"


def test_linear_ticks_are_round_numbers_inside_the_range():
    axis = value_axis(0.13, 2.41, "linear", 5, label)
    assert axis.labels == ("0.5", "1.0", "1.5", "2.0")


def test_a_scale_axis_has_whole_octaves_and_room_around_a_constant():
    axis = value_axis(2.0**13, 2.0**17, "log2", 5, label)
    assert axis.ticks == (13, 14, 15, 16, 17)
    constant = value_axis(2.0**15, 2.0**15, "log2", 5, label)
    assert (constant.low, constant.high) == (14, 16)
    wide = value_axis(2.0**-14, 2.0**24, "log2", 5, label)
    assert len(wide.ticks) <= 5
    assert all(t == int(t) for t in wide.ticks)


def test_log10_ticks_are_values_a_person_reads():
    axis = value_axis(0.01, 100.0, "log10", 6, label)
    assert axis.labels == ("0.01", "0.1", "1", "10", "100")


def test_the_axis_kind_follows_the_spread():
    assert best_kind(0.5, 2.5) == "linear"
    assert best_kind(0.5, 200.0) == "log10"
    assert best_kind(-0.5, 200.0) == "linear"


def test_nothing_to_show_has_no_ticks():
    assert value_axis(np.nan, np.nan, "linear", 4, label).ticks == ()


def test_a_constant_lies_inside_its_axis():
    axis = value_axis(3.0, 3.0, "linear", 4, label)
    assert axis.low < 3.0 < axis.high
    zero = value_axis(0.0, 0.0, "linear", 4, label)
    assert zero.low < 0.0 < zero.high


def test_values_that_a_logarithm_cannot_show_go_to_the_edge():
    axis = value_axis(1.0, 1000.0, "log10", 4, label)
    assert axis.map(np.array([0.0, -5.0, 10.0])).tolist() == [axis.low, axis.low, 1.0]
    assert np.isnan(axis.map(np.array([np.nan]))[0])


@pytest.mark.parametrize("kind", ["linear", "log2", "log10"])
@given(
    low=st.floats(1e-8, 1e8),
    factor=st.floats(1.0, 1e6),
    count=st.integers(2, 9),
)
def test_any_range_gets_ascending_ticks_within_the_axis(kind, low, factor, count):
    axis = value_axis(low, low * factor, kind, count, label)
    assert axis.low < axis.high
    assert len(axis.ticks) <= max(count, 2)
    assert list(axis.ticks) == sorted(set(axis.ticks))
    assert all(axis.low - 1e-6 <= t <= axis.high + 1e-6 for t in axis.ticks)
    ends = axis.map(np.array([low, low * factor]))
    assert axis.low - 1e-6 <= ends[0] <= ends[1] <= axis.high + 1e-6
