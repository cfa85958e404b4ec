"""tensorflow: what the device remembers: the last steps, and which variables overflowed when."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_mp.scaling.device_state import APPLIED, SKIPPED, Values, ring_row
from keras_mp.scaling.kernels.tensorflow_replicas import assign, first_replica, update
from keras_mp.scaling.ring import COLUMNS, LOSS_NOT_SEEN


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
                # One more column for the last overflow itself: what is known of its loss (as the
                # ring codes it), unused, its step.
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

    def read_counts(self) -> tuple[np.ndarray, int, int]:
        """([3, variables]: how often, first step, last step a gradient was not finite; step of the
        last overflow, 0 without one; what is known of its loss, as the ring codes it)."""
        if self.counts is None:
            return np.zeros((3, 0), np.int64), 0, LOSS_NOT_SEEN
        counts = np.asarray(first_replica(self.counts).numpy(), np.int64)
        return counts[:, :-1], int(counts[2, -1]), int(counts[0, -1])

    def count(self, nonfinite: Any, before: Values, seen: Any) -> None:
        """A step was skipped.

        Args:
            nonfinite: bool, shape (variables,): those to blame.
            before: The state before it.
            seen: What is known of its loss, int32, shape (), as ``ring`` codes it.
        """
        if self.counts is None:
            return
        step = before.counters[SKIPPED] + before.counters[APPLIED] + 1
        times, first, last = tf.unstack(tf.identity(first_replica(self.counts))[:, :-1])
        times += tf.cast(nonfinite, tf.int32)
        first = tf.where(tf.logical_and(nonfinite, tf.equal(first, 0)), step, first)
        last = tf.where(nonfinite, step, last)
        newest = tf.stack([seen, tf.constant(0), step])[:, None]
        assign(self.counts, tf.concat([tf.stack([times, first, last]), newest], axis=1))

    def write(
        self,
        before: Values,
        after: Values,
        finite: Any,
        loss: Any,
        seen: Any,
        norms: Any,
        nonfinite: Any,
    ) -> None:
        """A step's row.

        Args:
            before, after: The state around it.
            finite: bool, shape ().
            loss: Unscaled, shape (); or None. seen: What is known of it, as ``ring`` codes it.
            norms: Of the unscaled gradients, float32, shape (variables,); or None.
            nonfinite: bool, shape (variables,).
        """
        if self.ring is None:
            return
        columns = None
        if self.width:
            # A norm that was not measured is NaN; one of a finite gradient in a skipped step is a
            # number, whatever its size.
            norms = tf.fill([self.width], np.float32(np.nan)) if norms is None else norms
            scaled = norms * before.scale
            known = tf.where(tf.math.is_finite(scaled), scaled, tf.float32.max)
            skipped = tf.where(nonfinite, np.float32(np.nan), known)
            columns = tf.where(finite, scaled, skipped)
        row = ring_row(before, after, finite, loss, columns, seen)
        step = after.counters[SKIPPED] + after.counters[APPLIED]
        slot = tf.reshape(step % self.ring.shape[0], [1, 1])
        update(self.ring, lambda v, i, x: v.scatter_nd_update(i, x), slot, row[None])
