"""A probe as an SVG: the exponents of every layer, under what a format makes of them. NumPy-only.

One strip a layer: how many values have each exponent. Behind the strips lie the format's ranges,
for gradients already moved by the loss scale, so that a strip can be read against them: what stands
in the darkest band is lost, what reaches the right-hand one overflows (Micikevicius et al. 2018,
figure 3).
"""

import math
from html import escape

from keras_mp.numerics.formats import get_format
from keras_mp.numerics.rows import Probe, Row
from keras_mp.telemetry.format import power_of_two, share

_NAMES, _STRIP, _GAP, _TOP, _BOTTOM = 190, 26, 10, 64, 52
_PANEL, _SIDE, _BIN_RANGE = 330, 62, (-44, 20)
_INK, _FAINT, _LINE = "#24292f", "#6e7781", "#d0d7de"
# Lost, subnormal, normal, near overflow, overflow.
_BANDS = ("#f6c9c4", "#fbe8c3", "#e3f1e4", "#fbe8c3", "#f6c9c4")
_BARS = "#3b5b8c"


def draw(probe: Probe) -> str:
    """The SVG's text."""
    layers = list(dict.fromkeys(row.layer for row in probe.rows if row.tensor != "weight_gradient"))
    panels = [("activation", "activations", 1.0)]
    if probe.of("gradient"):
        panels.append(("gradient", f"gradients × {_scale(probe.scale)}", probe.scale))
    height = _TOP + len(layers) * (_STRIP + _GAP) + _BOTTOM
    total = _NAMES + len(panels) * (_PANEL + _SIDE)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height}" width="{total}" '
        f'height="{height}" font-family="ui-sans-serif, system-ui, sans-serif" font-size="12" '
        f'role="img" aria-label="{escape(probe.model)} in {probe.format}">',
        f'<rect width="{total}" height="{height}" fill="#ffffff"/>',
        _text(12, 22, f"{probe.model} in {probe.format}", size=14, weight=600),
    ]
    for place, (kind, title, scale) in enumerate(panels):
        left = _NAMES + place * (_PANEL + _SIDE)
        out += _panel(probe, kind, title, scale, layers, left, height)
    for line, layer in enumerate(layers):
        y = _TOP + line * (_STRIP + _GAP) + _STRIP - 8
        out.append(_text(_NAMES - 10, y, _short(layer), anchor="end"))
    out.append("</svg>")
    return "\n".join(out)


def _panel(
    probe: Probe, kind: str, title: str, scale: float, layers: list[str], left: int, height: int
) -> list[str]:
    fmt = get_format(probe.format)
    rows = {row.layer: row for row in probe.rows if row.tensor == kind}
    shift = math.log2(scale)
    low, high = _BIN_RANGE
    unit = _PANEL / (high - low)
    bottom = height - _BOTTOM

    def x(exponent: float) -> float:
        return left + (min(max(exponent, low), high) - low) * unit

    limits = [
        *(math.log2(fmt.zero_below), math.log2(fmt.min_normal)),
        *(fmt.max_exponent - 1.0, math.log2(fmt.overflow_from)),
    ]
    out = [_text(left, 44, title, weight=600)]
    for color, begin, end in zip(_BANDS, [low, *limits], [*limits, high], strict=True):
        if x(end) > x(begin):
            out.append(
                f'<rect x="{x(begin):.1f}" y="{_TOP - 8}" width="{x(end) - x(begin):.1f}" '
                f'height="{bottom - _TOP + 8}" fill="{color}"/>'
            )
    lost_title = "lost" if kind == "gradient" else "over"
    out.append(_text(left + _PANEL + 8, 44, lost_title, fill=_FAINT))
    for line, layer in enumerate(layers):
        row = rows.get(layer)
        base = _TOP + line * (_STRIP + _GAP) + _STRIP
        out.append(
            f'<line x1="{left}" y1="{base}" x2="{left + _PANEL}" y2="{base}" stroke="{_LINE}"/>'
        )
        if row is None:
            continue
        out += _strip(row, shift, base, unit, x)
        told = row.shares(fmt)
        shown = told.lost if kind == "gradient" else told.overflow
        out.append(_text(left + _PANEL + 8, base - 8, share(shown)))
    for exponent in range(-40, high, 10):
        out.append(_text(x(exponent), bottom + 16, power_of_two(2.0**exponent), "middle", _FAINT))
    words = [
        ("lost", (x(low) + x(limits[0])) / 2),
        ("subnormal", (x(limits[0]) + x(limits[1])) / 2),
        ("normal", (x(limits[1]) + x(limits[2])) / 2),
        ("overflow", (x(limits[3]) + x(high)) / 2),
    ]
    spans = [(low, limits[0]), (limits[0], limits[1]), (limits[1], limits[2]), (limits[3], high)]
    for (word, middle), (begin, end) in zip(words, spans, strict=True):
        if x(end) - x(begin) > 6.5 * len(word) or word == "overflow":
            out.append(_text(middle, bottom + 34, word, "middle", _FAINT, size=11))
    return out


def _strip(row: Row, shift: float, base: float, unit: float, x: object) -> list[str]:
    """The bars of one layer, as high as their share of the layer's most frequent exponent."""
    counts = row.histogram.exponents
    if not counts or not callable(x):
        return []
    most = max(counts.values())
    low, high = _BIN_RANGE
    bars = []
    for exponent, count in counts.items():
        place = exponent + shift
        if place + 1 <= low or place >= high:
            continue
        tall = max(1.0, _STRIP * count / most)
        bars.append(
            f'<rect x="{x(place):.1f}" y="{base - tall:.1f}" width="{max(unit - 0.6, 0.6):.1f}" '
            f'height="{tall:.1f}"/>'
        )
    words = f"{row.layer}: {row.histogram.total:,} values, {row.histogram.zeros:,} zero"
    return [f'<g fill="{_BARS}"><title>{escape(words)}</title>', *bars, "</g>"]


def _text(
    x: float,
    y: float,
    text: str,
    anchor: str = "start",
    fill: str = _INK,
    size: int = 12,
    weight: int = 400,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" '
        f'font-size="{size}" font-weight="{weight}">{escape(text)}</text>'
    )


def _short(name: str, longest: int = 27) -> str:
    return name if len(name) <= longest else "…" + name[-(longest - 1) :]


def _scale(scale: float) -> str:
    return power_of_two(scale) if math.log2(scale) % 1 == 0 else f"{scale:,.6g}"
