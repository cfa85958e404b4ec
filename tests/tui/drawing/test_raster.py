import numpy as np
import pytest

from tui.drawing.downsample import bridge, minmax
from tui.drawing.raster import ASCII, BLOCKS, BRAILLE, CHARSETS, encode, occupied, trace


def grid(*rows: str) -> np.ndarray:
    return np.array([[c == "#" for c in row] for row in rows])


def test_braille_cells_follow_the_unicode_numbering():
    # Dots 1-8 of the Unicode braille block, each alone: U+2800 + 1 << (dot - 1).
    places = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (3, 0), (3, 1)]
    for dot, (row, column) in enumerate(places):
        dots = np.zeros((4, 2), bool)
        dots[row, column] = True
        assert encode(dots, BRAILLE) == [chr(0x2800 + (1 << dot))]


def test_quadrants_and_ascii_show_the_same_dots():
    assert encode(grid("#.", "##"), BLOCKS) == ["▙"]
    assert encode(grid("##", "##"), BLOCKS) == ["█"]
    assert encode(grid("#", "#", "."), ASCII) == ['"']
    assert encode(grid(".", ".", "#"), ASCII) == ["."]


@pytest.mark.parametrize("charset", CHARSETS.values(), ids=str)
def test_an_empty_cell_is_a_space_in_every_charset(charset):
    dots = np.zeros((charset.down * 2, charset.across * 3), bool)
    assert encode(dots, charset) == ["   ", "   "]
    assert len(set(charset.characters)) == 2 ** (charset.across * charset.down)


def test_ascii_is_ascii():
    assert ASCII.characters.isascii()


def line(y, rows=8, columns=None, hold=False):
    y = np.array(y, dtype=float)
    columns = columns or len(y)
    reduced = minmax(np.arange(len(y)), y, 0, len(y) - 1, columns)
    return trace(bridge(reduced, hold), 0.0, rows - 1.0, rows)


def test_a_line_goes_up_for_larger_values_and_has_no_holes():
    dots = line([0, 7])
    assert dots[7, 0], "0 is at the bottom"
    assert dots[0, 1], "7 is at the top"
    # From column to column some dot touches some dot of the neighbour.
    dots = line([0, 7, 3, 3, 0])
    for left, right in zip(dots.T, dots.T[1:], strict=False):
        a, b = np.flatnonzero(left), np.flatnonzero(right)
        assert np.abs(a[:, None] - b[None, :]).min() <= 1


def test_a_dip_in_one_column_reaches_down_and_only_there():
    y = np.full(1000, 7.0)
    y[500] = 0.0
    dots = line(y, columns=10)
    assert np.flatnonzero(dots[7]).tolist() == [5]


def test_an_outlier_is_drawn_at_the_edge():
    dots = line([3, 1e9, 3])
    assert dots[0, 1]


def test_columns_without_data_have_no_dots():
    reduced = minmax(np.array([0.0]), np.array([3.0]), 0, 9, 10)
    dots = trace(bridge(reduced, False), 0, 7, 8)
    assert dots[:, 1:].sum() == 0
    assert dots[:, 0].sum() == 1


def test_occupied_names_the_cells_that_hold_a_dot():
    dots = np.zeros((8, 4), bool)
    dots[5, 3] = True
    assert occupied(dots, BRAILLE).tolist() == [[False, False], [False, True]]
