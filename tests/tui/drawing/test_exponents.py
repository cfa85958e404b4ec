import numpy as np
import pytest

from keras_mp.numerics.formats import FORMATS
from keras_mp.numerics.histogram import exponent_histogram, shares
from tui.drawing.exponents import draw, regions

FLOAT16 = FORMATS["float16"]


def text(rows):
    return ["".join(piece for piece, _ in row) for row in rows]


def cells_of(rows, role):
    """Drawn cells of the bars in a role."""
    return sum(len(p) - p.count(" ") for row in rows[:-3] for p, r in row if r == role)


def test_the_limits_are_those_of_float16():
    lost, subnormal, normal, overflow = regions(FLOAT16)
    assert (lost.stop, subnormal.stop, normal.stop) == (-25, -14, 16)
    assert (subnormal.start, normal.start, overflow.start) == (-25, -14, 16)


def test_a_scale_moves_the_bars_and_not_the_axis():
    hist = exponent_histogram(np.full(100, 2.0**-20))
    before, after = draw(hist, FLOAT16, 1.0, 100, 10), draw(hist, FLOAT16, 2.0**10, 100, 10)
    assert text(before)[-3:] == text(after)[-3:]
    first = text(before)[0].index("█")
    second = text(after)[0].index("█")
    # The limits 2^-25 and 2^-14 stand 11 powers apart, which gives the cells of one.
    base = text(before)[-3]
    step = (base.index("┴", base.index("┴") + 1) - base.index("┴")) / 11
    assert second - first == pytest.approx(10 * step)


@pytest.mark.parametrize(
    ("value", "role"),
    [(2.0**-30, "bad"), (2.0**-20, "warn"), (1.0, "line"), (2.0**15, "line"), (2.0**16, "bad")],
)
def test_each_bar_has_the_colour_of_its_fate(value, role):
    hist = exponent_histogram(np.full(10, value))
    rows = draw(hist, FLOAT16, 1.0, 100, 10)
    for each in ("bad", "warn", "line"):
        assert (cells_of(rows, each) > 0) == (each == role)
    told = shares(hist, "float16")
    kinds = {"bad": told.lost + told.overflow, "warn": told.subnormal}
    assert kinds.get(role, told.normal + told.near) == 1.0


def test_a_single_value_among_a_million_is_seen():
    values = np.ones(1_000_000, np.float32)
    values[0] = 2.0**-30
    rows = draw(exponent_histogram(values), FLOAT16, 1.0, 100, 10)
    assert cells_of(rows, "bad") > 0


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize("width", [40, 78, 198])
@pytest.mark.parametrize("scale", [2.0**-40, 1.0, 2.0**40])
def test_it_fits_any_width_in_any_format(name, width, scale):
    rng = np.random.default_rng(0)
    values = rng.standard_normal(5000) * 2.0 ** rng.integers(-60, 10, 5000)
    rows = draw(exponent_histogram(values), FORMATS[name], scale, width, 12)
    assert len(rows) == 12
    assert all(len(row) <= width for row in text(rows))
    assert cells_of(rows, "bad") + cells_of(rows, "warn") + cells_of(rows, "line") > 0


def test_without_a_value_there_is_the_axis_alone():
    rows = draw(exponent_histogram(np.zeros(5)), FLOAT16, 1.0, 80, 8)
    assert not any("█" in row for row in text(rows))
    assert "normal" in text(rows)[-1]


def test_in_ascii_it_is_ascii_but_for_the_powers():
    rows = draw(exponent_histogram(np.ones(5)), FLOAT16, 1.0, 80, 8, unicode=False)
    assert "".join(text(rows[:-2])).isascii()
