"""Which layers the code of a model calls, in which order, and what they hand one another.

Only functional models have a graph. Other code is traced once on shapes: nothing is computed, and
no variable changes.
"""

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import keras

from keras_mp import _keras_internals

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Call:
    """One call of a layer: what it took and gave, as symbolic tensors of the backend."""

    layer: Any
    takes: list[Any]
    gives: list[Any]


def traced_calls(model: Any, layers: Iterable[Any]) -> list[Call] | None:
    """The calls of these layers when the model is called, inner ones before what holds them.

    Args:
        model: A built model. It stays as it was.
        layers: Those to look at, the model itself among them.

    Returns:
        None where the model cannot be traced: what it takes is not known, or its ``call`` is not
        made for shapes alone.
    """
    from keras_mp.numerics.watched import in_float32

    calls: list[Call] = []

    def see(layer: Any, taken: Any, given: Any) -> None:
        calls.append(Call(layer, list(_tensors(taken)), list(_tensors(given))))

    observed = list(layers)
    # In one dtype, so that no cast stands between the layers.
    policies = [layer for layer in observed if layer.quantization_mode is None]
    for dtype in ("float32", "int32"):
        given = _inputs(model, dtype)
        if given is None:
            return None
        calls.clear()
        try:
            with in_float32(policies), _keras_internals.observed_calls(observed, see):
                model.compute_output_spec(*given[0], **given[1])
        except Exception:  # the user's code on other inputs than it is for: of any kind
            continue
        if calls and calls[-1].layer is model:
            return calls
    return None


def _inputs(model: Any, dtype: str) -> tuple[list[Any], dict[str, Any]] | None:
    """Symbolic arguments of the shapes that the model was built with.

    Keras notes the first argument's alone: further ones are tried with the same shape.
    """
    config = model.get_build_config() or {}
    try:
        if "input_shape" in config:
            given = inspect.signature(model.call).parameters.values()
            needed = [p for p in given if p.default is p.empty and p.kind in _POSITIONAL]
            shapes = [config["input_shape"]] * max(len(needed), 1)
            return [_symbolic(shape, dtype) for shape in shapes], {}
        shapes = config["shapes_dict"]
        return [], {k.removesuffix("_shape"): _symbolic(shapes[k], dtype) for k in shapes}
    except (KeyError, TypeError):
        return None


def _symbolic(shape: Any, dtype: str) -> Any:
    if isinstance(shape, dict):
        return {key: _symbolic(inner, dtype) for key, inner in shape.items()}
    if not all(size is None or isinstance(size, int) for size in shape):
        return type(shape)(_symbolic(inner, dtype) for inner in shape)
    return keras.KerasTensor((2, *shape[1:]), dtype)


def _tensors(structure: Any) -> Iterator[Any]:
    return filter(keras.ops.is_tensor, keras.tree.flatten(structure))
