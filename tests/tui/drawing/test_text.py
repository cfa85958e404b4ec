import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tui.drawing.text import clean, fit, fit_end, plain, shorten, wrap


def test_text_is_padded_or_cut_to_the_width():
    assert fit("ab", 4) == "ab  "
    assert fit("ab", 4, right=True) == "  ab"
    assert fit("resnet50", 5) == "resn…"
    assert fit("resnet50", 0) == ""


def test_wide_characters_are_counted_as_two_cells():
    assert fit("数字識別", 6) == "数字… "
    assert cell_len(fit("数字識別", 6)) == 6


def test_of_a_path_the_end_is_kept():
    assert fit_end("/data/runs", 10) == "/data/runs"
    assert fit_end("/data/runs", 6) == "…/runs"
    assert fit_end("/data/数字", 5) == "…数字"
    assert fit_end("/data/runs", 1) == "…" and fit_end("/data/runs", 0) == ""


def test_of_a_name_the_middle_is_cut():
    assert shorten("resnet50", 8) == "resnet50"
    assert shorten("resnet50-seed1", 9) == "resn…eed1"
    assert shorten("数字識別模型", 9) == "数字…模型"
    assert [shorten("resnet50", width) for width in range(4)] == ["", "…", "r…", "r…0"]


@given(st.text(max_size=60), st.integers(0, 40))
def test_a_shortened_name_is_never_wider_than_its_room(name, width):
    assert cell_len(shorten(clean(name), width)) <= width


def test_lines_are_broken_at_spaces_and_counted_in_cells():
    assert wrap("one two three", 8) == ["one two", "three"]
    assert wrap("one two three", 8, taken=5) == ["one", "two", "three"]
    assert wrap("one two", 8, taken=6) == ["", "one two"]
    assert wrap("数字識別 模型", 8) == ["数字識別", "模型"]
    assert wrap("abcdefghij kl", 4) == ["abcd", "efgh", "ij", "kl"]
    assert wrap("", 8) == [""]


@given(st.text(max_size=80), st.integers(2, 40), st.integers(0, 40))
def test_wrapped_lines_fit_and_lose_no_word(text, width, taken):
    text = clean(text)
    first, *others = wrap(text, width, min(taken, width))
    assert cell_len(first) <= width - min(taken, width)
    assert all(cell_len(line) <= width for line in others)
    assert "".join([first, *others]).replace(" ", "") == "".join(text.split())


@given(st.text(max_size=30), st.integers(0, 40), st.booleans())
def test_any_name_takes_exactly_its_column(name, width, right):
    assert cell_len(fit(clean(name), width, right)) == width


@given(st.text(max_size=30))
def test_a_name_cannot_drive_the_terminal(name):
    cleaned = clean(name)
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in cleaned)


def test_control_characters_and_invisible_ones():
    assert clean("a\x1b[2Jb\nc") == "a?[2Jb?c"
    assert clean("a\u200db\u202ec") == "abc"
    assert clean("e\u0301t\u00e9") == "été"


@pytest.mark.parametrize("text", ["▸ lm-big · 12…", "数字 →", "2⁻¹⁴ é"])
def test_plain_text_is_ascii_of_the_same_width(text):
    assert plain(text).isascii()
    assert cell_len(plain(text)) == cell_len(text)
