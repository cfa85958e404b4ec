"""Fills in pages of the site from what stands elsewhere, so that nothing is said twice.

``{{ file: CHANGELOG.md }}`` is a whole file without its title, ``{{ section: README.md: Limits }}``
one of its sections, and ``{{ api }}`` the reference of every public name.
"""

import ast
import importlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The packages in which public names live, as headings of the reference.
PARTS = {
    "policies": "Policies: in which dtype does each layer compute?",
    "scaling": "Scaling: by how much is the loss scaled?",
    "telemetry": "Telemetry: what does a job say about itself?",
    "numerics": "Numerics: what happens to the numbers?",
    "bench": "Trials: what does it gain?",
}
# Modules whose classes are made when they are imported: no source shows their names.
MADE_OF_KERAS = ("losses", "metrics")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(name: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", read(name), re.M | re.S)
    if found is None:
        raise ValueError(f"{name} has no section '{title}'")
    return found[1].strip()


def body(name: str) -> str:
    """Without its title; Arabic text is marked as Markdown inside HTML."""
    text = re.sub(r"\A# .*\n", "", read(name)).strip()
    text = text.replace('<div dir="rtl" lang="ar">', '<div dir="rtl" lang="ar" markdown>')
    return text.replace("](docs/", "](").replace("](README.md)", "](index.md)")


def inherited(module: str, name: str) -> list[str]:
    """Public methods that a class has from classes of ours; read from the source, not imported."""
    tree = ast.parse(read(module.replace(".", "/") + ".py"))
    (found,) = [n for n in ast.walk(tree) if getattr(n, "name", "") == name] or [None]
    ours = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keras_mp.")
        for alias in node.names
    }
    members: list[str] = []
    for base in getattr(found, "bases", []):
        place = ours.get(getattr(base, "id", ""))
        if place is None:
            continue
        tree = ast.parse(read(place[0].replace(".", "/") + ".py"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == place[1]:
                defined = [n.name for n in node.body if isinstance(n, ast.FunctionDef)]
                members += [n for n in defined if not n.startswith("_") and n not in members]
        members += [n for n in inherited(*place) if n not in members]
    return members


def api() -> str:
    """A directive for each public name, under the package it stands in."""
    package = importlib.import_module("keras_mp")
    places: dict[str, list[str]] = {}
    for name, module in package._PUBLIC.items():
        part = module.split(".")[1]
        directive = f"::: {module}.{name}"
        if members := ", ".join(inherited(module, name)):
            directive += f"\n    options:\n      inherited_members: [{members}]"
        places.setdefault(part, []).append(directive)
    for module in package._MODULES:
        places.setdefault(module, []).append(f"::: keras_mp.{module}")
        if module in MADE_OF_KERAS:
            found = importlib.import_module(f"keras_mp.{module}").__all__
            places[module].append(", ".join(f"`{name}`" for name in found) + ".")
    parts = []
    for part in (*PARTS, *(set(places) - set(PARTS))):
        if part in places:
            parts.append(f"## {PARTS.get(part, part.title())}")
            parts += places[part]
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, **_: object) -> str:
    markdown = re.sub(
        r"\{\{ section: (\S+): (.+?) \}\}", lambda m: section(m[1], m[2]), markdown
    )
    markdown = re.sub(r"\{\{ file: (\S+) \}\}", lambda m: body(m[1]), markdown)
    return markdown.replace("{{ api }}", api()) if "{{ api }}" in markdown else markdown

