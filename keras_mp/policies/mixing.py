"""Where a user's own code joins what its layers give, and they are of two dtypes: TensorFlow alone.

torch and jax promote ``float16 + float32``, and so do the functions of ``keras.ops``; Python's
operators on TensorFlow's tensors raise. Whether the code of a layer or model does so is tried: it
is traced once with the planned policies, and nothing is computed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras

from keras_mp import _keras_internals
from keras_mp.policies.objects import policy_named
from keras_mp.policies.own_code import adds_loss
from keras_mp.policies.reason import Reason
from keras_mp.policies.structure import Place, Structure, below, is_functional

# Reasons for float32 that are about rounding alone: half precision is right too, less exactly.
ROUNDING = ("output", "output-activation")


def one_dtype(
    structure: Structure, policies: Mapping[str, str], codes: Mapping[str, str]
) -> dict[str, tuple[str, Reason]]:
    """Path -> (policy, reason), for layers that must change so that the code around them runs.

    Args:
        policies, codes: Path -> what is planned, and the reason's code.
    """
    changed: dict[str, tuple[str, Reason]] = {}
    if keras.backend.backend() != "tensorflow":
        return changed
    planned = dict(policies)
    # Innermost first: what a layer needs may settle what the one around it needs.
    for place in reversed(structure.places):
        inside = list(below(place))
        dtypes = {_compute(planned, p) for p in (place, *inside)}
        if not _own_code(place) or (len(dtypes) < 2 and not adds_loss(place.layer)):
            continue
        if not _runs(place, dict.fromkeys(planned, "float32")) or _runs(place, planned):
            continue
        sentence = f"the code of {place.path or 'the model'} joins what its layers give"
        reason = Reason("one-dtype", f"{sentence}: TensorFlow wants one dtype")
        inside = [p for p in inside if codes[p.path] != "rule"]
        rounding = [p.path for p in inside if codes[p.path] in ROUNDING]
        tried = planned | dict.fromkeys(rounding, planned[place.path])
        if not rounding or not _runs(place, tried):
            own = [place] if codes[place.path] != "rule" else []
            tried = planned | {p.path: "float32" for p in (*own, *inside)}
        for path, policy in tried.items():
            if policy != planned[path]:
                changed[path] = policy, reason
        planned = tried
    return changed


def _own_code(place: Place) -> bool:
    if hasattr(place.layer, "make_predict_function"):
        return not is_functional(place.layer)
    return place.category == "custom"


def _compute(policies: Mapping[str, str], place: Place) -> str:
    return str(keras.dtype_policies.get(policies[place.path]).compute_dtype)


def _runs(place: Place, policies: Mapping[str, str]) -> bool:
    import tensorflow as tf

    shape = (place.layer.get_build_config() or {}).get("input_shape")
    if not isinstance(shape, tuple | list) or not all(isinstance(n, int | None) for n in shape):
        return False
    with _policies((place, *below(place)), policies):
        for dtype in (tf.float32, tf.int32):
            try:
                function = tf.function(lambda x: _called(place.layer, x))
                function.get_concrete_function(tf.TensorSpec(shape, dtype))
                return True
            except Exception:  # two dtypes; or it wants other inputs than we know of
                continue
    return False


def _called(layer: Any, inputs: Any) -> Any:
    """A call, and the losses that it added to a loss in float32, as Keras does in training."""
    outputs = layer(inputs, training=False)
    return outputs, keras.ops.sum([keras.ops.zeros((), "float32"), *layer.losses])


@contextmanager
def _policies(places: Any, policies: Mapping[str, str]) -> Iterator[None]:
    before = [(place.layer, place.layer.dtype_policy) for place in places]
    try:
        for place in places:
            if place.layer.quantization_mode is None:
                _keras_internals.put_policy(place.layer, policy_named(policies[place.path]))
        yield
    finally:
        for layer, policy in before:
            _keras_internals.put_policy(layer, policy)
