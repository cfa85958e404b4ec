"""README.ar.md says what README.md says: same sections, code, commands, names, figures and rows."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.ar.md")}
ENGLISH, ARABIC = TEXTS.values()


def headings(text):
    return [len(marks) for marks in re.findall(r"^(#+) ", without_code(text), re.MULTILINE)]


def fenced(text):
    return re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)


def indented(text):
    return re.findall(r"^    \S.*", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)


def without_code(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^    \S.*", "", text, flags=re.MULTILINE)


def names(text):
    """Everything in backticks: public names, commands, extras, policies."""
    return set(re.findall(r"`([^`\n]+)`", without_code(text)))


def bullets(text):
    return len(re.findall(r"^- ", text, re.MULTILINE))


def table(text):
    return [line.count("|") for line in text.splitlines() if line.startswith("|")]


def figures(text):
    return sorted(re.findall(r"\d+ %", without_code(text)))


def pictures(text):
    return re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)


@pytest.mark.parametrize("part", [headings, fenced, indented, bullets, table, figures, pictures])
def test_both_have_the_same(part):
    """Fails when one README was changed and the other not: change README.ar.md too."""
    assert part(ARABIC) == part(ENGLISH)
    assert part(ENGLISH)  # not the same because both are empty


def test_every_name_of_the_one_is_in_the_other():
    """The Arabic also says in words what the English leaves to the comments in its code."""
    assert names(ENGLISH) - names(ARABIC) == set()
    assert {name for name in names(ARABIC) if name not in ENGLISH} == set()


def test_each_links_to_the_other():
    assert "(README.ar.md)" in ENGLISH and "(README.md)" in ARABIC


def test_the_arabic_runs_from_right_to_left_and_the_code_does_not():
    inside = False
    for line in ARABIC.splitlines():
        if line == '<div dir="rtl" lang="ar">':
            assert not inside
            inside = True
        elif line == "</div>":
            assert inside
            inside = False
        elif line.startswith(("```", "    ")):
            assert not inside, line
        elif re.search("[\u0600-\u06ff]", line) and not line.startswith("!["):
            assert inside, line
    assert not inside


def test_it_is_arabic_and_field_terms_have_the_english_beside_them():
    letters = re.findall(r"[\u0600-\u06ff]", without_code(ARABIC))
    assert len(letters) > 2000
    for term in ("mixed precision", "loss scale", "overflow", "master weights", "gradients"):
        assert f"({term})" in ARABIC, term


LRM, RLM = "\u200e", "\u200f"


def test_signs_at_the_ends_of_code_stay_with_it():
    """A bracket, dash, dot or slash takes the direction of the Arabic around it, and jumps to the
    other end of the code, unless a mark stands between."""
    found = list(re.finditer(r"(.?)`([^`\n]+)`(.?)", without_code(ARABIC)))
    assert len(found) > 50
    for before, code, after in (match.groups() for match in found):
        assert code[0].isalnum() or before == LRM, code
        assert code[-1].isalnum() or after == LRM, code


def test_a_comma_between_latin_words_belongs_to_the_arabic_sentence():
    """Otherwise the words around it change places."""
    commas = re.findall(rf"[A-Za-z0-9`{LRM}][،؛](.?)(?= ?[`A-Za-z{LRM}])", without_code(ARABIC))
    assert commas and set(commas) == {RLM}
