"""What a backend cannot do in half precision, or does wrong: reasons for float32, as ``hazards``.

Found by the sweep over every layer (``tests/sweep``), which has for each of them the case that
fails under Keras' policy and passes under a plan.
"""

import math
from typing import TYPE_CHECKING

import keras

from keras_mp import _keras_internals
from keras_mp.policies.categories import is_a
from keras_mp.policies.own_code import adds_loss
from keras_mp.policies.reason import Reason
from keras_mp.policies.structure import Place, ends_in

if TYPE_CHECKING:
    from keras_mp.policies.hazards import Circumstances

_POOLING_3D = (
    *("MaxPooling3D", "AveragePooling3D", "AdaptiveMaxPooling3D", "AdaptiveAveragePooling3D"),
)
# (backend, half format) -> layers that have no kernel on CPUs.
_NO_CPU_KERNEL: dict[tuple[str, str], tuple[str, ...]] = {
    ("tensorflow", "float16"): _POOLING_3D,
    ("torch", "float16"): ("AveragePooling3D",),
    ("torch", "bfloat16"): ("AveragePooling3D",),
}
# A bfloat16 sum of this many values has an error of its own size where they are alike.
_LONG_WINDOW = 64
_ACTIVATIONS = {
    "squareplus": "squareplus squares: infinite above 256 in float16, and below zero it cancels",
    "tanh_shrink": "tanh_shrink is x - tanh(x), which cancels near zero",
}
_SMOOTH = ("bicubic", "lanczos3", "lanczos5")


def no_cpu_kernel(place: Place, around: "Circumstances") -> Reason | None:
    layers = _NO_CPU_KERNEL.get((around.backend, around.half), ())
    if around.device.vendor != "CPU" or not is_a(place.layer, *layers):
        return None
    return Reason("no-kernel", f"{around.backend} has no {around.half} kernel for it on CPUs")


def wrong_kernel(place: Place, around: "Circumstances") -> Reason | None:
    """oneDNN's kernel for CPUs, seen in torch 2.13 with AVX512-BF16: the weights' gradient of a
    padded volume less deep than the kernel is read from memory that nobody wrote, and some sizes
    write past its end. float16 and the other axes are right.
    """
    layer = place.layer
    found = is_a(layer, "Conv3D", "Conv3DTranspose", "ConvLSTM3D")
    cpu = around.backend == "torch" and around.device.vendor == "CPU"
    if not (found and cpu and around.half == "bfloat16"):
        return None
    shape = (layer.get_build_config() or {}).get("input_shape")
    depth = None if shape is None else shape[-4 if layer.data_format == "channels_last" else -3]
    kernel = layer.kernel_size[0]
    padded = layer.padding == "same"
    if is_a(layer, "ConvLSTM3D"):  # its steps are padded, over what it gives
        depth = depth if padded or depth is None else (depth - kernel) // layer.strides[0] + 1
        padded = True
    if not padded or depth is None or depth >= kernel:
        return None
    return Reason(
        "wrong-kernel",
        f"torch's bfloat16 kernel on CPUs gives its weights wrong or NaN gradients: it is {depth} "
        f"deep, and its kernel {kernel}",
    )


def no_gradient(place: Place, around: "Circumstances") -> Reason | None:
    """TensorFlow's resize operators have a gradient in float32 alone: below them nothing trains."""
    if around.backend != "tensorflow" or not is_a(place.layer, "UpSampling2D"):
        return None
    interpolation = getattr(place.layer, "interpolation", None)
    if interpolation not in _SMOOTH:
        return None
    return Reason(
        "no-gradient",
        f"TensorFlow's {interpolation} resize has no gradient in {around.half}: the layers before "
        "it would not train",
    )


def lost_state(place: Place, around: "Circumstances") -> Reason | None:
    """On torch, what a layer assigns to a float32 variable while it computes in half is lost.

    Keras copies into the variable's ``value``, which is a half-precision copy by then.
    """
    if around.backend != "torch" or not getattr(place.layer, "autocast", True):
        return None
    spectral = is_a(place.layer, "SpectralNormalization")
    state = [
        variable
        for variable in _keras_internals.own_state(place.layer)
        if keras.backend.standardize_dtype(variable.dtype) == "float32"
        and _keras_internals.follows_autocast(variable)
    ]
    if not spectral and not (place.category == "custom" and state):
        return None
    return Reason(
        "lost-state",
        "keeps a state of its own, and on torch what a layer assigns to a float32 variable is lost "
        f"while it computes in {around.half}",
    )


def narrow_activation(place: Place, around: "Circumstances") -> Reason | None:
    """An activation that a half format is too narrow for, alone or as a layer's argument."""
    what = _ACTIVATIONS.get(ends_in(place.layer) or "")
    if what is None:
        return None
    if not is_a(place.layer, "Activation"):
        what += ". (As an Activation layer of its own it alone would be in float32)"
    return Reason("activation", what)


def long_sum(place: Place, around: "Circumstances") -> Reason | None:
    """Means whose sum is in half precision, besides those that ``hazards`` knows."""
    if around.half == "bfloat16":
        return _bfloat16_sum(place, around)
    if is_a(place.layer, "AdaptiveAveragePooling3D"):
        return Reason("mean-pooling", "adds up its windows in float16: the sum overflows")
    if is_a(place.layer, "GlobalAveragePooling1D") and _keras_internals.called_with_mask(
        place.layer
    ):
        return Reason(
            "mean-pooling", "adds up all unmasked positions in float16: the sum overflows"
        )
    return None


def _bfloat16_sum(place: Place, around: "Circumstances") -> Reason | None:
    """XLA sums a window in the dtype of its numbers: 256 ones are where bfloat16 stops."""
    pooling = is_a(place.layer, "AveragePooling1D", "AveragePooling2D", "AveragePooling3D")
    if around.backend != "jax" or not pooling:
        return None
    window = math.prod(place.layer.pool_size)
    if window < _LONG_WINDOW:
        return None
    return Reason("mean-pooling", f"adds up {window} values in bfloat16, which stops at 256 ones")


def added_loss(place: Place, around: "Circumstances") -> Reason | None:
    """A layer of the user's that holds no others: what it is given is cast to its own dtype."""
    if place.category == "container" or place.children or not adds_loss(place.layer):
        return None
    return Reason(
        "added-loss",
        f"adds a loss of its own, which {around.half} rounds and float16 overflows; TensorFlow "
        "refuses to add it to the others, which are float32",
    )


FINDERS = (
    no_cpu_kernel,
    wrong_kernel,
    no_gradient,
    lost_state,
    long_sum,
    narrow_activation,
    added_loss,
)
