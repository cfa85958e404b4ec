"""torch: what the host learns of the steps: of each on a CPU, now and then on an accelerator."""

from typing import Any

import numpy as np
import torch

from keras_mp.scaling.kernels.torch_ops import dense
from keras_mp.scaling.kernels.torch_state import APPLIED, LEFT, RUN, SKIPPED, TorchState
from keras_mp.scaling.ring import decode

# On an accelerator a look at the state waits for the device: this many steps apart.
LOOK_EVERY = 256
# After a loss overflowed there, this many further steps are read, to name the layer of the next.
WATCH_FORWARD = 4 * LOOK_EVERY


class TorchTold:
    """Args: kernel: The TorchKernel whose steps are spoken of."""

    def __init__(self, kernel: Any):
        self.kernel = kernel
        self.counted_until = 0
        self.watch_until = 0

    def look(self) -> None:
        """Let the host see what happened since the last look: counts, and what must be said."""
        kernel = self.kernel
        if kernel.ring is not None:
            self.count(kernel.ring.read())
        elif kernel.linked is None or kernel.follow_device:
            state = kernel.state.read()
            kernel.teller.check(state.scale, state.consecutive_skips, state.hysteresis_left)

    def count(self, ring: np.ndarray) -> None:
        """Count the overflows of rows that were not counted yet, and say what must be said."""
        kernel = self.kernel
        config = None if kernel.linked is None else kernel.linked.config
        rows = decode(ring, self.counted_until)
        run = kernel.run_before
        for row in rows:
            run = 0 if row.finite else run + 1
            if not row.finite:
                kernel.note_overflow(row.step, row.nonfinite, row.loss_finite, row.place)
                if row.loss_finite is False:
                    self.watch_until = row.step + WATCH_FORWARD
            kernel.teller.check(row.scale, run, row.hysteresis_left, config)
        if rows:
            self.counted_until, kernel.run_before = rows[-1].step, run

    def who(self, grads: list[Any], variables: list[Any]) -> tuple[int, ...]:
        """Indices of the variables whose gradient is not finite: only after a skip, on a CPU."""
        optimizer = self.kernel.optimizer
        if not optimizer.attribution:
            return ()
        index = optimizer._get_variable_index
        return tuple(
            index(v)
            for g, v in zip(grads, variables, strict=True)
            if g is not None and not bool(torch.isfinite(dense(g)).all())
        )

    def step(self, state: TorchState, scale: float, noted: tuple[int, ...]) -> None:
        """The host saw a step: count an overflow, and say what must be said."""
        kernel, counts = self.kernel, state.host_integers
        run = int(counts[RUN])
        self.counted_until = state.steps
        if run:
            loss_finite = None if kernel.loss is None else bool(torch.isfinite(kernel.loss))
            step = int(counts[SKIPPED]) + int(counts[APPLIED])
            kernel.note_overflow(step, noted, loss_finite, kernel.place)
        if run or kernel.teller.said:
            kernel.teller.check(scale, run, int(counts[LEFT]), state.config)
