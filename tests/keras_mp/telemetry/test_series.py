"""Columns that grow, and stay bounded without losing a dip."""

import numpy as np
import pytest

from keras_mp.telemetry.series import MAX_COLUMNS, Series


def test_points_and_missing_values():
    series = Series("loss")
    series.append(1, 10.0, {"loss": 0.5})
    series.append(2, 11.0, {"loss": None, "late": 7.0})
    np.testing.assert_array_equal(series["step"], [1, 2])
    np.testing.assert_array_equal(series["loss"], [0.5, np.nan])
    np.testing.assert_array_equal(series["late"], [np.nan, 7.0])
    np.testing.assert_array_equal(series["never"], [np.nan, np.nan])
    assert len(series) == 2 and "late" in series and "never" not in series


def test_views_stay_as_they_were_while_points_are_added():
    series = Series("loss")
    for step in range(1, 60):
        series.append(step, step, {"loss": step})
    view = series["loss"]
    for step in range(60, 2000):
        series.append(step, step, {"loss": step})
    np.testing.assert_array_equal(view, np.arange(1, 60))
    np.testing.assert_array_equal(series["loss"], np.arange(1, 2000))
    with pytest.raises(ValueError):
        view[0] = 1


def test_an_earlier_step_replaces_what_came_after():
    series = Series("loss")
    for step in range(1, 11):
        series.append(step, step, {"loss": step})
    series.append(6, 20.0, {"loss": -6})
    np.testing.assert_array_equal(series["step"], [1, 2, 3, 4, 5, 6])
    assert series["loss"][-1] == -6


def test_thinning_keeps_order_extremes_and_the_latest_half():
    series = Series("loss", max_points=1000)
    rng = np.random.default_rng(0)
    values = rng.normal(size=50_000)
    values[1234], values[777] = -1e6, 1e6
    for step, value in enumerate(values, 1):
        series.append(step, step, {"loss": value})
    assert len(series) <= 1000
    steps = series["step"]
    assert np.all(np.diff(steps) > 0)
    assert steps[-1] == 50_000
    np.testing.assert_array_equal(steps[-400:], np.arange(50_000 - 399, 50_001))
    assert series["loss"].min() == -1e6 and series["loss"].max() == 1e6
    np.testing.assert_array_equal(series["loss"], values[steps.astype(int) - 1])


def test_thinning_with_nothing_measured():
    series = Series("loss", max_points=64)
    for step in range(1, 1000):
        series.append(step, step, {})
    assert len(series) <= 64 and np.all(np.isnan(series["loss"]))


def test_columns_are_bounded():
    series = Series("loss")
    series.append(1, 1.0, {f"m{i}": i for i in range(10 * MAX_COLUMNS)})
    assert len(series.columns) <= MAX_COLUMNS
