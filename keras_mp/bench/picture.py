"""A trial as one SVG picture: speed, the parts of a step, memory by batch size, losses."""

import math
from collections.abc import Callable, Sequence
from html import escape

from keras_mp.bench.results import Trial, Variant
from keras_mp.bench.text import duration, per_second, size

WIDTH, PANEL, GAP, TOP = 960, 456, 48, 96
ROW = 30
PLOT = 190
FLAT = 0.3  # values that differ by less than this share of the largest look flat from 0
# Okabe and Ito's colours, which colour-blind people can tell apart.
COLOURS = {
    "float32": "#5f6b76",
    "mixed_bfloat16": "#0072b2",
    "mixed_float16": "#d55e00",
    "planned": "#009e73",
}
PARTS = (
    ("compute", "computing", "#0072b2"),
    ("optimizer", "optimizer", "#e69f00"),
    ("input", "waiting for input", "#cc79a7"),
    ("other", "fit's own", "#999999"),
)
_STYLE = (
    "text{font-family:system-ui,sans-serif;font-size:13px;fill:#1b1f24}"
    ".h{font-size:15px;font-weight:600}.s{fill:#57606a;font-size:12px}"
    ".axis{stroke:#d0d7de;stroke-width:1}"
)


def as_svg(trial: Trial) -> str:
    """The picture, as the text of an SVG file."""
    shown = [v for v in trial.variants if v.rate is not None]
    bars = TOP + 28 + ROW * max(len(shown), 1)
    lower = bars + 56
    height = lower + PLOT + 92
    head = (
        f"{trial.model}: {trial.parameters:,} parameters, batch {trial.batch_size}",
        f"{trial.backend} on {trial.device} · data {trial.data} · {trial.rounds} rounds of "
        f"{trial.steps} steps · median and quartiles",
    )
    parts = [
        _text(24, 34, head[0], "h"),
        _text(24, 56, head[1], "s"),
        *_speeds(shown, 24, TOP),
        *_splits(shown, 24 + PANEL + GAP, TOP),
        *_memory(shown, 24, lower),
        *_losses(shown, 24 + PANEL + GAP, lower),
        *_legend(shown, 24, height - 20),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 48}" height="{height}" '
        f'viewBox="0 0 {WIDTH + 48} {height}" role="img" aria-label="{escape(head[0])}">'
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#ffffff"/>'
        f"{''.join(parts)}</svg>\n"
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(text)}</text>'


def _bar(x: float, y: float, width: float, colour: str, height: float = 18) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" '
        f'fill="{colour}"/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = "#1b1f24") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        'stroke-width="1.5"/>'
    )


def _speeds(shown: Sequence[Variant], x: float, y: float) -> list[str]:
    drawn = [_text(x, y, "Samples a second", "h")]
    most = max((v.rate.high for v in shown if v.rate), default=1.0)
    left, room = x + 116, PANEL - 116 - 130
    for number, variant in enumerate(shown):
        rate = variant.rate
        if rate is None:
            continue
        top = y + 16 + ROW * number
        scale = room / most
        low, high = left + rate.low * scale, left + rate.high * scale
        times = f" · {variant.speedup.median:.2f}×" if variant.speedup else ""
        drawn += [
            _text(x, top + 14, variant.name),
            _bar(left, top, rate.median * scale, COLOURS[variant.name]),
            _line(low, top + 9, high, top + 9),
            _line(low, top + 4, low, top + 14),
            _line(high, top + 4, high, top + 14),
            _text(left + room + 10, top + 14, f"{per_second(rate.median)}{times}"),
        ]
    return drawn


