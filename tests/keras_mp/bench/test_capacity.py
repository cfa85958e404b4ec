"""Memory as a line in the batch size; the largest batch that fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_mp.bench.capacity import fit_line, largest_batch, sizes_for


def test_a_line_is_found_again():
    line = fit_line("allocator peak", [(32, 1000 + 32 * 7), (16, 1000 + 16 * 7), (8, 1056)], 10**6)
    assert (line.fixed, line.slope, line.slopes) == (1000, 7, (7, 7))
    assert line.points == [(8, 1056), (16, 1112), (32, 1224)]
    assert line.at(1000) == 8000


@given(
    st.integers(0, 10**12),
    st.integers(1, 10**9),
    st.integers(10**6, 10**13),
    st.floats(0, 0.9),
)
def test_the_largest_batch_fits_and_eight_more_do_not(fixed, slope, budget, headroom):
    found = largest_batch(fixed, slope, budget, headroom)
    room = budget * (1 - headroom)
    if found is None:
        assert fixed + slope > room * (1 - 1e-9)
        return
    assert fixed + slope * found <= room * (1 + 1e-9)
    more = found + (8 if found >= 8 else 1)
    assert fixed + slope * more > room * (1 - 1e-9)
    assert found % 8 == 0 or found < 8


def test_what_bends_upwards_is_not_promised_too_much():
    # Slopes of 10 and 20 bytes a sample: beyond the last point the steeper one is the safer.
    line = fit_line("allocator peak", [(10, 100), (20, 200), (40, 600)], 10_000, headroom=0.0)
    assert line.slopes == (10, 20)
    assert line.at(40) == 600
    assert line.largest_batch == 504  # 600 + 20 * (504 - 40) = 9,880; by the first slope it is 976


@pytest.mark.parametrize("budget", [0, 50])
def test_an_unknown_or_too_small_budget_has_no_batch(budget):
    assert fit_line("allocator peak", [(1, 110), (2, 120), (4, 140)], budget).largest_batch is None


@pytest.mark.parametrize("points", [[(1, 1), (2, 2)], [(1, 1), (1, 2), (2, 3)]])
def test_two_slopes_need_three_sizes(points):
    with pytest.raises(ValueError, match="three batch sizes that differ"):
        fit_line("allocator peak", points, 100)


@pytest.mark.parametrize(
    ("batch", "sizes"), [(32, (16, 32, 64)), (3, (1, 3, 6)), (1, (1, 2, 4)), (2, (1, 2, 4))]
)
def test_sizes_differ_for_any_batch(batch, sizes):
    assert sizes_for(batch) == sizes
