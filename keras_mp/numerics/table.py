"""A probe as text: a table a person reads in a terminal. NumPy-only."""

import math
from collections.abc import Sequence

from keras_mp.numerics.formats import get_format
from keras_mp.numerics.rows import Probe, Row, in_half
from keras_mp.telemetry.format import number, pad, power_of_two, share, width

UNKNOWN = "–"


def as_text(probe: Probe) -> str:
    """The table: a line a layer, then a line a variable, then what it comes to."""
    parts = [_headline(probe), "", _layers(probe)]
    if probe.of("weight_gradient"):
        parts += ["", _variables(probe)]
    parts += ["", *_summary(probe)]
    return "\n".join(parts)


def _headline(probe: Probe) -> str:
    text = f"{probe.model}: what {probe.format} makes of it"
    if probe.gradients:
        text += f" at loss scale {_scale(probe.scale)}"
    if probe.loss is not None:
        text += f"; loss {number(probe.loss)}"
        if probe.own_loss is not None:
            text += f" (its own pass: {number(probe.own_loss)})"
    return text


def _layers(probe: Probe) -> str:
    gradients = {row.layer: row for row in probe.of("gradient")}
    measured = any(row.underflow is not None for row in gradients.values())
    head = ["layer", "max |x|", "room", "max |grad|", "room", "zero", "lost", "subnormal"]
    if not gradients:
        head = [*head[:3], "zero", "lost", "subnormal"]
    mixed = len({row.dtype for row in probe.of("activation") if row.dtype}) > 1
    lines = []
    for row in probe.of("activation"):
        line = [
            row.layer,
            *([row.dtype or ""] if mixed else []),
            number(row.histogram.largest, 3),
            _room(row, probe),
        ]
        shown: Row | None = gradients.get(row.layer) if gradients else row
        if gradients:
            line += [number(shown.histogram.largest, 3), _room(shown, probe)] if shown else ["", ""]
        line += _shares(shown, probe) if shown else ["", "", ""]
        if measured:
            line.append(share(shown.underflow) if shown else "")
        lines.append(line)
    head[1:1] = ["dtype"] if mixed else []
    return _aligned([*head, *(["underflow"] if measured else [])], lines)


def _variables(probe: Probe) -> str:
    head = ["variable", "norm", "max |grad|", "room", "zero", "lost", "subnormal"]
    lines = [
        [
            row.name,
            number(row.norm, 3),
            number(row.histogram.largest, 3),
            _room(row, probe),
            *_shares(row, probe),
        ]
        for row in probe.of("weight_gradient")
    ]
    return _aligned(head, lines)


def _summary(probe: Probe) -> list[str]:
    lines = []
    if probe.lost is not None:
        lines.append(
            f"{share(probe.lost)} of the non-zero activation gradients are lost at this scale"
            + (
                f"; {share(probe.underflow)} of all values were, in the model's own pass"
                if probe.underflow is not None
                else ""
            )
        )
        limit = probe.largest_scale
        if math.isfinite(limit) and limit > 0:
            fits = 2.0 ** math.floor(math.log2(limit))
            lines.append(
                f"no gradient of this batch overflows up to a scale of {_scale(fits)}; there "
                f"{share(probe.at(fits).lost)} would be lost"
            )
        elif limit == 0:
            lines.append("some gradients are not finite even in float32: no scale helps")
    outputs = in_half(probe.of("activation"))
    over = [row for row in outputs if row.shares(probe.format).overflow > 0]
    if over:
        names = ", ".join(row.layer for row in over[:5])
        lines.append(f"activations overflow {probe.format} in {names}: keep these in float32")
    if probe.unseen:
        lines.append(f"not seen, as called inside a loop: {', '.join(probe.unseen)}")
    lines.append(
        f"room: doublings until {probe.format} overflows (largest {get_format(probe.format).max:g})"
        " · zero: zero in float32 too · lost: rounded to zero"
    )
    return lines


def _shares(row: Row, probe: Probe) -> list[str]:
    told = row.shares(probe.format)
    return [share(told.zero), share(told.lost), share(told.subnormal)]


def _room(row: Row, probe: Probe) -> str:
    room = row.headroom(probe.format)
    return UNKNOWN if room is None else f"{room:.1f}"


def _scale(scale: float) -> str:
    return power_of_two(scale) if math.log2(scale) % 1 == 0 else f"{scale:,.6g}"


def _aligned(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(width, column)) for column in zip(head, *lines, strict=True)]
    return "\n".join(
        "  ".join(
            pad(cell, w, right=i > 0) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, *lines)
    )
