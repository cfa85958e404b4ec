"""tensorflow: unscale outside, one cond, the state by selection; eager, graph and XLA."""

from typing import Any

import tensorflow as tf

from keras_mp.scaling.kernels.common import Kernel


class TensorFlowKernel(Kernel):
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
        self.state.assign(self.advance(values, finite, updated))

    def stateless_apply(self, *args: Any) -> Any:
        raise ValueError(
            "stateless_apply is not supported on the tensorflow backend, as by no Keras optimizer "
            "there (its variables are updated in place). Use apply()."
        )
