"""Preprocessing of raw numbers that computes in float32 and casts what comes out.

Raw features are years, prices, pixels: float16 ends at 65,504 and has every whole number only up to
2,048. Normalized, they fit. Keras casts them first, when it is too late.
"""

from typing import Any

import keras
import numpy as np

from keras_mp import _keras_internals
from keras_mp.layers.registering import registered


class _TakesRawInputs:
    """The part that is ours, mixed into a preprocessing layer: inputs come to it as they are."""

    @property
    def autocast(self) -> bool:
        """False: Keras casts no input before the call."""
        return False

    @autocast.setter
    def autocast(self, value: bool) -> None:
        """Keras sets it when it makes a layer."""


@registered
class Normalization(_TakesRawInputs, keras.layers.Normalization):
    """Keras' Normalization: float32 inside, and what comes out in its policy's dtype.

    ``adapt`` sees its data in float32 too.
    """

    def adapt(self, data: Any) -> None:
        """As Keras' ``adapt``, in float32."""
        layer: Any = self
        policy = layer.dtype_policy
        layer.dtype_policy = _wide(self)
        try:
            super().adapt(data)
        finally:
            layer.dtype_policy = policy

    def call(self, inputs: Any) -> Any:
        if self.mean is None:
            return super().call(inputs)  # Keras says what is missing
        dtype = _wide(self)
        # Not ``self.mean`` and ``self.variance``, which are cast to the compute dtype.
        mean, variance = (self.backend.cast(v, dtype) for v in self._statistics())
        x = self.backend.cast(inputs, dtype)
        deviation = self.backend.numpy.maximum(
            self.backend.numpy.sqrt(variance), keras.backend.epsilon()
        )
        outputs = mean + x * deviation if self.invert else (x - mean) / deviation
        return self.backend.cast(outputs, self.compute_dtype)

    def _statistics(self) -> tuple[Any, ...]:
        """Mean and variance as they were given or adapted to, broadcast against the inputs."""
        shape = self.get_build_config()["input_shape"]
        kept = [axis % len(shape) for axis in self.axis]
        against = [size if axis in kept else 1 for axis, size in enumerate(shape)]
        if self.input_mean is not None:
            given = (np.asarray(v, "float32") for v in (self.input_mean, self.input_variance))
            return tuple(np.broadcast_to(v, against) for v in given)
        variables = (self.adapt_mean, self.adapt_variance)
        values = (self.convert_weight(_keras_internals.stored_value(v)) for v in variables)
        return tuple(self.backend.numpy.reshape(v, against) for v in values)


@registered
class Rescaling(_TakesRawInputs, keras.layers.Rescaling):
    """Keras' Rescaling: float32 inside, and what comes out in its policy's dtype."""

    def call(self, inputs: Any) -> Any:
        dtype = _wide(self)
        scale = self.backend.cast(self.scale, dtype)
        offset = self.backend.cast(self.offset, dtype)
        rank = len(self.backend.core.shape(scale))
        if rank > 0 and keras.config.image_data_format() == "channels_first":
            shape = tuple(self.backend.core.shape(scale)) + (1,) * (3 - rank)
            scale = self.backend.numpy.reshape(scale, shape)
        outputs = self.backend.cast(inputs, dtype) * scale + offset
        return self.backend.cast(outputs, self.compute_dtype)


def _wide(layer: Any) -> str:
    return keras.backend.result_type(layer.compute_dtype, "float32")
