"""tensorflow: what the device remembers: the last steps, and which variables overflowed when."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_mp.scaling.device_state import APPLIED, SKIPPED, Values, ring_row
from keras_mp.scaling.kernels.tensorflow_replicas import assign, first_replica, update
from keras_mp.scaling.ring import COLUMNS


class TensorFlowLog:
    """Variables outside of Keras' tracking, so that they stay out of checkpoints.

    Args:
        variables: How many trainable variables there are.
        attribution: Count overflows a variable, and keep its norm in the ring.
    """

    def __init__(self, variables: int, attribution: bool):
        self.width = variables if attribution else 0
        self.ring: Any = None
        self.counts: Any = None
        if attribution:
            with tf.init_scope():
                # One more column for the last overflow itself: whether the loss was finite (as in
                # the ring: 1, 0, or -1 for not seen), unused, its step.
                self.counts = tf.Variable(tf.zeros((3, variables + 1), tf.int32), trainable=False)

    def allocate(self, rows: int) -> None:
        """A ring of at least ``rows`` steps. A step that was traced before does not see it."""
        if self.ring is not None and self.ring.shape[0] >= rows:
            return
        with tf.init_scope():
            old = self.read()
            start = np.zeros((rows, COLUMNS + self.width), np.float32)
            if old is not None:
                start[: len(old)] = old
            self.ring = tf.Variable(start, trainable=False)

    def read(self) -> np.ndarray | None:
        """[rows, columns]; one copy from the device."""
        return None if self.ring is None else np.asarray(first_replica(self.ring).numpy())

    def read_counts(self) -> tuple[np.ndarray, int, bool | None]:
        """([3, variables]: how often, first step, last step a gradient was not finite; step of the
        last overflow, 0 without one; whether its loss was finite, None where it was not seen)."""
        if self.counts is None:
            return np.zeros((3, 0), np.int64), 0, None
        counts = np.asarray(first_replica(self.counts).numpy(), np.int64)
        seen = int(counts[0, -1])
        return counts[:, :-1], int(counts[2, -1]), None if seen < 0 else bool(seen)

    def count(self, nonfinite: Any, before: Values, loss: Any) -> None:
        """A step was skipped.

        Args:
            nonfinite: bool, shape (variables,): those to blame.
            before: The state before it.
            loss: Its loss, shape (), or None.
        """
        if self.counts is None:
            return
        step = before.counters[SKIPPED] + before.counters[APPLIED] + 1
        times, first, last = tf.unstack(tf.identity(first_replica(self.counts))[:, :-1])
        times += tf.cast(nonfinite, tf.int32)
        first = tf.where(tf.logical_and(nonfinite, tf.equal(first, 0)), step, first)
        last = tf.where(nonfinite, step, last)
        seen = tf.constant(-1) if loss is None else tf.cast(tf.math.is_finite(loss), tf.int32)
        newest = tf.stack([seen, tf.constant(0), step])[:, None]
        assign(self.counts, tf.concat([tf.stack([times, first, last]), newest], axis=1))

    def write(
        self, before: Values, after: Values, finite: Any, loss: Any, norms: Any, nonfinite: Any
    ) -> None:
        """A step's row.

        Args:
            before, after: The state around it.
            finite: bool, shape ().
            loss: Unscaled, shape (); or None.
            norms: Of the unscaled gradients, float32, shape (variables,); or None.
            nonfinite: bool, shape (variables,).
        """
        if self.ring is None:
            return
        columns = None
        if self.width:
            # A norm that was not measured is NaN; one of a finite gradient in a skipped step is a
            # number, whatever its size.
            seen = tf.fill([self.width], np.float32(np.nan)) if norms is None else norms
            scaled = seen * before.scale
            known = tf.where(tf.math.is_finite(scaled), scaled, tf.float32.max)
            skipped = tf.where(nonfinite, np.float32(np.nan), known)
            columns = tf.where(finite, scaled, skipped)
        row = ring_row(before, after, finite, loss, columns)
        step = after.counters[SKIPPED] + after.counters[APPLIED]
        slot = tf.reshape(step % self.ring.shape[0], [1, 1])
        update(self.ring, lambda v, i, x: v.scatter_nd_update(i, x), slot, row[None])
