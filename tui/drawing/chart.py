"""A chart as rows of text: title, line, value axis, and a base line that carries the ticks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from tui.drawing import raster
from tui.drawing.axis import Axis, Kind, best_kind, value_axis
from tui.drawing.downsample import Columns, Floats, bridge, minmax, trend
from tui.drawing.raster import Charset
from tui.drawing.roles import Piece, Role, Row
from tui.drawing.text import fit

# From so many cells on the middle of the base line is labelled, too.
WIDE = 50
LINES: tuple[Role, ...] = ("line", "line2", "line3", "line4")


@dataclass(frozen=True)
class Series:
    """Points of one line, x ascending.

    Attributes:
        hold: The value stays until it is set again.
        noisy: The points are drawn quietly, and their trend over them.
        role: How the line looks; None takes the next of the four line colours.
    """

    x: Floats
    y: Floats
    hold: bool = False
    noisy: bool = False
    role: Role | None = None


@dataclass(frozen=True)
class Chart:
    """What to draw.

    Attributes:
        title: A word or two, over the chart. note: Said after it, quieter.
        series: Drawn in order, the later over the earlier.
        kind: The value axis; None chooses between linear and log10 by the values.
        label: Formats a value for the axis.
        ticks: Positions (x) marked on the base line, such as skipped steps.
        span: Range of x to show; None shows everything.
        limits: Range of values to show; None takes that of the values.
        cursor: Position to read: a line there, and the value in place of ``note``.
        x_label: Formats a position for the ends of the base line; None leaves them out.
        empty: Said when there is nothing to draw.
    """

    title: str
    series: Sequence[Series]
    label: Callable[[float], str]
    kind: Kind | None = None
    note: str = ""
    ticks: Floats = field(default_factory=lambda: np.empty(0))
    span: tuple[float, float] | None = None
    limits: tuple[float, float] | None = None
    cursor: float | None = None
    x_label: Callable[[float], str] | None = None
    empty: str = "no data yet"


@np.errstate(over="ignore", invalid="ignore")  # the mean of what is too large for it
def draw(chart: Chart, width: int, height: int, charset: Charset) -> list[Row]:
    """The chart in exactly ``height`` rows of ``width`` cells, each row as pieces of text."""
    rows: list[Row] = [padded([(chart.title, "strong"), (f"  {_note(chart)}", "text")], width)]
    plot_rows = height - 2 - (chart.x_label is not None)
    drawn = any(len(s.x) for s in chart.series)
    span = (chart.span or _span(chart.series)) if drawn else None
    if plot_rows < 1 or span is None:
        rows += [padded([(chart.empty, "muted")], width)]
        rows += [padded([], width) for _ in range(height - 2)]
        return rows[:height]
    axis = _axis(chart, span, plot_rows)
    gutter = max((cell_len(text) for text in axis.labels), default=0) + 1
    columns = max(width - gutter, 1)
    rows += _plot(chart, axis, span, gutter, columns, plot_rows, charset)
    if chart.x_label is not None:
        rows.append(padded([(" " * gutter + _ends(chart.x_label, span, columns), "muted")], width))
    return rows


def _ends(label: Callable[[float], str], span: tuple[float, float], columns: int) -> str:
    """Where the base line begins and ends, and in a wide chart its middle."""
    first, final = label(span[0]), label(span[1])
    room = columns - cell_len(first)
    if columns < WIDE:
        return first + fit(final, room, right=True)
    middle = label((span[0] + span[1]) / 2)
    left = max(columns // 2 - cell_len(first) - cell_len(middle) // 2, 1)
    room -= left + cell_len(middle)
    return first + " " * left + middle + fit(final, max(room, 0), right=True)


def _note(chart: Chart) -> str:
    """The value at the cursor, or what the chart says anyway."""
    if chart.cursor is None:
        return chart.note
    values = [value_at(s, chart.cursor) for s in chart.series]
    where = f" at {chart.x_label(chart.cursor)}" if chart.x_label else ""
    return " · ".join("–" if v is None else chart.label(v) for v in values) + where


def value_at(series: Series, position: float) -> float | None:
    """What the line says at a position: the nearest point, or the one that holds there."""
    after = int(np.searchsorted(series.x, position, side="right"))
    if not len(series.x) or (series.hold and after == 0):
        return None
    before = max(after - 1, 0)
    if series.hold or after == len(series.x):
        return float(series.y[before])
    closer = after if series.x[after] - position < position - series.x[before] else before
    return float(series.y[closer])


def _span(series: Sequence[Series]) -> tuple[float, float] | None:
    ends = [(float(s.x[0]), float(s.x[-1])) for s in series if len(s.x)]
    if not ends:
        return None
    start, stop = min(e[0] for e in ends), max(e[1] for e in ends)
    return (start, stop) if stop > start else (start - 0.5, stop + 0.5)


def _axis(chart: Chart, span: tuple[float, float], plot_rows: int) -> Axis:
    lows, highs = [], []
    for s in chart.series:
        # One point more on each side: the line enters and leaves the view there.
        first = max(int(np.searchsorted(s.x, span[0])) - 1, 0)
        seen = s.y[first : int(np.searchsorted(s.x, span[1], side="right"))]
        if chart.kind in ("log2", "log10"):
            seen = seen[seen > 0]
        # Reductions without a copy first: only a series with NaN or infinities pays for the mask.
        low, high = (seen.min(), seen.max()) if len(seen) else (np.nan, np.nan)
        if len(seen) and not (np.isfinite(low) and np.isfinite(high)):
            finite = seen[np.isfinite(seen)]
            low, high = (finite.min(), finite.max()) if len(finite) else (np.nan, np.nan)
        lows.append(float(low))
        highs.append(float(high))
    lows, highs = [v for v in lows if v == v], [v for v in highs if v == v]
    low, high = (min(lows), max(highs)) if lows else (np.nan, np.nan)
    low, high = chart.limits or (low, high)
    kind = chart.kind or best_kind(low, high)
    return value_axis(low, high, kind, max(2, min(plot_rows // 2 + 1, 8)), chart.label)


def _plot(
    chart: Chart,
    axis: Axis,
    span: tuple[float, float],
    gutter: int,
    columns: int,
    plot_rows: int,
    charset: Charset,
) -> list[Row]:
    shape = (plot_rows * charset.down, columns * charset.across)
    everything = np.zeros(shape, np.bool_)
    bad = np.zeros(columns, np.bool_)
    # Who owns the colour of a cell: 0 nobody, else one more than the index of a role.
    owner = np.zeros((plot_rows, columns), np.int64)
    roles: list[Role] = []

    def lay(part: Columns, hold: bool, role: Role, alone: bool = False) -> None:
        mapped = replace(
            part,
            low=axis.map(part.low),
            high=axis.map(part.high),
            first=axis.map(part.first),
            last=axis.map(part.last),
        )
        dots = raster.trace(bridge(mapped, hold), axis.low, axis.high, shape[0])
        roles.append(role)
        # A trend stands alone in its cells, where dots of two colours would take one.
        over = raster.occupied(dots, charset)
        if alone:
            everything[np.kron(over, np.ones((charset.down, charset.across), np.bool_))] = False
        everything[dots] = True
        owner[over] = len(roles)

    trends: list[tuple[Columns, Role]] = []
    for number, s in enumerate(chart.series):
        role = s.role or LINES[number % len(LINES)]
        reduced = minmax(s.x, s.y, *span, columns=shape[1])
        bad |= reduced.bad.reshape(columns, charset.across).any(axis=1)
        crowded = s.noisy and len(s.x) > shape[1] // 2
        lay(reduced, s.hold, "faint" if crowded else role)
        if crowded:
            trends.append((trend(reduced), role))
    for part, role in trends:  # over all points
        lay(part, False, role, alone=True)
    text = raster.encode(everything, charset)
    if chart.cursor is not None and span[0] <= chart.cursor <= span[1]:
        at = min(int((chart.cursor - span[0]) / (span[1] - span[0]) * columns), columns - 1)
        roles.append("cursor_line")
        for row in range(plot_rows):
            if text[row][at] == " ":
                text[row] = text[row][:at] + "│" + text[row][at + 1 :]
                owner[row, at] = len(roles)
    marks = _tick_rows(axis, shape[0], charset.down)
    out: list[Row] = []
    for row in range(plot_rows):
        label = marks.get(row)
        left = " " * gutter if label is None else fit(label, gutter - 1, right=True) + "┤"
        pieces: Row = [(left, "muted")]
        changes = np.flatnonzero(np.diff(owner[row])) + 1
        for start, stop in zip([0, *changes], [*changes, columns], strict=True):
            number = int(owner[row, start])
            pieces.append((text[row][start:stop], roles[number - 1] if number else "text"))
        out.append(pieces)
    out.append(_base(chart.ticks, bad, span, gutter))
    return out


def _tick_rows(axis: Axis, dot_rows: int, down: int) -> dict[int, str]:
    """Cell row -> label. A label whose row is taken is left out."""
    rows: dict[int, str] = {}
    for tick, label in zip(axis.ticks, axis.labels, strict=True):
        share = (tick - axis.low) / (axis.high - axis.low)
        rows.setdefault(round((1.0 - share) * (dot_rows - 1)) // down, label)
    return rows


def _base(ticks: Floats, bad: NDArray[np.bool_], span: tuple[float, float], gutter: int) -> Row:
    """The base line: a tick under each marked position, a cross under each value not finite."""
    columns = len(bad)
    inside = ticks[(ticks >= span[0]) & (ticks <= span[1])]
    at = ((inside - span[0]) / (span[1] - span[0]) * columns).astype(np.int64)
    kinds = np.zeros(columns, np.int64)
    kinds[np.minimum(at, columns - 1)] = 1
    kinds[bad] = 2
    pieces: Row = [(" " * (gutter - 1) + "└", "faint")]
    changes = np.flatnonzero(np.diff(kinds)) + 1
    for start, stop in zip([0, *changes], [*changes, columns], strict=True):
        character, role = _BASE[int(kinds[start])]
        pieces.append((character * int(stop - start), role))
    return pieces


_BASE: tuple[Piece, ...] = (("─", "faint"), ("┴", "tick"), ("×", "bad"))


def padded(pieces: Row, width: int) -> Row:
    """Cut or filled up to ``width`` cells."""
    out: Row = []
    left = width
    for text, role in pieces:
        text = fit(text, min(left, cell_len(text)))
        left -= cell_len(text)
        if text:
            out.append((text, role))
    return [*out, (" " * left, "muted")] if left > 0 else out
