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
    LOSS,
    LOSS_FINITE,
    NEXT_SCALE,
    SCALE,
    STEP_HIGH,
    STEP_LOW,
    STEP_SPLIT,
)

_HEAD = 5  # next scale, consecutive skips, good steps, loss, global norm (unscaled)


class TorchRing:
    """Args: rows: Steps to keep. variables: How many. device: Where."""

    def __init__(self, rows: int, variables: int, device: Any):
        self.rows = rows + 1  # the oldest one only lends its scale to the next
        self.raw = torch.zeros((self.rows, _HEAD + variables), device=device)
        self.heads = [self.raw[i, :_HEAD] for i in range(self.rows)]
        self.tails = [self.raw[i, _HEAD:] for i in range(self.rows)]
        self.unseen = torch.zeros((), device=device)
        self.steps = np.zeros(self.rows, np.int64)
        self.seen = np.zeros(self.rows, bool)
        self.known_scale = np.full(self.rows, np.nan)
        # Where the host sees each skip it notes the variables, and no norms are kept a variable.
        self.noted: list[tuple[int, ...] | None] = [None] * self.rows
        # Under torch.compile the host does not see the steps: whole rows, at the device's index.
        self.compiled = torch.zeros((self.rows, COLUMNS + variables), device=device)
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
    ) -> None:
        """After a step: its row.

        Args:
            norm: Of all unscaled gradients, 0-d.
            norms: Of the scaled gradients, a 0-d tensor a variable.
            noted: Instead of norms, indices of the variables that were not finite.
        """
        slot = state.steps % self.rows
        self.steps[slot] = state.steps
        self.seen[slot] = loss is not None
        self.noted[slot] = noted
        head = [state.scale, state.run, state.good]
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
        next_scales = dict(zip(self.steps.tolist(), raw[:, 0].tolist(), strict=True))
        for i, step in enumerate(self.steps.tolist()):
            scale = self.known_scale[i]
            if np.isnan(scale):
                scale = next_scales.get(step - 1, np.nan)
            if step == 0 or np.isnan(scale):
                continue  # never written, or the one whose scale before is gone
            loss = raw[i, 3]
            out[i, [STEP_LOW, STEP_HIGH]] = step % STEP_SPLIT, step // STEP_SPLIT
            out[i, [SCALE, NEXT_SCALE]] = scale, raw[i, 0]
            out[i, [FINITE, GOOD_STEPS]] = raw[i, 1] == 0, raw[i, 2]
            out[i, LOSS] = loss if self.seen[i] else 0
            out[i, LOSS_FINITE] = float(np.isfinite(loss)) if self.seen[i] else -1
            noted = self.noted[i]
            if noted is None:
                out[i, COLUMNS:] = raw[i, _HEAD:]
            else:
                # Only the norm of all is known: it goes into one column.
                out[i, COLUMNS] = raw[i, 4] * scale if raw[i, 1] == 0 else 0
                out[i, [COLUMNS + k for k in noted]] = np.nan
        return np.concatenate([out, compiled])
