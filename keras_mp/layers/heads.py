"""Layers for a model's end: the product in half precision, what it gives in float32."""

from typing import Any

import keras
from keras import ops

from keras_mp.layers import products


# A package of its own: `keras_mp.layers.Dense` gives its policy's dtype.
@keras.saving.register_keras_serializable(package="keras_mp.layers.heads")
class Dense(products.Dense):
    """``keras.layers.Dense`` that gives float32: the product in its policy's dtype, then a cast,
    then the activation.

    For heads that are a large part of a model, such as a language model's logits. In float32 they
    would be multiplied slowly; under a plain half-precision policy their softmax or sigmoid reaches
    exactly 0 and 1, and Keras' metrics round integer labels to the predictions' dtype. Here the
    logits alone are rounded, once, as under torch's autocast.

    Args:
        As ``keras.layers.Dense``. Under a float32 policy it computes what that does.
    """

    def compute(self, inputs: Any, training: Any = None) -> Any:
        """What ``call`` computes, with the weights as the layer's dtype has them."""
        outputs = ops.matmul(inputs, self.kernel)
        if self.bias is not None:
            outputs = ops.add(outputs, self.bias)
        if self.compute_dtype in ("float16", "bfloat16"):
            outputs = ops.cast(outputs, "float32")
        return outputs if self.activation is None else self.activation(outputs)


@keras.saving.register_keras_serializable(package="keras_mp.layers.heads")
class ReversibleEmbedding(keras.layers.ReversibleEmbedding):
    """``keras.layers.ReversibleEmbedding`` whose logits are float32: ``Dense`` here says why."""

    def call(self, inputs: Any, reverse: bool = False) -> Any:
        outputs = super().call(inputs, reverse=reverse)
        return ops.cast(outputs, "float32") if reverse else outputs
