"""Which layers the code of a model calls, in which order, and what they hand one another.

Only functional models have a graph. Other code is traced once on shapes: nothing is computed, and
no variable changes.
"""

import inspect
import itertools
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import keras

from keras_mp import _keras_internals

# Samples in a trace, and how many guesses at a model's inputs are tried.
SAMPLES, TRIES = 2, 48
# Arguments by position and by name: tensors, or their shapes.
Inputs = tuple[list[Any], dict[str, Any]]
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
    for args, kwargs in guessed_inputs(model):
        calls.clear()
        try:
            with (
                in_float32(policies),
                _keras_internals.observed_calls(observed, see),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")  # the user may have made errors of them
                model.compute_output_spec(*args, **kwargs)
        except Exception:  # the user's code on other inputs than it is for: of any kind
            continue
        if calls and calls[-1].layer is model:
            return calls
    return None


def guessed_inputs(layer: Any) -> Iterator[Inputs]:
    """Symbolic arguments that a built layer or model may take, the likeliest first.

    Keras notes the shapes that a ``build`` was given, for most models the first argument's alone,
    and no dtypes. Further arguments may have the same shape, or one that a layer inside was built
    with; ids, edges and lengths are integers.
    """
    tried = itertools.chain.from_iterable(
        _of_dtypes(shapes, size) for shapes in _shapes(layer) for size in (SAMPLES, None)
    )
    yield from itertools.islice(tried, TRIES)


def _shapes(layer: Any) -> Iterator[Inputs]:
    """What the arguments' shapes may be: positional and named."""
    config = layer.get_build_config() or {}
    if "shapes_dict" in config:
        yield [], {k.removesuffix("_shape"): v for k, v in config["shapes_dict"].items()}
    elif config.get("input_shape") is not None:
        first = config["input_shape"]
        given = inspect.signature(layer.call).parameters.values()
        needed = [p for p in given if p.default is p.empty and p.kind in _POSITIONAL]
        configs = [child.get_build_config() or {} for child in _keras_internals.child_layers(layer)]
        inside = dict.fromkeys(_leaves([config.values() for config in configs]))
        for rest in itertools.product([first, *inside], repeat=max(len(needed) - 1, 0)):
            yield [first, *rest], {}


def _of_dtypes(shapes: Inputs, samples: int | None) -> Iterator[Inputs]:
    """All of them floats, all integers, then a mixture.

    ``samples``: the size of the first axis; None for the one that the layer was built with.
    """
    count = len(list(_leaves(shapes)))
    mixed = itertools.product(("float32", "int32"), repeat=min(count, 5))
    kinds = [("float32",) * count, ("int32",) * count]
    for dtypes in [*kinds, *(kind for kind in mixed if count > 1 and len(set(kind)) > 1)]:
        dtype = iter(dtypes + ("float32",) * count)
        yield _symbolic(list(shapes[0]), dtype, samples), _symbolic(shapes[1], dtype, samples)


def _symbolic(shape: Any, dtype: Iterator[str], samples: int | None) -> Any:
    if isinstance(shape, dict):
        return {key: _symbolic(inner, dtype, samples) for key, inner in shape.items()}
    if not _is_shape(shape):  # a structure of them, or an argument that was not given
        inside = isinstance(shape, list | tuple)
        return [_symbolic(inner, dtype, samples) for inner in shape] if inside else shape
    return keras.KerasTensor((samples or shape[0] or SAMPLES, *shape[1:]), next(dtype))


def _leaves(shapes: Any) -> Iterator[tuple[int | None, ...]]:
    """The shapes in a structure of shapes."""
    if _is_shape(shapes):
        yield tuple(shapes)
    elif isinstance(shapes, dict):
        yield from _leaves(shapes.values())
    elif isinstance(shapes, Iterable) and not isinstance(shapes, str):
        for inner in shapes:
            yield from _leaves(inner)


def _is_shape(shape: Any) -> bool:
    sizes = isinstance(shape, tuple | list) and bool(shape)
    return sizes and all(size is None or isinstance(size, int) for size in shape)


def _tensors(structure: Any) -> Iterator[Any]:
    return filter(keras.ops.is_tensor, keras.tree.flatten(structure))
