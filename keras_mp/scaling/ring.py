"""The last steps as the device remembers them, decoded for the host. NumPy-only.

A kernel writes one float32 row a step, on the device, without telling the host. Whoever wants to
know reads the whole ring now and then: one copy, so one consistent snapshot.

Columns: step number (low and high half, because float32 counts exactly only to 2**24), the scale
that the step used, the next scale, finite (1 or 0), the unscaled loss (NaN with its flag 0 where
``scale_loss`` was not seen), whether the loss was finite (1, 0, or -1 for not seen), clean updates
towards growth, then one column a variable: the norm of its scaled gradient, or with attribution
off nothing.
"""

import math
from dataclasses import dataclass

import numpy as np

STEP_LOW, STEP_HIGH, SCALE, NEXT_SCALE, FINITE, LOSS, LOSS_FINITE, GOOD_STEPS = range(8)
COLUMNS = 8
STEP_SPLIT = 2**20


@dataclass(frozen=True)
class StepRow:
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


def decode(ring: np.ndarray, since: int = 0) -> list[StepRow]:
    """The rows of a ring (float32, [rows, COLUMNS + variables]) with step > since, in order."""
    ring = np.asarray(ring, dtype=np.float64)
    steps = ring[:, STEP_HIGH] * STEP_SPLIT + ring[:, STEP_LOW]
    order = np.argsort(steps, kind="stable")
    return [_row(ring[i], int(steps[i])) for i in order if steps[i] > since]


def _row(values: np.ndarray, step: int) -> StepRow:
    finite = bool(values[FINITE])
    norms = values[COLUMNS:]
    seen = int(values[LOSS_FINITE])
    grad_norm: float | None = None
    nonfinite: tuple[int, ...] = ()
    if norms.size:
        if finite:
            total = math.sqrt(float(np.sum(norms**2))) / float(values[SCALE])
            # NaN in a finite step: not measured (replicas see only their own gradients).
            grad_norm = None if math.isnan(total) else total
        else:
            nonfinite = tuple(int(i) for i in np.flatnonzero(~np.isfinite(norms)))
    return StepRow(
        step=step,
        scale=float(values[SCALE]),
        next_scale=float(values[NEXT_SCALE]),
        finite=finite,
        loss=None if seen < 0 else float(values[LOSS]),
        loss_finite=None if seen < 0 else bool(seen),
        good_steps=int(values[GOOD_STEPS]),
        grad_norm=grad_norm,
        nonfinite=nonfinite,
    )
