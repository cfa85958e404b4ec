"""tensorflow: each variable's largest scaled gradient, on a schedule."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_mp.scaling.device_state import APPLIED, SKIPPED
from keras_mp.scaling.kernels import tensorflow_check as check
from keras_mp.scaling.kernels.tensorflow_control import either
from keras_mp.scaling.kernels.tensorflow_replicas import assign, first_replica


class TensorFlowHeadroom:
    """What was measured last, in a variable outside of Keras' tracking.

    On several replicas a variable's largest is that of any replica's own gradients, because it is
    these that are computed in float16, and not their sum.

    Attributes:
        every: Steps between two measurements; 0: nothing is measured.
    """

    def __init__(self) -> None:
        self.every = 0
        self.largest: Any = None

    def start(self, every: int, variables: int) -> None:
        self.every = every
        if self.largest is None:
            with tf.init_scope():
                self.largest = tf.Variable(tf.fill([variables], np.float32("nan")), False)

    def read(self) -> np.ndarray | None:
        """float32, [variables]; NaN before the first measurement."""
        return None if self.largest is None else first_replica(self.largest).numpy()

    def measure(self, counters: Any, grads: list[Any], spread: Any) -> None:
        """Where the step is one of the schedule's.

        Args:
            counters: Of the state before the step.
            grads: Scaled gradients, none of them None.
            spread: Gives [variables] for [gradients] and a default.
        """

        def assign_all() -> None:
            self.largest.assign(spread(_sizes(grads), 0.0))

        either(self._due(counters), assign_all, lambda: None)

    def on_replica(self, counters: Any, grads: list[Any]) -> Any:
        """The part of this replica: float32, [replicas, gradients], to be summed over replicas."""
        context = tf.distribute.get_replica_context()
        count = context.num_replicas_in_sync
        mine = tf.equal(tf.range(count), tf.cast(context.replica_id_in_sync_group, tf.int32))
        zeros = tf.zeros([count, len(grads)])

        def row() -> Any:
            return tf.where(mine[:, None], _sizes(grads)[None], zeros)

        return tf.cond(self._due(counters), row, lambda: zeros)

    def together(self, counters: Any, rows: Any, spread: Any) -> None:
        """Where the step is one of the schedule's. rows: What ``on_replica`` gave, summed."""
        largest = spread(tf.reduce_max(rows, axis=0), 0.0)
        either(self._due(counters), lambda: assign(self.largest, largest), lambda: None)

    def _due(self, counters: Any) -> Any:
        return tf.equal((counters[SKIPPED] + counters[APPLIED] + 1) % self.every, 0)


def _sizes(grads: list[Any]) -> Any:
    tensors = [check.values(g) for g in grads]
    return tf.stack([tf.reduce_max(tf.abs(tf.cast(t, tf.float32))) for t in tensors])