def _splits(shown: Sequence[Variant], x: float, y: float) -> list[str]:
    drawn = [_text(x, y, "Where a step's time goes", "h")]
    known = [v for v in shown if v.split is not None]
    if not known:
        return [*drawn, _text(x, y + 30, "not measured", "s")]
    most = max(v.split.step for v in known if v.split)
    left, room = x + 116, PANEL - 116 - 80
    for number, variant in enumerate(known):
        if variant.split is None:
            continue
        top, at = y + 16 + ROW * number, left
        drawn.append(_text(x, top + 14, variant.name))
        for name, _, colour in PARTS:
            width = getattr(variant.split, name) / most * room
            drawn.append(_bar(at, top, width, colour))
            at += width
        drawn.append(_text(at + 8, top + 14, duration(variant.split.step)))
    at, under = x, y + 34 + ROW * len(known)
    for _, label, colour in PARTS:
        drawn += [_bar(at, under - 10, 12, colour, 12), _text(at + 17, under, label, "s")]
        at += 30 + 7 * len(label)
    return drawn


def _memory(shown: Sequence[Variant], x: float, y: float) -> list[str]:
    drawn = [_text(x, y, "Memory of a step by batch size", "h")]
    known = [(v, v.memory) for v in shown if v.memory is not None]
    if not known:
        return [*drawn, _text(x, y + 30, "unknown on this backend and device", "s")]
    drawn.append(_text(x, y + 18, known[0][1].what, "s"))
    last = max(batch for _, m in known for batch, _ in m.points)
    series: list[Series] = [
        (v.name, [(0.0, m.fixed), (float(last), m.at(last))], m.points) for v, m in known
    ]
    return drawn + _plot(x, y + 30, series, size, "samples a batch")


def _losses(shown: Sequence[Variant], x: float, y: float) -> list[str]:
    drawn = [_text(x, y, "Loss at equal steps", "h")]
    series: list[Series] = [
        (
            v.name,
            [(i + 1.0, loss) for i, loss in enumerate(v.losses) if math.isfinite(loss)],
            [],
        )
        for v in shown
        if any(map(math.isfinite, v.losses))
    ]
    if not series:
        return [*drawn, _text(x, y + 30, "no finite loss", "s")]
    return drawn + _plot(x, y + 30, series, lambda value: f"{value:.4g}", "step")


Series = tuple[str, list[tuple[float, float]], list[tuple[int, int]]]


def _plot(
    x: float, y: float, series: list[Series], label: Callable[[float], str], under: str
) -> list[str]:
    """Lines, and points where there are any; the y axis from 0 unless they would all look flat."""
    values = [point for _, line, points in series for point in (*line, *points)]
    left, bottom, room = x + 64, y + PLOT, PANEL - 84
    most_x = max(px for px, _ in values)
    least, most = min(py for _, py in values), max(py for _, py in values)
    if least > 0 and most - least > FLAT * most:
        least = 0.0
    span = (most - least) or 1.0

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return left + point[0] / most_x * room, bottom - (point[1] - least) / span * (PLOT - 10)

    drawn = []
    for share in (0.0, 0.5, 1.0):
        level = bottom - share * (PLOT - 10)
        drawn.append(
            f'<line class="axis" x1="{left}" y1="{level:.1f}" x2="{left + room}" y2="{level:.1f}"/>'
        )
        drawn.append(_text(left - 6, level + 4, label(least + share * span), "s", "end"))
    drawn.append(_text(left, bottom + 18, "0", "s", "middle"))
    drawn.append(_text(left + room, bottom + 18, f"{most_x:g}", "s", "middle"))
    drawn.append(_text(left + room / 2, bottom + 18, under, "s", "middle"))
    for name, line, points in series:
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in map(place, line))
        drawn.append(
            f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>'
        )
        for px, py in map(place, points):
            drawn.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{COLOURS[name]}"/>')
    return drawn


def _legend(shown: Sequence[Variant], x: float, y: float) -> list[str]:
    drawn = []
    for variant in shown:
        drawn += [
            _bar(x, y - 10, 12, COLOURS[variant.name], 12),
            _text(x + 17, y, variant.name, "s"),
        ]
        x += 40 + 8 * len(variant.name)
    return drawn
