"""The ring of the last steps on torch: two operators a step, the rest pieced together on reading.

What the host knows anyway (step numbers, whether a loss was seen, a scale that it set itself) stays
on the host; a row's scale before is the row's before it.
"""

from typing import Any

import numpy as np
import torch

from keras_mp.scaling.device_state import ring_row
from keras_mp.scaling.kernels.torch_state import TorchState
from keras_mp.scaling.ring import (
    COLUMNS,
    FINITE,
    GOOD_STEPS,
    HYSTERESIS,
    LOSS,
    LOSS_FINITE,
    LOSS_NOT_FINITE,
    LOSS_NOT_SEEN,
    NEXT_SCALE,
    SCALE,
    SEEN,
    STEP_HIGH,
    STEP_LOW,
    STEP_SPLIT,
    overflowed_at,
)

# next scale, consecutive skips, good steps, hysteresis left, loss, global norm (unscaled)
_HEAD = 6


class TorchRing:
    """Args: rows: Steps to keep. variables: How many. device: Where."""

    def __init__(self, rows: int, variables: int, device: Any):
        self.rows = rows + 1  # the oldest one only lends its scale to the next
        float32 = {"dtype": torch.float32, "device": device}
        self.raw = torch.zeros((self.rows, _HEAD + variables), **float32)
        self.heads = [self.raw[i, :_HEAD] for i in range(self.rows)]
        self.tails = [self.raw[i, _HEAD:] for i in range(self.rows)]
        self.unseen = torch.zeros((), **float32)
        self.steps = np.zeros(self.rows, np.int64)
        self.seen = np.zeros(self.rows, bool)
        self.places: list[int | None] = [None] * self.rows
        self.known_scale = np.full(self.rows, np.nan)
        # Where the host sees each skip it notes the variables, and no norms are kept a variable.
        self.noted: list[tuple[int, ...] | None] = [None] * self.rows
        # Under torch.compile the host does not see the steps: whole rows, at the device's index.
        self.compiled = torch.zeros((self.rows, COLUMNS + variables), **float32)
        self.started = False

    def start(self, state: TorchState, changed: bool) -> None:
        """Before a step: note the scale where the row before does not tell it."""
        slot = (state.steps + 1) % self.rows
        known = changed or not self.started
        self.known_scale[slot] = (state.host or state.read()).scale if known else np.nan
        self.started = True

    def write(
        self,
        state: TorchState,
        loss: Any,
        norm: Any,
        norms: list[Any] | None,
        noted: tuple[int, ...] | None,
        place: int | None = None,
    ) -> None:
        """After a step: its row.

        Args:
            norm: Of all unscaled gradients, 0-d.
            norms: Of the scaled gradients, a 0-d tensor a variable.
            noted: Instead of norms, indices of the variables that were not finite.
            place: Where the forward pass was first not finite, if the host looked.
        """
        slot = state.steps % self.rows
        self.steps[slot] = state.steps
        self.seen[slot] = loss is not None
        self.noted[slot] = noted
        self.places[slot] = place
        head = [state.scale, state.run, state.good, state.left]
        head += [self.unseen if value is None else value for value in (loss, norm)]
        torch.stack(head, out=self.heads[slot])
        if norms is not None:
            torch.stack(norms, out=self.tails[slot])

    def write_compiled(self, before: Any, after: Any, finite: Any, loss: Any, norms: Any) -> None:
        row = ring_row(before, after, finite, loss, norms)
        slot = (after.counters[1] + after.counters[2]) % self.rows
        self.compiled.index_copy_(0, slot.reshape(1).long(), row.reshape(1, -1))

    def read(self) -> np.ndarray:
        """The rows in the layout of ``keras_mp.scaling.ring``. One copy from the device."""
        both = torch.cat([self.raw, self.compiled], dim=1).cpu().numpy().astype(np.float64)
        raw, compiled = both[:, : self.raw.shape[1]], both[:, self.raw.shape[1] :]
        out = np.zeros_like(compiled)
        # The scale of a row is its own note, or what the row of the step before said came next.
        scales = self.known_scale.copy()
        before = np.roll(self.steps, 1)
        before = (before > 0) & (before == self.steps - 1)
        scales = np.where(np.isnan(scales) & before, np.roll(raw[:, 0], 1), scales)
        # Never written, or the one whose scale before is gone.
        told = np.flatnonzero((self.steps > 0) & ~np.isnan(scales))
        finite, seen = raw[told, 1] == 0, self.seen[told]
        out[told, STEP_LOW] = self.steps[told] % STEP_SPLIT
        out[told, STEP_HIGH] = self.steps[told] // STEP_SPLIT
        out[told, SCALE], out[told, NEXT_SCALE] = scales[told], raw[told, 0]
        out[told, FINITE], out[told, GOOD_STEPS] = finite, raw[told, 2]
        out[told, HYSTERESIS] = raw[told, 3]
        out[told, LOSS] = np.where(seen, raw[told, 4], 0)
        loss = np.where(np.isfinite(raw[told, 4]), LOSS_FINITE, LOSS_NOT_FINITE)
        out[told, SEEN] = np.where(seen, loss, LOSS_NOT_SEEN)
        for i in told:
            place = self.places[i]
            if place is not None:
                out[i, SEEN] = overflowed_at(place)
        out[told, COLUMNS:] = raw[told, _HEAD:]
        # Where the host noted the variables, only the norm of all is known: one column has it.
        noted = told[[self.noted[i] is not None for i in told]]
        out[noted, COLUMNS:] = 0
        out[noted, COLUMNS] = np.where(raw[noted, 1] == 0, raw[noted, 5] * scales[noted], 0)
        for i in noted[raw[noted, 1] != 0]:
            out[i, [COLUMNS + k for k in self.noted[i] or ()]] = np.nan
        return np.concatenate([out, compiled])
