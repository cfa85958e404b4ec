"""Results: what mixed precision did to accuracy and speed, published and ours; and when."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

from keras_mp.bench.published import Accuracy, accuracies, rows
from keras_mp.bench.published import Row as Speed
from keras_mp.telemetry.format import number
from tui.drawing.roles import Role, Row
from tui.drawing.text import fit
from tui.keys import Key
from tui.lab.page import Page, bar, press, text, turn
from tui.lab.timeline import EVENTS
from tui.look import Look

VIEWS = ("accuracy", "V100", "A100", "ours", "time line")


class ResultsPage(Page):
    TITLE: ClassVar[str] = "Results"
    KEYS: ClassVar[tuple[Key, ...]] = (
        press("right", "← →", "view", "Accuracy, speed on V100 and A100, ours, the time line.", 1),
        press("left", "", "", ""),
        press(
            "down,j", "↑↓", "scroll", "Further down, or up; Page down and up in larger steps.", 1
        ),
        press("up,k", "", "", ""),
        press("pagedown", "", "", ""),
        press("pageup", "", "", ""),
    )

    def __init__(self) -> None:
        self.view = VIEWS[0]
        self.top = 0
        self._room = 1
        self._lines = 0

    def press(self, key: str) -> None:
        if key in ("left", "right"):
            self.view = turn(VIEWS, self.view, 1 if key == "right" else -1)
            self.top = 0
            return
        by = {"down": 1, "up": -1, "pagedown": self._room - 1, "pageup": 1 - self._room}.get(key, 0)
        self.top = min(max(self.top + by, 0), max(0, self._lines - self._room))

    def rows(self, width: int, height: int, look: Look) -> Sequence[Row]:
        head: Row = []
        for view in VIEWS:
            head += [(view, "strong" if view == self.view else "muted"), ("   ", "muted")]
        title, body = self._body(width, look)
        self._room, self._lines = height - 3, len(body)
        self.top = min(self.top, max(0, self._lines - self._room))
        shown = body[self.top : self.top + self._room]
        left = self._lines - self.top - len(shown)
        if left > 0:
            head.append((f"{left} more below", "muted"))
        return [head, text((title, "muted")), [], *shown]

    def _body(self, width: int, look: Look) -> tuple[str, list[Row]]:
        match self.view:
            case "accuracy":
                title = "Published accuracy, the baseline above and mixed precision below."
                return title, list(_accuracy(look))
            case "ours":
                return _ours(look)
            case "time line":
                return "From 16-bit fixed point to float8.", list(_time_line(width))
        against = "float32" if self.view == "V100" else "TF32 (on tensor cores already)"
        title = f"Published training speed on {self.view} against {against}."
        return title, list(_speeds(self.view, look))


def _accuracy(look: Look) -> Iterator[Row]:
    kind = source = ""
    for one in accuracies():
        origin = "the 2018 paper" if one.source.startswith("arXiv") else "NVIDIA's examples"
        if (one.kind, origin) != (kind, source):
            kind, source = one.kind, origin
            yield text((kind, "strong"), (f"   {origin}", "muted"))
        top = _top(one)
        change = one.mixed - one.baseline
        worse = change < 0 if one.higher_is_better else change > 0
        moved = f"{'−' if change < 0 else '+'}{abs(change):.4g}" if change else "the same"
        yield text(
            fit(one.model, 28),
            (fit(bar(one.baseline, top, 20, look), 20), "line"),
            f" {one.baseline:>7g}",
            (f" {one.baseline_precision}, {one.metric}", "muted"),
        )
        yield text(
            (fit(f"  {one.note}", 28), "muted"),
            (fit(bar(one.mixed, top, 20, look), 20), "line2"),
            f" {one.mixed:>7g}",
            (f" {moved}{' (worse)' if worse else ''}", "muted"),
        )


def _top(one: Accuracy) -> float:
    """Where the bars would end: the best that the metric allows, where there is such a value."""
    if "%" in one.metric or one.metric == "BLEU":
        return 100.0
    largest = max(one.baseline, one.mixed)
    return 1.0 if one.higher_is_better and largest <= 1 else largest


def _speeds(card: str, look: Look) -> Iterator[Row]:
    found = sorted((row for row in rows() if row.card == card), key=lambda row: -row.speedup)
    top = max(row.speedup for row in found)
    for row in found:
        slower: Role = "bad" if row.speedup < 1 else "line"
        yield text(
            (fit(_name(row), 37), "text"),
            (fit(bar(row.speedup, top, 32, look), 32), slower),
            (f" {row.speedup:.2f}×", "text"),
        )
    yield []
    yield text(("Sources: NVIDIA/DeepLearningExamples; keras-mp estimate names each.", "muted"))


def _name(row: Speed) -> str:
    return fit(row.model, 32) + f" ×{row.gpus}" if row.gpus > 1 else row.model


@cache
def paper_runs() -> dict[str, Any] | None:
    """What benchmarks/paper.py has measured; None where its file is not there."""
    package = resources.files("tui.lab") / "data" / "paper.json"
    clone = Path(__file__).parents[2] / "docs" / "paper.json"
    for place in (package, clone):
        if place.is_file():
            found = json.loads(place.read_text(encoding="utf-8"))
            return found if isinstance(found, dict) and found.get("runs") else None
    return None


def _ours(look: Look) -> tuple[str, list[Row]]:
    found = paper_runs()
    if found is None:
        return "benchmarks/paper.py has not been run here: there are no figures.", []
    seeds = 0
    lines: list[Row] = []
    for task, family in found["families"].items():
        metric = family["metric"]
        better = f"   {metric}, {'more' if family['more_is_better'] else 'less'} is better"
        of: dict[str, list[float]] = {}  # one figure a seed
        for run in found["runs"]:
            if run["task"] == task:
                of.setdefault(run["variant"], []).append(float(run["metrics"][metric]))
        if not of:
            continue
        seeds = max(seeds, *map(len, of.values()))
        lines.append(text((family["name"], "strong"), (better, "muted")))
        average = {variant: sum(values) / len(values) for variant, values in of.items()}
        top = max(average.values())
        for variant, value in average.items():
            low, high = min(of[variant]), max(of[variant])
            spread = f"{number(low, 3)}–{number(high, 3)}" if len(of[variant]) > 1 else ""
            lines.append(
                text(
                    (fit(f"  {variant}", 27), "text"),
                    (fit(bar(value, top, 24, look), 24), "line"),
                    (f" {number(value, 4):>8}", "text"),
                    (f"  {spread}", "muted"),
                )
            )
    lines += list(_claims(found.get("claims") or []))
    title = f"Small models on real data (benchmarks/paper.py), {seeds} seed{'s' * (seeds != 1)}."
    return title, lines


def _claims(claims: Sequence[dict[str, str]]) -> Iterator[Row]:
    """Every claim of the paper with what our runs say to it."""
    if claims:
        yield []
        yield text(("the paper's claims, judged by these runs", "strong"))
    for claim in claims:
        verdict = claim["verdict"]
        role: Role = "good" if verdict == "holds" else "warn"
        first, *rest = textwrap.wrap(claim["claim"], 60)
        yield text((fit(f"  {verdict}", 17), role), first)
        for line in rest:
            yield text(" " * 17 + line)


def _time_line(width: int) -> Iterator[Row]:
    for year, what, source in EVENTS:
        lines = textwrap.wrap(what, width - 6)
        yield text((f"{year}  ", "strong"), lines[0])
        for line in lines[1:]:
            yield text(" " * 6, line)
        yield text((f"      {source}", "muted"))
