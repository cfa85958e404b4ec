"""tensorflow: what a step that is skipped, or a loss that is not finite, must leave as it was.

In a traced step the old value of a variable is what the step itself has read before it wrote: it
costs nothing and cannot be stale. Where the step did not read first (or did so inside a function),
and in eager mode, a copy is kept; whoever changes the variables from outside then calls
``refresh``.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_mp.scaling.kernels.tensorflow_graph import values_before


class TensorFlowGuard:
    """Variables that a skipped step leaves as they were.

    Args:
        variables: Keras variables. Under a strategy every replica has a copy with a value of its
            own (BatchNormalization's statistics are not synchronised), and each is spared.
    """

    def __init__(self, variables: list[Any]):
        self.variables = [part for v in variables for part in _parts(_native(v))]
        self.copies: dict[int, Any] = {}  # for graphs that do not read first
        self.values: list[Any] = []  # for eager mode
        self.refresh()

    def refresh(self) -> None:
        """Take the present values as those to go back to."""
        with tf.init_scope():
            self.values = [tf.identity(v) for v in self.variables]
            for i, copy in self.copies.items():
                copy.assign(self.values[i])

    def before(self) -> list[Any]:
        """The values before the step; called after its forward pass, outside of conditionals."""
        if tf.executing_eagerly():
            return self.values
        found = values_before(self.variables)
        missing = [i for i, value in enumerate(found) if value is None]
        for i in missing:
            if i not in self.copies:
                with tf.init_scope():
                    value = tf.identity(self.variables[i])
                self.copies[i] = _variable(value)
            found[i] = tf.identity(self.copies[i])
        return found

    def restore(self, before: list[Any]) -> None:
        """The step was skipped."""
        for variable, value in zip(self.variables, before, strict=True):
            with tf.device(variable.device):
                variable.assign(value)

    def keep(self) -> None:
        """The step was applied."""
        if tf.executing_eagerly():
            self.refresh()
            return
        for i, copy in self.copies.items():
            copy.assign(tf.identity(self.variables[i]))


class LossGuard:
    """The sums and counts of the mean losses, which losses that are not finite do not enter.

    An epoch without any finite loss shows NaN, and not the 0 of an empty mean.
    """

    def __init__(self) -> None:
        self.values: list[Any] = []  # eager: sums and counts after the last loss

    def settle(self, trackers: list[tuple[Any, Any]], loss: Any) -> None:
        """After the trackers were updated with a loss, in the context of a replica.

        Args:
            trackers: (sum, count) of the whole loss, then of each output's own.
            loss: What the first was given; shape ().
        """
        variables = [_native(v) for pair in trackers for v in pair]
        before = self._before(variables) if variables else [None]
        if any(value is None for value in before):
            return
        finite = tf.math.is_finite(loss)
        weight = self._settle_whole(variables[0], variables[1], before[0], before[1], loss, finite)
        for i in range(2, len(variables), 2):
            total, count = variables[i : i + 2]
            self._settle_part(total, count, before[i], before[i + 1], weight, finite)
        if tf.executing_eagerly():
            self.values = [v.read_value() for v in variables]

    @staticmethod
    def _settle_whole(
        total: Any, count: Any, total_before: Any, count_before: Any, loss: Any, finite: Any
    ) -> Any:
        """Returns what the count grew by."""
        new_total, new_count = total.read_value(), count.read_value()
        weight = new_count - count_before
        # Losses that were not finite stay in as long as there is nothing else.
        nothing_yet = tf.logical_or(
            tf.equal(count_before, 0), tf.logical_not(tf.math.is_finite(total_before))
        )
        start_over = tf.logical_and(finite, tf.logical_not(tf.math.is_finite(total_before)))
        go_back = tf.logical_not(tf.logical_or(finite, nothing_yet))
        alone = tf.cast(loss, new_total.dtype) * tf.cast(weight, new_total.dtype)
        total.assign(
            tf.where(go_back, total_before, tf.where(start_over, alone, new_total)),
        )
        count.assign(tf.where(go_back, count_before, tf.where(start_over, weight, new_count)))
        return weight

    @staticmethod
    def _settle_part(
        total: Any, count: Any, total_before: Any, count_before: Any, weight: Any, finite: Any
    ) -> None:
        """What one output added is not known: as long as nothing was finite, the sum stays 0 and
        the count is NaN."""
        nothing_yet = tf.logical_or(tf.equal(count_before, 0), tf.math.is_nan(count_before))
        new_count = tf.where(nothing_yet, tf.cast(weight, count.dtype), count.read_value())
        old_count = tf.where(nothing_yet, tf.cast(np.nan, count.dtype), count_before)
        total.assign(tf.where(finite, total.read_value(), total_before))
        count.assign(tf.where(finite, new_count, old_count))

    def _before(self, variables: list[Any]) -> list[Any | None]:
        if not tf.executing_eagerly():
            return values_before(variables)
        # A count that has not grown was reset in between.
        if len(self.values) == len(variables) and bool(variables[1] > self.values[1]):
            return list(self.values)
        return [tf.zeros_like(v) for v in variables]


def _variable(value: Any) -> Any:
    """A variable that is created in a thread of its own: in this one a function may be traced for
    the second time, and may then create none, not even in ``tf.init_scope``."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: tf.Variable(value, trainable=False)).result()


def _parts(variable: Any) -> list[Any]:
    """The replicas' copies of a variable."""
    distributed = isinstance(variable, tf.distribute.DistributedValues)
    return list(variable.values) if distributed else [variable]


def _native(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable
