"""Layers of products that keep no cast of their weights for the backward pass, on torch and jax.

In float32 the backward pass uses the weight itself, which is there anyway. Under a mixed policy
Keras keeps the half-precision copy of every weight from the layer's call to its gradient: half of
the weights' bytes again. Here the copy is let go, and made again for the gradient: one cast more a
step for each weight. On torch a convolution's copy is made in the order that torch wants, in one
go, and its input is handed over as a view in that order, where Keras copies it twice and keeps the
second.

A layer in float32 after one in half precision, as a plan has a model's end, keeps its input in half
precision too, and casts it again for the gradient.

On tensorflow, which tells nobody what it keeps, and inside torch's compiler they are Keras' own.
"""

from typing import Any

import keras
from keras import ops

from keras_mp._precision import HALF
from keras_mp.layers.registering import registered


class _NoCastKept:
    """The part that is ours, mixed into a Keras layer without random seeds or state."""

    @property
    def autocast(self) -> bool:
        """False for a float32 layer, which gets its input as it comes: ``call`` casts it.

        Keras casts it before the call, and the copy is what the backward pass keeps.
        """
        layer: Any = self
        return self._cast_inputs and layer.compute_dtype != "float32"

    @autocast.setter
    def autocast(self, value: bool) -> None:
        self._cast_inputs = value

    _cast_inputs = True

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        layer: Any = self
        narrow = self._is_narrow(inputs)
        quantized = getattr(layer, "quantization_mode", None) is not None
        backend = keras.backend.backend()
        if backend == "jax" and not quantized and (narrow or layer.compute_dtype in HALF):
            from keras_mp.layers.casting_jax import copies_not_kept

            def computed(x: Any) -> Any:
                return self.compute(ops.cast(x, "float32") if narrow else x, *args, **kwargs)

            return copies_not_kept(layer, computed, inputs)
        if backend == "torch" and not quantized:
            from keras_mp.layers.casting_torch import (
                InputCast,
                can_remake,
                casts_not_kept,
                casts_of,
                using,
            )

            if narrow and can_remake():
                wide = ops.cast(inputs, "float32")
                with casts_not_kept([(InputCast(inputs), wide)]):
                    return self.compute(wide, *args, **kwargs)
            if can_remake() and (casts := casts_of(layer, layer.variables, self._order)):
                made = [(cast, cast.make()) for cast in casts]
                others = [v for v in layer.variables if all(v is not c.variable for c in casts)]
                with using(made, others), casts_not_kept(made):
                    return self.compute(inputs, *args, **kwargs)
        if narrow:
            inputs = ops.cast(inputs, "float32")
        return self.compute(inputs, *args, **kwargs)

    def _is_narrow(self, inputs: Any) -> bool:
        """Whether this is a float32 layer whose input Keras would have cast."""
        layer: Any = self
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        return (
            self._cast_inputs
            and layer.compute_dtype == "float32"
            and keras.backend.is_float_dtype(dtype)
            and dtype != "float32"
        )

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        """As Keras', which refuses subclasses of its own: they might compute something else."""
        check = type_check and type(self).__module__ != __name__
        super().quantize(mode, type_check=check, config=config)  # type: ignore[misc]

    def compute(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """What the layer computes: Keras' ``call``."""
        return super().call(inputs, *args, **kwargs)  # type: ignore[misc]

    def _order(self, variable: Any) -> tuple[int, ...] | None:
        return None


class _Convolution(_NoCastKept):
    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        """As Keras has it, without its copies: it puts channels first, in memory too, and then last
        again, for which torch has a name of its own. A view says the same.
        """
        layer: Any = self
        if keras.backend.backend() != "torch" or layer.data_format != "channels_last":
            return super().convolution_op(inputs, kernel)  # type: ignore[misc]
        outputs = ops.conv(
            ops.moveaxis(inputs, -1, 1),
            kernel,
            strides=list(layer.strides),
            padding=layer.padding,
            dilation_rate=layer.dilation_rate,
            data_format="channels_first",
        )
        return ops.moveaxis(outputs, 1, -1)

    def _order(self, variable: Any) -> tuple[int, ...] | None:
        """(height, width, in, out) as out, height, width, in: torch's channels_last."""
        rank = len(variable.shape)
        layer: Any = self
        if rank not in (4, 5) or layer.data_format != "channels_last":
            return None
        if self._is_depthwise(variable):  # Keras joins the last two axes to torch's out
            return (rank - 2, rank - 1, *range(rank - 2))
        return (rank - 1, *range(rank - 1))

    def _is_depthwise(self, variable: Any) -> bool:
        return False


class _Depthwise(_Convolution):
    def _is_depthwise(self, variable: Any) -> bool:
        return True


class _Separable(_Convolution):
    def _is_depthwise(self, variable: Any) -> bool:
        layer: Any = self
        return variable is layer.depthwise_kernel


@registered
class Dense(_NoCastKept, keras.layers.Dense):
    """Keras' Dense; it keeps no cast of its weights for the backward pass."""


@registered
class EinsumDense(_NoCastKept, keras.layers.EinsumDense):
    """Keras' EinsumDense; it keeps no cast of its weights for the backward pass."""


@registered
class Conv1D(_Convolution, keras.layers.Conv1D):
    """Keras' Conv1D; it keeps no cast of its weights for the backward pass."""


@registered
class Conv2D(_Convolution, keras.layers.Conv2D):
    """Keras' Conv2D; it keeps no cast of its weights for the backward pass."""


@registered
class Conv3D(_Convolution, keras.layers.Conv3D):
    """Keras' Conv3D; it keeps no cast of its weights for the backward pass."""


@registered
class Conv1DTranspose(_Convolution, keras.layers.Conv1DTranspose):
    """Keras' Conv1DTranspose; it keeps no cast of its weights for the backward pass."""


@registered
class Conv2DTranspose(_Convolution, keras.layers.Conv2DTranspose):
    """Keras' Conv2DTranspose; it keeps no cast of its weights for the backward pass."""


@registered
class Conv3DTranspose(_Convolution, keras.layers.Conv3DTranspose):
    """Keras' Conv3DTranspose; it keeps no cast of its weights for the backward pass."""


@registered
class DepthwiseConv1D(_Depthwise, keras.layers.DepthwiseConv1D):
    """Keras' DepthwiseConv1D; it keeps no cast of its weights for the backward pass."""


@registered
class DepthwiseConv2D(_Depthwise, keras.layers.DepthwiseConv2D):
    """Keras' DepthwiseConv2D; it keeps no cast of its weights for the backward pass."""


@registered
class SeparableConv1D(_Separable, keras.layers.SeparableConv1D):
    """Keras' SeparableConv1D; it keeps no cast of its weights for the backward pass."""


@registered
class SeparableConv2D(_Separable, keras.layers.SeparableConv2D):
    """Keras' SeparableConv2D; it keeps no cast of its weights for the backward pass."""


# Keras' classes that have one here.
NAMES = (
    "Dense",
    "EinsumDense",
    "Conv1D",
    "Conv2D",
    "Conv3D",
    "Conv1DTranspose",
    "Conv2DTranspose",
    "Conv3DTranspose",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "SeparableConv1D",
    "SeparableConv2D",
)
