"""When a layer must not compute in half precision: one function a reason.

Each was seen to change what a model computes; ``tests/keras_mp/policies/test_reasons.py`` has for
each a model where it does, and one where the reason must not be given.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from keras_mp import _keras_internals
from keras_mp.numerics.formats import get_format
from keras_mp.policies import gaps
from keras_mp.policies.attention import in_half
from keras_mp.policies.categories import is_a
from keras_mp.policies.classes import OURS, class_name, gives_float32
from keras_mp.policies.hardware import Device
from keras_mp.policies.measure import Calibration
from keras_mp.policies.raw import Raw
from keras_mp.policies.reason import Reason
from keras_mp.policies.structure import (
    SATURATING,
    Place,
    Structure,
    below,
    ends_in,
    is_functional,
)

# The float16 sum of this many values overflows where their mean is above 1,024.
LARGE_WINDOW = 64
FLOAT16_MAX = get_format("float16").max
FLOAT16_SMALLEST = get_format("float16").min_normal
# A logit that is wrong by this makes an attention weight wrong by 28 %.
LOGIT_ROUNDING = 0.25
# Values grow while a model trains: twice what one batch showed must still fit.
HEADROOM = 2.0


@dataclass(frozen=True)
class Circumstances:
    """What a reason may depend on besides the layer.

    Attributes:
        half: "float16" or "bfloat16".
        backend, device: What computes it, and where.
        measured: What a calibration batch showed; None without one.
        raw: Path -> raw numbers that the layer hands on.
        code: Path -> why the user's own code needs the layer in float32.
        anew: Paths of layers that an earlier plan made ours, whose class is chosen anew.
    """

    half: str
    backend: str
    device: Device
    structure: Structure
    measured: Calibration | None = None
    raw: Mapping[str, Raw] = field(default_factory=dict)
    code: Mapping[str, Reason] = field(default_factory=dict)
    anew: Collection[str] = ()

    def stays_ours(self, place: Place) -> bool:
        """Whether a layer is of a class of ours, and not by a plan that another one replaces."""
        return class_name(place.layer).startswith(OURS) and place.path not in self.anew


def hazard(place: Place, around: Circumstances, *, besides: Collection[str] = ()) -> Reason | None:
    """Why the layer must stay in float32; None if nothing speaks against half precision.

    ``besides``: codes of reasons that do not count.
    """
    for find in _FINDERS:
        reason = find(place, around)
        if reason is not None and reason.code not in besides:
            return reason
    return None


def _raw_input(place: Place, around: Circumstances) -> Reason | None:
    if place.category != "input":
        raw = around.raw.get(place.path)
        return None if raw is None else raw.reason(place.path, around.half)
    return Reason(
        "raw-input",
        "takes raw features: float16 ends at 65,504 and has 3 digits, bfloat16 has 2",
    )


def _foreign(place: Place, around: Circumstances) -> Reason | None:
    if place.category != "foreign":
        return None
    return Reason(
        "foreign",
        "runs another framework's code, whose weights Keras does not cast with the inputs",
    )


def _output(place: Place, around: Circumstances) -> Reason | None:
    if not place.output or (gives_float32(place.layer) and around.stays_ours(place)):
        return None
    activation = ends_in(place.layer)
    if activation in SATURATING:
        bounds = "-1 or 1" if activation == "tanh" else "0 or 1"
        return Reason(
            "output-activation",
            f"ends in {activation}: in {around.half} it reaches exactly {bounds}, where its "
            "gradient is zero",
        )
    return Reason(
        "output",
        f"its values leave the model: {around.half} would round them, and labels with them",
    )


def _unit_norm(place: Place, around: Circumstances) -> Reason | None:
    normalizes = is_a(place.layer, "UnitNormalization") or (
        is_a(place.layer, "Dot") and getattr(place.layer, "normalize", False)
    )
    if around.half != "float16" or not normalizes:
        return None
    return Reason(
        "unit-norm",
        "squares its inputs in float16: above 256 they overflow, below 2^-12 they vanish",
    )


def _code(place: Place, around: Circumstances) -> Reason | None:
    return around.code.get(place.path)


def _mean_pooling(place: Place, around: Circumstances) -> Reason | None:
    if around.half != "float16":
        return None
    if is_a(place.layer, "GlobalAveragePooling1D") and around.structure.masked:
        return Reason(
            "mean-pooling", "adds up all unmasked positions in float16: the sum overflows"
        )
    if is_a(place.layer, "AveragePooling1D", "AveragePooling2D", "AveragePooling3D"):
        window = math.prod(place.layer.pool_size)
        if window >= LARGE_WINDOW:
            return Reason("mean-pooling", f"adds up {window} values in float16: the sum overflows")
    return None


def _activity_regularizer(place: Place, around: Circumstances) -> Reason | None:
    if around.half != "float16" or getattr(place.layer, "activity_regularizer", None) is None:
        return None
    return Reason(
        "activity-regularizer", "its penalty is a sum over all activations, which float16 overflows"
    )


def _attention_mask(place: Place, around: Circumstances) -> Reason | None:
    if around.half != "float16" or around.backend != "torch" or not is_a(place.layer, "Attention"):
        return None
    if around.stays_ours(place):
        return None
    graph = place.parent is not None and is_functional(place.parent.layer)
    if graph and not around.structure.masked and not _keras_internals.called_with_mask(place.layer):
        return None
    return Reason(
        "attention-mask",
        "masks with -65,504 in float16: on torch that and a negative score make -inf, and a row "
        "that is masked throughout becomes NaN",
    )


def _measured_overflow(place: Place, around: Circumstances) -> Reason | None:
    """By the largest value that went into or out of the layer or one of its parts."""
    if around.half != "float16" or around.measured is None or place.category == "container":
        return None
    parts = [] if place.category == "custom" else list(below(place))
    if place.path in around.measured.logits:  # what its softmax takes has a reason of its own
        parts = [part for part in parts if not is_a(part.layer, "Softmax")]
    layers = around.measured.layers
    found = [layers[part.path].largest for part in (place, *parts) if part.path in layers]
    seen = max((one for one in found if one is not None), default=0.0)
    if seen <= FLOAT16_MAX / HEADROOM:
        return None
    return Reason(
        "measured-overflow",
        f"reached {seen:.3g} on your data: float16 ends at 65,504 and training needs headroom",
    )


def _measured_underflow(place: Place, around: Circumstances) -> Reason | None:
    """Loss scaling lifts gradients; nothing lifts activations."""
    if around.half != "float16" or around.measured is None or place.category == "container":
        return None
    seen = around.measured.largest_output.get(place.path, 0.0)
    if not 0.0 < seen < FLOAT16_SMALLEST:
        return None
    return Reason(
        "measured-underflow",
        f"gave no more than {seen:.3g} on your data: below 6.1e-05 float16 loses digits, below "
        "3e-08 all",
    )


def _attention_logits(place: Place, around: Circumstances) -> Reason | None:
    if around.measured is None:
        return None
    logits = around.measured.logits.get(place.path)
    if logits is None:
        return None
    product, scaled = in_half(place, around.backend)
    largest = max(logits.product if product else 0.0, logits.scaled if scaled else 0.0)
    if around.half == "float16" and around.stays_ours(place):
        return None
    if around.half == "float16" and largest > FLOAT16_MAX / HEADROOM:
        return Reason(
            "attention-logits",
            f"its logits reached {largest:.3g} on your data: float16 ends at 65,504 and training "
            "needs headroom",
        )
    rounding = logits.scaled * get_format(around.half).epsilon / 2
    if scaled and rounding > LOGIT_ROUNDING:
        return Reason(
            "attention-logits",
            f"its logits reached {logits.scaled:.3g} on your data: {around.half} rounds them by up "
            f"to {rounding:.2g}, which changes a weight by {math.expm1(rounding):.0%}",
        )
    return None


def _no_kernel(place: Place, around: Circumstances) -> Reason | None:
    if around.half != "float16" or around.device.vendor != "CPU":
        return None
    if around.backend == "tensorflow" and is_a(place.layer, "MaxPooling3D"):
        return Reason("no-kernel", "TensorFlow has no float16 kernel for it on CPUs")
    attention = is_a(place.layer, "MultiHeadAttention", "GroupedQueryAttention")
    if around.backend == "jax" and attention:
        return Reason("no-kernel", "XLA has no float16 product with float32 sums on CPUs")
    return None


_FINDERS: tuple[Callable[[Place, Circumstances], Reason | None], ...] = (
    _raw_input,
    _foreign,
    _output,
    _unit_norm,
    _code,
    _mean_pooling,
    _activity_regularizer,
    _attention_logits,
    _attention_mask,
    _no_kernel,
    *gaps.FINDERS,
    _measured_overflow,
    _measured_underflow,
)

_BY_CATEGORY = {
    "product": Reason("product", "products in half precision, their sums in float32"),
    "pointwise": Reason("pointwise", "bound by memory, which half precision halves"),
    "custom": Reason("custom", "a layer of your own: computes in the dtype that Keras casts to"),
    "container": Reason("container", "holds other layers, which have policies of their own"),
    "foreign": Reason("autocast", "torch casts by its own lists inside an autocast region"),
}


def half_variables(layer: Any) -> str | None:
    """The half precision that a layer's weights are kept in; None for wider ones."""
    dtypes = (keras.backend.standardize_dtype(v.dtype) for v in layer.trainable_variables)
    return next((dtype for dtype in dtypes if dtype in ("float16", "bfloat16")), None)


def usual(place: Place) -> Reason:
    """Why a layer without a hazard computes in half precision."""
    kept = half_variables(place.layer) if place.category != "container" else None
    if kept is not None:
        return Reason(
            "half-variables",
            f"its weights are {kept} already, which no policy widens: train them with float32 "
            "masters (keras_mp.LossScaleOptimizer keeps them)",
        )
    if place.category in _BY_CATEGORY:
        return _BY_CATEGORY[place.category]
    return Reason("reduction", "its sums are done in float32 inside, or are short")
