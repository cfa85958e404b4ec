"""tensorflow: unscale outside, one cond, the state by selection; eager, graph and XLA."""

from typing import Any

import tensorflow as tf

from keras_mp.scaling.device_state import APPLIED, SKIPPED, ring_row
from keras_mp.scaling.kernels.common import Kernel
from keras_mp.scaling.ring import COLUMNS


class TensorFlowKernel(Kernel):
    def __init__(self, optimizer: Any):
        super().__init__(optimizer)
        self.ring: Any = None

    def allocate_ring(self, rows: int) -> None:
        if self.ring is None or self.ring.shape[0] < rows:
            columns = COLUMNS + len(self.optimizer._trainable_variables)
            with tf.init_scope():
                self.ring = tf.Variable(tf.zeros((rows, columns)), trainable=False)

    def read_ring(self) -> Any:
        return None if self.ring is None else self.ring.numpy()

    def apply(self, grads: list[Any], variables: list[Any]) -> None:
        values = self.state.values()
        inverse = 1.0 / values.scale
        unscaled = [None if g is None else g * tf.cast(inverse, g.dtype) for g in grads]
        finite = tf.reduce_all(
            [tf.reduce_all(tf.math.is_finite(g)) for g in grads if g is not None]
        )
        updated = self.is_update(self.inner._iterations)

        def step() -> Any:
            self.inner.apply(unscaled, variables)
            return tf.constant(True)

        tf.cond(finite, step, lambda: tf.constant(False))
        after = self.advance(values, finite, updated)
        if self.ring is not None:
            row = ring_row(values, after, finite, self.loss, self._norms(grads, variables))
            step = after.counters[SKIPPED] + after.counters[APPLIED]
            self.ring.scatter_nd_update([[step % self.ring.shape[0]]], row[None])
        self.state.assign(after)
        self.loss = None

    def _norms(self, grads: list[Any], variables: list[Any]) -> Any:
        """Norm of each variable's scaled gradient, in the order of the optimizer's variables."""
        index = self.optimizer._get_variable_index
        norms = [tf.zeros(())] * len(self.optimizer._trainable_variables)
        for grad, variable in zip(grads, variables, strict=True):
            if grad is not None:
                norms[index(variable)] = tf.norm(tf.cast(grad, "float32"))
        return tf.stack(norms)

    def stateless_apply(self, *args: Any) -> Any:
        raise ValueError(
            "stateless_apply is not supported on the tensorflow backend, as by no Keras optimizer "
            "there (its variables are updated in place). Use apply()."
        )
