"""tensorflow: norms of the gradients' sum over the replicas of a strategy.

Keras adds the gradients up inside the optimizer. What it then hands to ``update_step`` is the sum,
on every replica: its norm takes no message more. Where an option comes in between (a clip acts on
each replica's own gradients, an accumulation on its own micro-batches), the norm is not known.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from keras_mp import _keras_internals
from keras_mp.scaling.kernels import tensorflow_check as check

_BETWEEN = ("clipnorm", "global_clipnorm", "clipvalue", "gradient_accumulation_steps")


class SummedNorms:
    """Of one step.

    Args:
        inner: The built Keras optimizer. count: Of its variables.
    """

    def __init__(self, inner: Any, count: int):
        self.inner = inner
        self.count = count
        self.norms: dict[int, Any] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around ``inner.apply`` on unscaled gradients."""
        if any(getattr(self.inner, option, None) for option in _BETWEEN):
            yield
            return
        with _keras_internals.watched_updates(self.inner, self._see):
            yield

    def _see(self, gradient: Any, variable: Any) -> None:
        index = self.inner._get_variable_index(variable)
        if index not in self.norms:  # on every replica it is the same
            self.norms[index] = check.norm(gradient)

    def found(self, places: list[int]) -> Any:
        """float32, [variables]: 0 without a gradient; NaN, all of them, where not all were seen.

        Args:
            places: Of the variables that have a gradient.
        """
        if not set(places) <= set(self.norms):
            return tf.fill([self.count], np.float32("nan"))
        zero = tf.zeros([])
        return tf.stack([self.norms.get(i, zero) for i in range(self.count)])
