import numpy as np
import pytest

from tui.drawing.heat import HEADROOM, LOST, strip

STEPS = np.arange(100, dtype=np.float64)


def text(row):
    return "".join(piece for piece, _ in row)


@pytest.mark.parametrize(
    ("lost", "sign"),
    [(0.0, "·"), (0.0009, "·"), (0.001, "░"), (0.01, "▒"), (0.05, "▓"), (0.2, "█"), (1.0, "█")],
)
def test_the_more_is_lost_the_darker(lost, sign):
    row = strip(STEPS, np.full(100, lost), (0, 99), 10, LOST)
    assert text(row) == sign * 10


@pytest.mark.parametrize(
    ("room", "sign"), [(20.0, "·"), (8.1, "·"), (8.0, "░"), (3.0, "▒"), (1.0, "▓"), (-1.0, "█")]
)
def test_the_less_room_the_darker(room, sign):
    assert text(strip(STEPS, np.full(100, room), (0, 99), 10, HEADROOM)) == sign * 10


def test_a_single_bad_look_is_not_averaged_away():
    lost = np.zeros(100)
    lost[57] = 0.5
    assert text(strip(STEPS, lost, (0, 99), 10, LOST)) == "·····█····"


def test_looks_that_are_far_apart_hold_until_the_next():
    row = strip(np.array([0.0, 50.0, 99.0]), np.array([0.5, 0.02, 0.0]), (0, 99), 10, LOST)
    assert text(row) == "█████▒▒▒▒·"


def test_before_the_first_look_nothing_is_said():
    row = strip(np.array([50.0, 99.0]), np.array([0.5, 0.5]), (0, 99), 10, LOST)
    assert text(row) == "     █████"


def test_what_overflows_is_a_cross():
    bad = np.zeros(100)
    bad[30:40] = 0.001
    assert text(strip(STEPS, np.zeros(100), (0, 99), 10, LOST, bad)) == "···×······"


def test_each_level_has_a_sign_and_a_role_of_its_own():
    lost = np.repeat([0.0, 0.005, 0.02, 0.1, 0.5], 20)
    unicode = strip(STEPS, lost, (0, 99), 5, LOST)
    assert len({role for _, role in unicode}) == len({sign for sign, _ in unicode}) == 5
    ascii_row = text(strip(STEPS, lost, (0, 99), 5, LOST, unicode=False))
    assert ascii_row.isascii()
    assert len(set(ascii_row)) == 5


def test_nothing_measured_is_blank():
    assert text(strip(STEPS, np.full(100, np.nan), (0, 99), 10, LOST)) == " " * 10
