"""Draw docs/*.svg: the real dashboard on journals of real runs (``make screenshots``).

The journals are those of ``tests/recorded`` (``make record``), cut at a moment at which several of
the jobs were training: what the dashboard showed then.
"""

import asyncio
import contextlib
import html
import json
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from textual.pilot import Pilot
from textual.worker import WorkerCancelled

from tui import themes
from tui.app import MonitorApp
from tui.clock import SetClock
from tui.lab.app import LabApp

DOCS = Path(__file__).resolve().parent
RECORDED = DOCS.parent / "tests" / "recorded" / "runs"
JOBS = (
    *("float32", "float16-unscaled", "float16-scaled"),
    *("sawtooth", "thrashing", "exhausted", "nan-loss"),
)
# How far into the shortest of them the picture is taken.
SHARE = 0.95


def cut(source: Path, target: Path, until: float) -> None:
    """A journal as it lay on the disk at ``until``."""
    target.mkdir(parents=True)
    shutil.copy(source / "meta.json", target)
    for path in source.glob("events-*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["time"] <= until]
        (target / path.name).write_text("".join(kept))


def moment() -> float:
    """When all of the jobs were training."""
    first, last = [], []
    for name in JOBS:
        lines = (RECORDED / name / "events-0.jsonl").read_text().splitlines()
        first.append(json.loads(lines[0])["time"])
        last.append(json.loads(lines[-1])["time"])
    return max(first) + SHARE * (min(last) - max(first))


def end_of(run: Path) -> float:
    """When the run wrote its last record."""
    return json.loads((run / "events-0.jsonl").read_text().splitlines()[-1])["time"]


TEXT = re.compile(
    r'<text class="([^"]+)" x="([\d.]+)" y="([\d.]+)" textLength="([\d.]+)"([^>]*)>([^<]*)</text>'
)
LINE, BASE = 24.4, 18.5  # height of a line, and of its base line, in Textual's pictures
# Row and column of each braille dot, in the order of its bit.
DOTS = ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (3, 0), (3, 1))


def portable(svg: str) -> str:
    """Without web fonts, and with braille as dots: few fonts have braille of the right width."""

    def draw(match: re.Match[str]) -> str:
        role, x, y, length, rest, body = match.groups()
        text = html.unescape(body)
        if not any(0x2800 < ord(c) < 0x2900 for c in text):
            return match[0]
        cell = float(length) / len(text)
        dots = []
        for at, character in enumerate(text):
            bits = ord(character) - 0x2800
            for bit, (row, column) in enumerate(DOTS):
                if 0 < bits < 256 and bits >> bit & 1:
                    cx = float(x) + (at + (column + 0.5) / 2) * cell
                    cy = float(y) - BASE + (row + 0.5) * LINE / 4
                    dots.append(f"M{cx:.1f} {cy:.1f}h0")
        left = "".join("\xa0" if 0x2800 < ord(c) < 0x2900 else c for c in text)
        out = f'<path class="{role} dot" d="{"".join(dots)}"/>'
        if left.strip("\xa0 "):
            kept = html.escape(left)
            out += f'<text class="{role}" x="{x}" y="{y}" textLength="{length}"{rest}>{kept}</text>'
        return out

    svg = re.sub(r"@font-face\s*\{[^}]*\}", "", svg)
    svg = svg.replace("Fira Code", "DejaVu Sans Mono")
    # A dot is a stroke of no length with round ends, in the colour of the text it was.
    svg = re.sub(r"(\.[\w-]+-r\d+) \{ fill: (#[0-9a-f]+)", r"\1 { fill: \2;stroke: none", svg)
    svg = TEXT.sub(draw, svg)
    colours = dict(re.findall(r"\.([\w-]+-r\d+) \{ fill: (#[0-9a-f]+)", svg))
    strokes = "".join(
        f".{role}.dot {{ fill: none; stroke: {colour}; stroke-width: 4; stroke-linecap: round }}\n"
        for role, colour in colours.items()
    )
    return svg.replace("</style>", f"{strokes}</style>", 1)


async def picture(name: str, job: str, theme: str, *keys: str, whole: Path | None = None) -> None:
    """One picture, 120 x 40: the jobs with ``job`` selected, then ``keys``.

    Args:
        whole: A run to be shown alone and to its end.
    """
    now = end_of(whole) if whole is not None else moment()
    with tempfile.TemporaryDirectory() as folder:
        for each in [whole] if whole is not None else [RECORDED / name for name in JOBS]:
            cut(each, Path(folder) / "runs" / each.name, now)
        before = Path.cwd()
        os.chdir(folder)
        try:
            app = MonitorApp(
                ["runs"], clock=SetClock(now), alive=lambda *_: True, live=False, charset="braille"
            )
            app.theme = theme
            async with app.run_test(size=(120, 40)) as pilot:
                app.look_now()
                await pilot.pause()
                app.screen.select(f"runs\0{job}")
                await settle(app, pilot)
                for key in keys:
                    await pilot.press(key)
                    await settle(app, pilot)
                svg = app.export_screenshot(title="keras-mp monitor runs")
        finally:
            os.chdir(before)
    (DOCS / f"{name}.svg").write_text(portable(svg))
    print(f"docs/{name}.svg")


async def settle(app: MonitorApp, pilot: Pilot[None]) -> None:
    """Until a screen that reads a journal in a thread has done so."""
    await pilot.pause()
    while app.workers:
        with contextlib.suppress(WorkerCancelled):
            await app.workers.wait_for_complete()
            break
        await pilot.pause()
    await pilot.pause()
    await pilot.pause()


async def lab_picture(name: str, *keys: str) -> None:
    """One picture of the lab, 80 x 24, after ``keys``."""
    app = LabApp(charset="braille")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(*keys)
        await pilot.pause()
        svg = app.export_screenshot(title="keras-mp lab")
    (DOCS / f"{name}.svg").write_text(portable(svg))
    print(f"docs/{name}.svg")


async def main() -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    dark, light = themes.DARK.name, themes.LIGHT.name
    await picture("dashboard", "sawtooth", dark)
    await picture("dashboard-light", "thrashing", light)
    await picture("dashboard-job", "sawtooth", dark, "enter", "shift+left", "shift+left")
    await picture("dashboard-compare", "float16-scaled", dark, "c")
    underflow = RECORDED.parent / "verdicts" / "underflow"
    moved = ("n", "down", *["left"] * 9)
    await picture("dashboard-numerics", "underflow", dark, *moved, whole=underflow)
    await picture("dashboard-replay", "sawtooth", dark, "R", "shift+left", "shift+left", "left")
    await picture("dashboard-what-if", "sawtooth", dark, "i", "down", "down", "right", "right")
    await lab_picture("lab-step", "2", "m")
    await lab_picture("lab-scale", "3", *["right"] * 8)


if __name__ == "__main__":
    asyncio.run(main())
