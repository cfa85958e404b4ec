"""Where a user's own code joins what its layers give, and they are of two dtypes: TensorFlow alone.

torch and jax promote ``float16 + float32``, and so do the functions of ``keras.ops``; Python's
operators on TensorFlow's tensors raise. Whether the code of a layer or model does so is tried: it
is traced once with the planned policies, and nothing is computed.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras

from keras_mp import _keras_internals
from keras_mp.policies.own_code import takes_code
from keras_mp.policies.precision_plan import fitting
from keras_mp.policies.reason import Reason
from keras_mp.policies.structure import Place, Structure, below, is_functional
from keras_mp.policies.tracing import Inputs, guessed_inputs
from keras_mp.policies.work import with_parts

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
    well: set[Any] = set()
    # Innermost first: what a layer needs may settle what the one around it needs.
    for place in reversed(structure.places):
        inside = list(below(place))
        dtypes = {_compute(planned, p) for p in (place, *inside)}
        if not _own_code(place) or dtypes == {"float32"}:
            continue
        kind = _kind(place, planned)
        given = None if kind in well else _what_fails(place, planned)
        if given is None:
            well.add(kind)
            continue
        sentence = f"the code of {place.path or 'the model'} joins what its layers give"
        if not place.children:
            sentence = "its code joins what it is given and what is float32"
        reason = Reason("one-dtype", f"{sentence}: TensorFlow wants one dtype")
        free = [p for p in (place, *inside) if codes[p.path] != "rule"]
        rounding = [p.path for p in free if p is not place and codes[p.path] in ROUNDING]
        tried = planned | dict.fromkeys(rounding, planned[place.path])
        if not rounding or not _runs(place, tried, given):
            tried = _least(place, planned, {p.path for p in free}, given)
        for path, policy in tried.items():
            if policy != planned[path]:
                changed[path] = policy, reason
        planned = tried
    return changed


def _kind(place: Place, policies: Mapping[str, str]) -> Any:
    """What two layers have in common of which one does what the other does."""
    layers = tuple((type(p.layer), policies[p.path]) for p in (place, *below(place)))
    shapes = tuple(tuple(variable.shape) for variable in place.layer.variables)
    given = tuple(getattr(place.layer, name, None) for name in ("function", "activation"))
    return layers, shapes, given, str(place.layer.get_build_config())


def _what_fails(place: Place, planned: Mapping[str, str]) -> Inputs | None:
    """Inputs with which a layer runs in float32 and not as planned; None if it runs, or never."""
    for given in guessed_inputs(place.layer):
        if _runs(place, planned, given):
            return None
        if _runs(place, dict.fromkeys(planned, "float32"), given):
            return given
    return None


def _least(
    place: Place, planned: Mapping[str, str], free: Collection[str], given: Inputs
) -> dict[str, str]:
    """The plan with as little more of the layer in float32 as lets it run, nearly.

    From all of it in float32 the parts go back by halves, the largest first, down to eighths.
    """
    parts = [[child, *below(child)] for child in place.children]
    parts.sort(key=lambda part: -with_parts(part[0]).products)
    wide = [[p.path for p in part if p.path in free] for part in [*parts, [place]]]
    size = least = max(len(wide) // 8, 1)
    while size * 2 < len(wide):
        size *= 2
    while size >= least:
        for start in range(0, len(wide), size):
            fewer = wide[:start] + [[] for _ in wide[start : start + size]] + wide[start + size :]
            if _runs(place, _widened(planned, fewer), given):
                wide = fewer
        size //= 2
    return _widened(planned, wide)


def _widened(planned: Mapping[str, str], wide: list[list[str]]) -> dict[str, str]:
    return {**planned, **{path: "float32" for part in wide for path in part}}


def _own_code(place: Place) -> bool:
    if hasattr(place.layer, "make_predict_function"):
        return not is_functional(place.layer)
    return place.category == "custom" or takes_code(place.layer)


def _compute(policies: Mapping[str, str], place: Place) -> str:
    return str(keras.dtype_policies.get(policies[place.path]).compute_dtype)


def _runs(place: Place, policies: Mapping[str, str], given: Inputs) -> bool:
    import tensorflow as tf

    def called(args: Any, kwargs: Any) -> Any:
        """Calls, and the losses that they added to a loss in float32, as Keras does in training."""
        results = []
        for training in (False, True):
            outputs = place.layer(*args, **kwargs, training=training)
            total = keras.ops.sum([keras.ops.zeros((), "float32"), *place.layer.losses])
            results.append((outputs, total))
        return results

    with _policies((place, *below(place)), policies), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user may have made errors of them
        try:
            specs = keras.tree.map_structure(_spec, given)
            tf.function(called).get_concrete_function(*specs)
            return True
        except Exception:  # two dtypes; or it wants other inputs than we know of
            return False


def _spec(tensor: Any) -> Any:
    import tensorflow as tf

    return None if tensor is None else tf.TensorSpec(tensor.shape, tensor.dtype)


@contextmanager
def _policies(places: Any, policies: Mapping[str, str]) -> Iterator[None]:
    before = [(place.layer, place.layer.dtype_policy) for place in places]
    try:
        for place in places:
            if place.layer.quantization_mode is None:
                _keras_internals.put_policy(place.layer, fitting(place.layer, policies[place.path]))
        yield
    finally:
        for layer, policy in before:
            _keras_internals.put_policy(layer, policy)
