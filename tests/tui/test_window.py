import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.window import Window

WHOLE = (0.0, 1000.0)


def test_zoom_keeps_the_cursor_where_it_stands_on_the_screen():
    window = Window(cursor=250.0).zoom(0.5, WHOLE)
    assert window.span == (125.0, 625.0)
    assert (250.0 - 125.0) / 500.0 == 250.0 / 1000.0


def test_zooming_out_ends_with_everything():
    window = Window().zoom(0.5, WHOLE)
    assert window.span == (250.0, 750.0)
    assert window.zoom(2.0, WHOLE).span is None
    assert Window().zoom(2.0, WHOLE).span is None


def test_pan_stops_at_the_ends():
    window = Window(span=(100.0, 200.0))
    assert window.pan(0.5, WHOLE).span == (150.0, 250.0)
    assert window.pan(-5, WHOLE).span == (0.0, 100.0)
    assert window.pan(50, WHOLE).span == (900.0, 1000.0)
    assert Window().pan(0.5, WHOLE).span is None


def test_the_cursor_starts_at_the_end_and_stays_in_view():
    assert Window().move_cursor(-0.1, WHOLE).cursor == 900.0
    assert Window().move_cursor(0.5, WHOLE).cursor == 1000.0
    moved = Window(span=(100.0, 200.0), cursor=195.0).move_cursor(0.1, WHOLE)
    assert moved.cursor == 205.0
    assert moved.span[0] <= 205.0 <= moved.span[1]


def test_turning_to_time_forgets_positions():
    window = Window(span=(1.0, 2.0), cursor=1.5, log=True).turned()
    assert (window.by, window.span, window.cursor, window.log) == ("time", None, None, True)
    assert window.turned().by == "step"


def test_the_value_axis_goes_round():
    assert [Window().next_log().log, Window(log=True).next_log().log] == [True, False]
    assert Window(log=False).next_log().log is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["zoom", "pan", "move_cursor"]), st.floats(-3, 3)), max_size=20
    )
)
def test_whatever_is_done_the_view_lies_within_the_job(steps):
    window = Window()
    for name, amount in steps:
        amount = abs(amount) + 0.01 if name == "zoom" else amount
        window = getattr(window, name)(amount, WHOLE)
        if window.span is not None:
            assert WHOLE[0] - 1e-6 <= window.span[0] < window.span[1] <= WHOLE[1] + 1e-6
        if window.cursor is not None:
            assert WHOLE[0] <= window.cursor <= WHOLE[1]
    assert window.zoom(1e9, WHOLE).span is None


def test_there_is_a_smallest_view():
    window = Window()
    for _ in range(100):
        window = window.zoom(0.5, WHOLE)
    assert window.span[1] - window.span[0] == pytest.approx(1000 * 1e-6)
