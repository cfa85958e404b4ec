"""docs/howto/dashboard.md tells every key and every setting. To write the tables anew:
UPDATE_DOCS=1 pytest tests/tui/test_documentation.py"""

import ast
import inspect
import json
import os
import re
from dataclasses import fields
from pathlib import Path

import pytest

from tui import keys, settings
from tui.drawing.raster import CHARSETS
from tui.themes import THEMES

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "dashboard.md"
SCREENS = {
    "jobs": keys.JOBS,
    "job": keys.JOB,
    "compare": keys.COMPARE,
    "numerics": keys.NUMERICS,
    "replay": keys.REPLAY,
    "what-if": keys.WHAT_IF,
    "devices": keys.DEVICES,
    "everywhere": keys.EVERYWHERE,
}


def key_table(entries):
    rows = ["| key | |", "|---|---|"]
    return "\n".join(rows + [f"| `{key.shown}` | {key.text} |" for key in entries if key.text])


def settings_table():
    """Each field with its default and the sentence under it."""
    (tree,) = [
        node
        for node in ast.parse(inspect.getsource(settings)).body
        if isinstance(node, ast.ClassDef) and node.name == "Settings"
    ]
    texts = {}
    for before, node in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(node, ast.Expr):
            texts[before.target.id] = ast.literal_eval(node.value)
    rows = ["| setting | default | |", "|---|---|---|"]
    for field in fields(settings.Settings):
        default = json.dumps(getattr(settings.Settings(), field.name))
        rows.append(f"| `{field.name}` | `{default}` | {' '.join(texts[field.name].split())} |")
    return "\n".join(rows)


TABLES = {f"keys {name}": key_table(entries) for name, entries in SCREENS.items()}
TABLES["settings"] = settings_table()


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_the_table(name):
    page = PAGE.read_text()
    marks = f"<!-- {name} -->\n", f"\n<!-- end {name} -->"
    assert page.count(marks[0]) == page.count(marks[1]) == 1, f"no place for {name}"
    if os.environ.get("UPDATE_DOCS"):
        pattern = re.escape(marks[0]) + ".*?" + re.escape(marks[1])
        table = marks[0] + TABLES[name] + marks[1]
        page = re.sub(pattern, lambda _: table, page, count=1, flags=re.S)
        PAGE.write_text(page)
    assert TABLES[name] in page


def test_themes_and_charsets_are_named():
    page = PAGE.read_text()
    for name in (*THEMES, *CHARSETS):
        assert f"`{name}`" in page
