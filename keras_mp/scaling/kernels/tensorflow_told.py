"""tensorflow: what is said aloud, though in a graph the host does not see the steps."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_mp.scaling.device_state import CONSECUTIVE_SKIPS, HYSTERESIS_LEFT, Values
from keras_mp.scaling.kernels.tensorflow_control import either, in_python
from keras_mp.scaling.ring import decode_seen
from keras_mp.scaling.told import LONG_RUN


class TensorFlowTold:
    """Args: kernel: The TensorFlowKernel whose steps are spoken of."""

    def __init__(self, kernel: Any):
        self.kernel = kernel
        self.run = 0  # the longest run of skips that was heard of

    def from_graph(self, before: Values, after: Values, seen: Any, nonfinite: Any) -> None:
        """Call Python from the graph, but only when there is something to say. Not under XLA.

        Args:
            before, after: The state around the step.
            seen: int32, shape (): what is known of the loss, as ``ring`` codes it.
            nonfinite: bool, shape (variables,).
        """
        config = self.kernel.config
        run = after.counters[CONSECUTIVE_SKIPS]
        loud = run >= LONG_RUN
        if config.on_exhausted != "continue":
            floor = tf.logical_or(not config.dynamic, before.scale <= after.limits[0])
            if config.dynamic and config.hysteresis > 1:
                floor = tf.logical_and(floor, tf.equal(after.counters[HYSTERESIS_LEFT], 0))
            loud = tf.logical_or(loud, tf.logical_and(floor, run >= config.exhausted_after))

        def hear(scale: Any, counters: Any, limits: Any, seen: Any, nonfinite: Any) -> None:
            left, skipped, applied, run = np.asarray(counters).tolist()
            self._note(skipped + applied, int(seen), np.asarray(nonfinite))
            self._say(float(scale), run, left, np.asarray(limits))

        arguments = [before.scale, after.counters, after.limits, seen, nonfinite]
        either(loud, lambda: in_python(hear, *arguments), lambda: None)

    def look(self) -> None:
        """The host looks at the state itself: under XLA nobody else says what must be said."""
        kernel = self.kernel
        counts, step, seen = kernel.log.read_counts()
        if step:
            self._note(step, seen, counts[2] == step)
        state = kernel.state.read()
        run, left = state.consecutive_skips, state.hysteresis_left
        self._say(state.scale, run, left, kernel.state.limits.numpy())

    def _note(self, step: int, seen: int, nonfinite: np.ndarray) -> None:
        indices = tuple(int(i) for i in np.flatnonzero(nonfinite))
        self.kernel.note_overflow(step, indices, *decode_seen(seen))

    def _say(self, scale: float, run: int, left: int, limits: np.ndarray) -> None:
        teller = self.kernel.teller
        if run < self.run:  # there was a clean step in between
            teller.check(scale, 0)
        self.run = run
        low, high = (float(x) for x in limits)
        teller.check(scale, run, left, self.kernel.config.within(low, high))
