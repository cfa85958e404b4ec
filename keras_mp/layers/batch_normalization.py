"""BatchNormalization that keeps its input in half precision for the backward pass."""

from typing import Any

import keras
from keras import ops

from keras_mp.layers.normalizing import floating, normalize
from keras_mp.layers.registering import registered


@registered
class BatchNormalization(keras.layers.BatchNormalization):
    """Keras' BatchNormalization, with half of its memory under a half-precision policy.

    Keras casts the input to float32 and keeps that. Here the input is kept as it comes; statistics
    and arithmetic are float32 all the same. Arguments, weights and results are Keras'. With
    ``renorm`` or ``synchronized`` it computes as Keras does, and needs as much.
    """

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if self.renorm or self.synchronized:
            return super().call(inputs, training=training, mask=mask)
        if mask is not None and len(mask.shape) != len(inputs.shape) - 1:
            raise ValueError(
                "The mask has another rank than the layer's. Expected one dimension less than the "
                f"inputs. Received: mask.shape={mask.shape}, inputs.shape={inputs.shape}"
            )
        inputs = floating(inputs)
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        own = bool(training) and self.trainable
        moving = tuple(ops.cast(v, dtype) for v in (self.moving_mean, self.moving_variance))
        gamma = ops.cast(self.gamma, dtype) if self.scale else ops.ones_like(moving[0])
        beta = ops.cast(self.beta, dtype) if self.center else ops.zeros_like(moving[0])
        outputs, mean, variance = self._normalize(
            inputs, gamma, beta, None if own else moving, mask if own else None
        )
        if own:
            for variable, old, new in zip(
                (self.moving_mean, self.moving_variance), moving, (mean, variance), strict=True
            ):
                variable.assign(old * self.momentum + new * (1.0 - self.momentum))
        return ops.cast(outputs, self.compute_dtype)

    def _normalize(self, x: Any, gamma: Any, beta: Any, statistics: Any, mask: Any) -> tuple:
        """Values, and x's mean and variance, a number a channel."""
        axis = self.axis % len(x.shape)
        if keras.backend.backend() == "torch" and mask is None:
            from keras_mp.layers.normalizing_torch import fused_batch_norm

            fused = fused_batch_norm(x, gamma, beta, axis, self.epsilon, statistics)
            if fused is not None:
                return fused
        shape = [1] * len(x.shape)
        shape[axis] = -1
        axes = [other for other in range(len(x.shape)) if other != axis]
        outputs, mean, variance = normalize(
            x,
            ops.reshape(gamma, shape),
            ops.reshape(beta, shape),
            axes,
            self.epsilon,
            mask=None if mask is None else ops.cast(ops.expand_dims(mask, -1), "bool"),
            statistics=statistics and tuple(ops.reshape(s, shape) for s in statistics),
        )
        return outputs, ops.reshape(mean, (-1,)), ops.reshape(variance, (-1,))
