"""Layer, RMS and group normalization that keep half precision for the backward pass.

As BatchNormalization here: float32 arithmetic, and the input kept as it came.
"""

from typing import Any

import keras
from keras import ops

from keras_mp.layers.normalizing import floating, normalize
from keras_mp.layers.registering import registered


@registered
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras' LayerNormalization, with half of its memory under a half-precision policy.

    With the deprecated ``rms_scaling`` it computes as Keras does.
    """

    def call(self, inputs: Any) -> Any:
        if self.rms_scaling:
            return super().call(inputs)
        inputs = floating(inputs)
        axes, shape = _axes(self.axis, inputs)
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        gamma = ops.ones(shape, dtype) if self.gamma is None else ops.cast(self.gamma, dtype)
        beta = ops.zeros(shape, dtype) if self.beta is None else ops.cast(self.beta, dtype)
        outputs = None
        rank = len(inputs.shape)
        if keras.backend.backend() == "torch" and axes == list(range(rank - len(axes), rank)):
            from keras_mp.layers.normalizing_torch import fused_layer_norm

            last = [shape[axis] for axis in axes]
            outputs = fused_layer_norm(
                inputs, ops.reshape(gamma, last), ops.reshape(beta, last), self.epsilon
            )
        if outputs is None:
            gamma, beta = ops.reshape(gamma, shape), ops.reshape(beta, shape)
            outputs, _, _ = normalize(inputs, gamma, beta, axes, self.epsilon)
        return ops.cast(outputs, self.compute_dtype)


@registered
class RMSNormalization(keras.layers.RMSNormalization):
    """Keras' RMSNormalization, with half of its memory under a half-precision policy."""

    def call(self, x: Any) -> Any:
        x = floating(x)
        axes, shape = _axes(self.axis, x)
        scale = ops.cast(self.scale, keras.backend.result_type(x.dtype, "float32"))
        scale = ops.reshape(scale, shape)
        zeros = ops.zeros_like(scale)
        outputs, _, _ = normalize(x, scale, zeros, axes, self.epsilon, centered=False)
        return ops.cast(outputs, self.compute_dtype)


@registered
class GroupNormalization(keras.layers.GroupNormalization):
    """Keras' GroupNormalization, with half of its memory under a half-precision policy."""

    def call(self, inputs: Any) -> Any:
        inputs = floating(inputs)
        whole = list(ops.shape(inputs))
        axis = self.axis % len(whole)
        within = inputs.shape[axis] // self.groups
        split = [*whole[:axis], self.groups, within, *whole[axis + 1 :]]
        shape = [1] * len(split)
        shape[axis : axis + 2] = [self.groups, within]
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        gamma = ops.ones(shape, dtype) if self.gamma is None else ops.cast(self.gamma, dtype)
        beta = ops.zeros(shape, dtype) if self.beta is None else ops.cast(self.beta, dtype)
        axes = [other for other in range(1, len(split)) if other != axis]
        outputs, _, _ = normalize(
            ops.reshape(inputs, split),
            ops.reshape(gamma, shape),
            ops.reshape(beta, shape),
            axes,
            self.epsilon,
        )
        return ops.cast(ops.reshape(outputs, whole), self.compute_dtype)


def _axes(axis: Any, x: Any) -> tuple[list[int], list[int]]:
    """The axes, none negative and in order, and the weights' shape against x."""
    rank = len(x.shape)
    axes = sorted(one % rank for one in (axis if isinstance(axis, (list, tuple)) else [axis]))
    return axes, [x.shape[one] if one in axes else 1 for one in range(rank)]
