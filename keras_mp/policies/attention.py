"""How large an attention layer's logits are, and in which dtype they are computed.

A logit is a sum over the head's width, so it outgrows the queries and keys that it is made of. With
fused attention no layer shows it: it is computed here from the projections.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras import ops

from keras_mp.policies.categories import is_a
from keras_mp.policies.structure import Place


@dataclass(frozen=True)
class Logits:
    """The largest magnitudes on a batch.

    Attributes:
        product: Of query times key, before it is scaled.
        scaled: Of what goes into the softmax.
    """

    product: float
    scaled: float

    def larger_of(self, other: "Logits | None") -> "Logits":
        if other is None:
            return self
        return Logits(max(self.product, other.product), max(self.scaled, other.scaled))


def is_fused(layer: Any) -> bool:
    """Whether Keras' attention goes to ``keras.ops.dot_product_attention``: by its condition."""
    shapes = (layer.get_build_config() or {}).get("shapes_dict") or {}
    flat = len(shapes.get("query_shape") or (0, 0, 0)) == 3
    return flat and not layer.get_config().get("dropout")


def in_half(place: Place, backend: str) -> tuple[bool, bool]:
    """Whether the layer's (products before scaling, logits) are half-precision numbers.

    torch and jax compute fused attention's logits in float32, whatever the inputs; TensorFlow
    rounds the unscaled product. Without fusing, multi-head attention scales the query first.
    """
    if is_a(place.layer, "MultiHeadAttention", "GroupedQueryAttention"):
        if is_fused(place.layer):
            return backend == "tensorflow", backend == "tensorflow"
        return False, True
    dot = is_a(place.layer, "Attention") and getattr(place.layer, "score_mode", "") == "dot"
    return dot, dot


def logits_of(place: Place, taken: Any, outputs: Mapping[int, Any]) -> Logits | None:
    """The logits of a call that is just through, or None for other layers.

    Args:
        taken: (args, kwargs) of the call.
        outputs: id of a layer -> what it gave last: an attention layer's projections among them.
    """
    layer = place.layer
    if is_a(layer, "MultiHeadAttention", "GroupedQueryAttention"):
        by_name = {part.layer.name: outputs.get(id(part.layer)) for part in place.children}
        query, key = by_name.get("query"), by_name.get("key")
        if query is None or key is None or len(query.shape) != 4:
            return None
        scale = 1.0 / math.sqrt(query.shape[-1])
        if query.shape[2] != key.shape[2]:  # grouped: several query heads a key head
            key = ops.repeat(key, query.shape[2] // key.shape[2], axis=2)
        product = _largest(ops.swapaxes(query, 1, 2), ops.swapaxes(key, 1, 2))
        return Logits(product, product * scale)
    if is_a(layer, "Attention") and getattr(layer, "score_mode", "") == "dot":
        args, kwargs = taken
        tensors = list(args[0] if args else kwargs["inputs"])
        query, key = tensors[0], tensors[2] if len(tensors) > 2 else tensors[1]
        product = _largest(query, key)
        learnt = getattr(layer, "scale", None)
        factor = 1.0 if learnt is None else abs(float(ops.convert_to_numpy(learnt)))
        return Logits(product, product * factor)
    return None


def _largest(query: Any, key: Any) -> float:
    """Of all products of a query and a key; sample by sample, as there may be many."""
    found = 0.0
    for one, other in zip(ops.unstack(query), ops.unstack(key), strict=True):
        product = ops.matmul(one, ops.swapaxes(other, -1, -2))
        largest = float(ops.convert_to_numpy(ops.max(ops.abs(product))))
        found = largest if math.isnan(largest) else max(found, largest)
    return found
