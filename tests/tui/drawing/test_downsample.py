import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.drawing.downsample import bridge, minmax


def test_a_dip_of_one_step_in_100_000_is_kept_by_its_column_alone():
    scale = np.full(100_000, 65536.0)
    scale[50_000] = 32768.0
    columns = minmax(np.arange(100_000.0), scale, 0, 99_999, columns=200)
    assert np.flatnonzero(columns.low == 32768.0).tolist() == [100]
    assert columns.high.tolist() == [65536.0] * 200
    # The two reductions that lose or hide it, on the same data: every 500th point, and the mean.
    assert scale[250::500].min() == 65536.0
    assert scale.reshape(200, 500).mean(axis=1).min() > 65_000


def test_each_column_keeps_low_high_first_and_last():
    columns = minmax(np.arange(6.0), np.array([3.0, 9, 1, 4, 4, 2]), 0, 6, columns=2)
    assert columns.low.tolist() == [1, 2]
    assert columns.high.tolist() == [9, 4]
    assert columns.first.tolist() == [3, 4]
    assert columns.last.tolist() == [1, 2]


def test_the_last_point_belongs_to_the_last_column():
    columns = minmax(np.array([0.0, 10.0]), np.array([1.0, 2.0]), 0, 10, columns=5)
    assert columns.last[4] == 2.0
    assert np.isnan(columns.low[1:4]).all()


def test_nan_and_infinities_are_counted_and_do_not_hide_their_neighbours():
    y = np.array([1.0, np.nan, 3.0, np.inf, -np.inf, 6.0])
    columns = minmax(np.arange(6.0), y, 0, 5, columns=2)
    assert columns.bad.tolist() == [1, 2]
    assert columns.high.tolist() == [3, 6]
    only_bad = minmax(np.arange(3.0), np.full(3, np.nan), 0, 2, columns=1)
    assert np.isnan(only_bad.low[0])
    assert only_bad.bad.tolist() == [3]


def test_points_outside_the_range_are_left_out():
    columns = minmax(np.arange(10.0), np.arange(10.0), 3, 5, columns=1)
    assert (columns.low[0], columns.high[0]) == (3.0, 5.0)


def test_no_points_give_empty_columns():
    columns = minmax(np.empty(0), np.empty(0), 0, 1, columns=3)
    assert np.isnan(columns.low).all()
    assert columns.bad.tolist() == [0, 0, 0]


def test_a_gap_is_bridged_by_holding_or_by_a_straight_line():
    columns = minmax(np.array([0.0, 4.0]), np.array([1.0, 5.0]), 0, 4, columns=5)
    assert bridge(columns, hold=True).low.tolist() == [1, 1, 1, 1, 5]
    assert bridge(columns, hold=False).low.tolist() == [1, 2, 3, 4, 5]


def test_nothing_is_drawn_before_the_first_point_or_after_the_last():
    columns = minmax(np.array([2.0, 3.0]), np.array([1.0, 1.0]), 0, 6, columns=6)
    assert np.isnan(bridge(columns, hold=True).low).tolist() == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200),
    st.integers(1, 50),
)
def test_extremes_survive_any_number_of_columns(values, count):
    y = np.array(values)
    columns = minmax(np.arange(float(len(y))), y, 0, max(len(y) - 1, 1), columns=count)
    assert np.nanmin(columns.low) == y.min()
    assert np.nanmax(columns.high) == y.max()
    assert not np.any(columns.low > columns.high)


@pytest.mark.parametrize(("x", "y", "n"), [([1.0], [1.0], 0), ([1.0], [1.0, 2.0], 3)])
def test_wrong_use_is_refused(x, y, n):
    with pytest.raises(ValueError, match="Received"):
        minmax(np.array(x), np.array(y), 0, 1, columns=n)
