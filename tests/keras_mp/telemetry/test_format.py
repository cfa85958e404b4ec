import math

import pytest

from keras_mp.telemetry import format as fmt


@pytest.mark.parametrize(
    ("call", "value", "text"),
    [
        (fmt.power_of_two, 2.0**15, "2¹⁵"),
        (fmt.power_of_two, 2.0**-14, "2⁻¹⁴"),
        (fmt.power_of_two, 1.0, "2⁰"),
        (fmt.power_of_two, 3.0, "3"),
        (fmt.power_of_two, 0.0, "0"),
        (fmt.power_of_two, math.inf, "inf"),
        (fmt.power_of_two, None, "–"),
        (fmt.number, 1.83123, "1.831"),
        (fmt.number, 0.00112, "0.00112"),
        (fmt.number, 3.2e-7, "3.20e-07"),
        (fmt.number, math.nan, "nan"),
        (fmt.number, -math.inf, "-inf"),
        (fmt.number, None, "–"),
        (fmt.count, 564, "564"),
        (fmt.count, 2410, "2.41k"),
        (fmt.count, 12_400, "12.4k"),
        (fmt.count, 999.7, "1.00k"),
        (fmt.count, 999_700, "1.00M"),
        (fmt.count, 0.94, "0.94"),
        (fmt.count, math.nan, "–"),
        (fmt.goal, 90_000, "90k"),
        (fmt.goal, 1_250_000, "1.25M"),
        (fmt.goal, 100, "100"),
        (fmt.share, 0.0, "0 %"),
        (fmt.share, 0.00001, "<0.1 %"),
        (fmt.share, 0.001, "0.1 %"),
        (fmt.share, 0.38, "38 %"),
        (fmt.size, 38.1e9, "38.1 GB"),
        (fmt.size, 620e6, "620 MB"),
        (fmt.size, 0, "0 B"),
        (fmt.size, None, "–"),
        (fmt.duration, 0.0021, "2.1 ms"),
        (fmt.duration, 42, "42 s"),
        (fmt.duration, 59.7, "1 min 00"),
        (fmt.duration, 185, "3 min 05"),
        (fmt.duration, 3 * 3600 + 12 * 60, "3 h 12"),
        (fmt.duration, 200_000, "2 d 08"),
        (fmt.duration, math.inf, "–"),
    ],
)
def test_as_people_read_it(call, value, text):
    assert call(value) == text


def test_ascii_for_other_terminals():
    text = "2⁻¹⁴ · 3 × 1,204 → 2¹⁵ – \N{SNOWMAN}"
    assert fmt.ascii_only(text) == "2^-14 | 3 x 1,204 -> 2^15 - ?"


def test_wide_letters_take_two_cells_and_marks_none():
    assert fmt.width("模型") == 4 and fmt.width("e\u0301") == 1
    assert fmt.width(fmt.fit("模型模型模型", 6)) <= 6 and fmt.fit("short", 6) == "short"
    assert fmt.pad("模", 4) == "模  " and fmt.pad("a", 3, right=True) == "  a"
