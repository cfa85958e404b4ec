"""How much a layer has to do: its multiplications, and the widths of its matrices.

Counted from the shapes that a layer was built with; nothing is run. Lengths that are not known
(sequences, images of any size) count as ``LENGTH``.
"""

import math
from dataclasses import dataclass
from typing import Any

from keras_mp.policies.categories import is_a
from keras_mp.policies.structure import Place, below

LENGTH = 128
_ATTENTION = ("MultiHeadAttention", "GroupedQueryAttention")


@dataclass(frozen=True)
class Work:
    """One layer's work for one sample.

    Attributes:
        products: Multiplications in products of matrices; 0 for layers without.
        widths: Argument or attribute name -> a size that becomes a side of a matrix, such as
            {"units": 1001}.
    """

    products: int
    widths: tuple[tuple[str, int], ...] = ()


def work_of(place: Place) -> Work:
    """The work of one layer, its parts left out, if it holds any.

    A layer that is not known, or whose shapes Keras does not tell, has none.
    """
    layer = place.layer
    shape = _input_shape(layer)
    if is_a(layer, *_ATTENTION):
        return Work(_attention(place), _head_widths(layer))
    if place.parent is not None and is_a(place.parent.layer, *_ATTENTION):
        return Work(0)  # counted with the whole, which knows its lengths
    if is_a(layer, "Embedding"):
        return Work(0, (("output_dim", layer.output_dim),))
    if is_a(layer, "LSTMCell", "GRUCell", "SimpleRNNCell"):
        weights = math.prod(layer.kernel.shape) + math.prod(layer.recurrent_kernel.shape)
        return Work(weights * _steps(place), (("units", layer.units),))
    if shape is None:
        return Work(0)
    if is_a(layer, "Dense"):
        return Work(math.prod(shape[1:]) * layer.units, (("units", layer.units),))
    if is_a(layer, "EinsumDense"):
        # Every input value is multiplied by all that the kernel adds to its axes.
        return Work(math.prod(shape[1:]) * _added(layer))
    if is_a(layer, "BaseSeparableConv"):
        kernels = layer.depthwise_kernel, layer.pointwise_kernel
        weights = sum(math.prod(kernel.shape) for kernel in kernels)
        return Work(_positions(layer, shape) * weights, (("filters", layer.filters),))
    if is_a(layer, "BaseConvTranspose"):
        positions = math.prod(_spatial(layer, shape))
        return Work(positions * math.prod(layer.kernel.shape), (("filters", layer.filters),))
    if is_a(layer, "BaseConv"):
        kernel = math.prod(layer.kernel.shape)
        return Work(_positions(layer, shape) * kernel, (("filters", layer.filters),))
    if place.category == "custom":
        # At least once through each matrix.
        return Work(sum(math.prod(v.shape) for v in layer.trainable_variables if v.ndim > 1))
    return Work(0)


def with_parts(place: Place) -> Work:
    """The work of a layer and of everything it holds."""
    parts = [work_of(part) for part in below(place)]
    own = work_of(place)
    if place.children and place.category == "custom":
        own = Work(0)  # its variables are its parts'
    return Work(own.products + sum(part.products for part in parts), own.widths)


def _input_shape(layer: Any) -> tuple[int, ...] | None:
    config = layer.get_build_config() or {}
    shape = config.get("input_shape")
    if shape is None or not shape or isinstance(shape, dict) or not _is_shape(shape):
        return None
    return _shape(shape)


def _is_shape(shape: Any) -> bool:
    return all(size is None or isinstance(size, int) for size in shape)


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(LENGTH if size is None else int(size) for size in shape)


def _added(layer: Any) -> int:
    """The product of the kernel's axes that the input has not."""
    taken, kernel = layer.equation.replace("...", "").split("->")[0].split(",")
    sizes = zip(kernel, layer.kernel.shape, strict=True)
    return math.prod(size for axis, size in sizes if axis not in taken)


def _spatial(layer: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    first = layer.data_format == "channels_first"
    return shape[2:] if first else shape[1:-1]


def _positions(layer: Any, shape: tuple[int, ...]) -> int:
    return math.prod(_spatial(layer, _shape(layer.compute_output_shape(shape))))


def _steps(place: Place) -> int:
    parent = place.parent
    shape = _input_shape(parent.layer) if parent is not None else None
    return shape[1] if shape is not None and len(shape) > 1 else LENGTH


def _attention(place: Place) -> int:
    """The projections; query by key; their weights by the values."""
    layer = place.layer
    shapes = (layer.get_build_config() or {}).get("shapes_dict") or {}
    query = _length(shapes.get("query_shape"))
    key = _length(shapes.get("key_shape") or shapes.get("value_shape"))
    products = 0
    for part in place.children:
        if is_a(part.layer, "EinsumDense"):
            length = query if part.layer.name in ("query", "attention_output") else key
            products += math.prod(part.layer.kernel.shape) * length
    heads = getattr(layer, "num_heads", None) or getattr(layer, "num_query_heads", 1)
    width = getattr(layer, "key_dim", None) or getattr(layer, "head_dim", 1)
    return products + 2 * int(heads or 1) * int(width or 1) * query * key


def _length(shape: Any) -> int:
    return LENGTH if shape is None else math.prod(_shape(shape)[1:-1])


def _head_widths(layer: Any) -> tuple[tuple[str, int], ...]:
    names = ("key_dim", "value_dim", "head_dim")
    found = {name: getattr(layer, name, None) for name in names}
    return tuple((name, int(size)) for name, size in found.items() if isinstance(size, int))
