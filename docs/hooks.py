"""Fills in pages of the site from what stands elsewhere, so that nothing is said twice.

``{{ file: CHANGELOG.md }}`` is a whole file without its title, ``{{ section: README.md: Limits }}``
one of its sections, and ``{{ api }}`` the reference of every public name.
"""

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
# What a class inherits from mixins of ours and users call on it.
INHERITED = {
    "LossScaleOptimizer": (
        "loss_scale",
        "skipped_steps",
        "applied_steps",
        "last_step_finite",
        "watch",
        "recent_steps",
        "describe",
        "overflow_report",
        "headroom",
        "measure_headroom",
    )
}


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


def api() -> str:
    """A directive for each public name, under the package it stands in."""
    package = importlib.import_module("keras_mp")
    places: dict[str, list[str]] = {}
    for name, module in package._PUBLIC.items():
        part = module.split(".")[1]
        directive = f"::: {module}.{name}"
        if name in INHERITED:
            members = ", ".join(INHERITED[name])
            directive += f"\n    options:\n      inherited_members: [{members}]"
        places.setdefault(part, []).append(directive)
    for module in package._MODULES:
        places.setdefault(module, []).append(f"::: keras_mp.{module}")
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

