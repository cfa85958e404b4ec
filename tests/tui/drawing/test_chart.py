import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tui.drawing.chart import Chart, Series, draw
from tui.drawing.raster import ASCII, BRAILLE, CHARSETS


def exponent(value):
    return f"2^{int(np.log2(value))}"


def number(value):
    return f"{value:g}"


def text(rows):
    return ["".join(piece for piece, _ in row) for row in rows]


def roles(row, role):
    """Columns of the row that carry a role."""
    out, at = [], 0
    for piece, its in row:
        if its == role:
            out += range(at, at + cell_len(piece))
        at += cell_len(piece)
    return out


def scale_chart():
    x = np.arange(1.0, 1001.0)
    y = np.full(1000, 2.0**15)
    y[400:] = 2.0**14
    return Chart(
        "scale",
        [Series(x, y, hold=True)],
        exponent,
        kind="log2",
        ticks=np.array([400.0]),
        note="2^14",
    )


def test_the_scale_steps_down_on_its_axis_with_a_tick_below():
    rows = draw(scale_chart(), 30, 7, ASCII)
    assert text(rows) == [
        "scale  2^14                   ",
        "2^15┤'''''''''';              ",
        "               |              ",
        '2^14┤          "--------------',
        "                              ",
        "2^13┤                         ",
        "    └─────────┴───────────────",
    ]
    assert roles(rows[-1], "tick") == [14]


@pytest.mark.parametrize("charset", CHARSETS.values(), ids=str)
@pytest.mark.parametrize(("width", "height"), [(10, 3), (24, 6), (38, 9), (66, 20)])
def test_a_chart_fills_its_rectangle_exactly(charset, width, height):
    x = np.arange(50.0)
    chart = Chart("loss", [Series(x, np.exp(-x))], number, note="1.2", x_label=number)
    rows = text(draw(chart, width, height, charset))
    assert len(rows) == height
    assert {cell_len(r) for r in rows} == {width}


def test_nan_is_marked_on_the_base_line_not_left_as_a_gap():
    y = np.ones(100)
    y[50] = np.nan
    chart = Chart("loss", [Series(np.arange(100.0), y)], number)
    rows = draw(chart, 44, 6, BRAILLE)
    gutter = text(rows)[-1].index("└") + 1
    (at,) = roles(rows[-1], "bad")
    assert abs((at - gutter) / (44 - gutter) - 0.5) < 0.05
    assert text(rows)[-1][at] == "×"
    whole = Chart("loss", [Series(np.arange(100.0), np.ones(100))], number)
    assert roles(draw(whole, 44, 6, BRAILLE)[-1], "bad") == []


def test_no_data_says_so():
    chart = Chart("loss", [Series(np.empty(0), np.empty(0))], number, empty="no steps yet")
    assert (
        text(draw(chart, 20, 4, BRAILLE))
        == ["loss                ", "no steps yet        "] + [" " * 20] * 2
    )


def test_only_nan_draws_the_marks():
    chart = Chart("loss", [Series(np.arange(5.0), np.full(5, np.nan))], number)
    rows = draw(chart, 20, 6, BRAILLE)
    assert roles(rows[-1], "bad") != []


def test_a_zoomed_chart_scales_to_what_is_in_view():
    x = np.arange(1000.0)
    chart = Chart("loss", [Series(x, x)], number, kind="linear", span=(100.0, 200.0))
    labels = [r.split("┤")[0].strip() for r in text(draw(chart, 40, 9, BRAILLE)) if "┤" in r]
    assert labels
    assert all(100 <= float(v) <= 200 for v in labels)


def test_two_lines_keep_their_own_roles():
    x = np.arange(100.0)
    chart = Chart("loss", [Series(x, x), Series(x, 99 - x)], number, kind="linear")
    seen = {role for row in draw(chart, 40, 10, BRAILLE) for _, role in row}
    assert {"line", "line2"} <= seen


def test_one_point_is_visible():
    chart = Chart("loss", [Series(np.array([1.0]), np.array([0.5]))], number)
    assert any("line" in {role for _, role in row} for row in draw(chart, 30, 6, BRAILLE))


EDGES = [0.0, 1e308, -1e308, 5e-324, np.nan, np.inf, -np.inf]
VALUES = st.lists(st.one_of(st.floats(), st.sampled_from(EDGES)), max_size=30)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(VALUES, min_size=1, max_size=3),
    st.sampled_from([None, "linear", "log10", "log2"]),
    st.integers(16, 60),
    st.integers(4, 12),
    st.booleans(),
)
def test_any_numbers_make_a_chart_of_the_size_asked_for(columns, kind, width, height, noisy):
    series = [Series(np.arange(float(len(y))), np.array(y), noisy=noisy) for y in columns]
    rows = draw(Chart("loss", series, lambda v: f"{v:.3g}", kind=kind), width, height, BRAILLE)
    assert len(rows) == height
    assert {cell_len("".join(text for text, _ in row)) for row in rows} == {width}
