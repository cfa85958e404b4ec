"""The last steps as the device remembers them, decoded for the host. NumPy-only.

A kernel writes one float32 row a step, on the device, without telling the host. Whoever wants to
know reads the whole ring now and then: one copy, so one consistent snapshot.

Columns: step number (low and high half, because float32 counts exactly only to 2**24), the scale
that the step used, the next scale, finite (1 or 0), the unscaled loss (NaN with its flag 0 where
``scale_loss`` was not seen), what is known of the loss (see ``decode_seen``), clean updates towards
growth, the hysteresis that is left, then one column a variable: the norm of its scaled gradient, or
with attribution off nothing.
"""

import math
from typing import Any, NamedTuple

import numpy as np

STEP_LOW, STEP_HIGH, SCALE, NEXT_SCALE, FINITE, LOSS, SEEN, GOOD_STEPS, HYSTERESIS = range(9)
COLUMNS = 9
STEP_SPLIT = 2**20

# What is known of a step's loss, as one number: these, or ``overflowed_at`` a place.
LOSS_NOT_SEEN, LOSS_NOT_FINITE, LOSS_FINITE = -1, 0, 1


class StepRow(NamedTuple):
    """One attempted step.

    Attributes:
        step: Attempted optimizer steps over the optimizer's life, from 1.
        scale: The loss scale this step's gradients were computed with.
        next_scale: The loss scale of the step after it.
        finite: False where the step was skipped.
        loss: Unscaled loss; None where ``scale_loss`` was not used.
        loss_finite: Whether the loss itself was finite; None where it was not seen.
        good_steps: Clean updates towards the next growth, after this step.
        grad_norm: Global L2 norm of the unscaled gradients; None where it was not measured.
        nonfinite: Indices (into ``optimizer.variable_paths``) of the variables whose gradient was
            not finite; empty for a finite step or where attribution is off.
        place: Where the forward pass was first not finite (an index into the kernel's ``places``);
            None where it was finite, or nobody looked.
        hysteresis_left: Overflows until the scale backs off, after this step; 0: on each.
    """

    step: int
    scale: float
    next_scale: float
    finite: bool
    loss: float | None
    loss_finite: bool | None
    good_steps: int
    grad_norm: float | None
    nonfinite: tuple[int, ...]
    place: int | None = None
    hysteresis_left: int = 0


def overflowed_at(place: Any) -> Any:
    """The code of a loss that was not finite after a forward pass that first was not at ``place``
    (from 0; a number or a tensor)."""
    return -2 - place


def decode_seen(seen: int) -> tuple[bool | None, int | None]:
    """(whether the loss was finite, None if not seen; where the forward pass ceased to be)."""
    if seen == LOSS_NOT_SEEN:
        return None, None
    return seen == LOSS_FINITE, overflowed_at(seen) if seen < LOSS_NOT_SEEN else None


def decode(ring: np.ndarray, since: int = 0) -> list[StepRow]:
    """The rows of a ring (float32, [rows, COLUMNS + variables]) with step > since, in order.

    Column by column: row by row it would be most of what a look at the device costs.
    """
    steps = ring[:, STEP_HIGH].astype(np.int64) * STEP_SPLIT + ring[:, STEP_LOW].astype(np.int64)
    fresh = np.flatnonzero(steps > since)
    fresh = fresh[np.argsort(steps[fresh], kind="stable")]
    rows = np.asarray(ring[fresh], dtype=np.float64)
    head, norms = rows[:, :COLUMNS], rows[:, COLUMNS:]
    finite = head[:, FINITE] != 0
    # NaN in a finite step: not measured (replicas see only their own gradients).
    totals = np.full(len(rows), np.nan)
    nonfinite: list[tuple[int, ...]] = [()] * len(rows)
    if norms.shape[1]:
        totals[finite] = np.sqrt(np.sum(norms[finite] ** 2, axis=1)) / head[finite, SCALE]
        for i in np.flatnonzero(~finite):
            nonfinite[i] = tuple(np.flatnonzero(~np.isfinite(norms[i])).tolist())
    known = zip(steps[fresh].tolist(), head.tolist(), totals.tolist(), nonfinite, strict=True)
    return [_row(*one) for one in known]


def _row(step: int, head: list[float], total: float, nonfinite: tuple[int, ...]) -> StepRow:
    loss_finite, place = decode_seen(int(head[SEEN]))
    return StepRow(
        step=step,
        scale=head[SCALE],
        next_scale=head[NEXT_SCALE],
        finite=bool(head[FINITE]),
        loss=None if loss_finite is None else head[LOSS],
        loss_finite=loss_finite,
        good_steps=int(head[GOOD_STEPS]),
        grad_norm=None if math.isnan(total) else total,
        nonfinite=nonfinite,
        place=place,
        hysteresis_left=int(head[HYSTERESIS]),
    )
