"""A plan as a table for a person."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_mp.policies.precision_plan import Gradients, PrecisionPlan, Row

_HEAD = ("layer", "class", "policy")
_MEASURED = ("largest", "lost values", "lost gradients", "scaled")


def as_text(plan: "PrecisionPlan") -> str:
    """One line a layer, parts left out, with what a calibration batch showed where there was one.

    The shares are of what float16 would make zero: a layer's values, the loss' gradient with
    respect to them, and that gradient at the plan's initial scale.
    """
    rows = [row for row in plan if row.code != "part"]
    measured = any(row.measured for row in rows)
    head = (*_HEAD, *(_MEASURED if measured else ()), "because")
    lines = [head, *((*_names(row), *_numbers(row, measured), _why(row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    if plan.gradients is not None:
        text.append(_gradients(plan.gradients))
    return "\n".join(text)


def _names(row: "Row") -> tuple[str, str, str]:
    return row.path or "(model)", row.layer, row.policy


def _why(row: "Row") -> str:
    return f"{row.reason}; becomes {row.replace}" if row.replace else row.reason


def _numbers(row: "Row", measured: bool) -> tuple[str, ...]:
    if not measured:
        return ()
    seen = row.measured
    if seen is None:
        return ("–",) * len(_MEASURED)
    largest = "–" if seen.largest is None else f"{seen.largest:.3g}"
    shares = (seen.lost_activations, seen.lost_gradients, seen.lost_scaled)
    return largest, *(_percent(share) for share in shares)


def _gradients(found: "Gradients") -> str:
    told = (
        f"gradients: {_percent(found.zero)} are zero by themselves; float16 would lose "
        f"{_percent(found.lost)}"
    )
    if found.initial_scale is None:
        return f"{told}; some are not finite, so no loss scale is proposed"
    power = round(math.log2(found.initial_scale))
    return f"{told}, {_percent(found.lost_scaled)} at an initial scale of 2^{power}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
