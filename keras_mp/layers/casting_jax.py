"""Casts on jax: made again for the backward pass, not kept, by ``jax.checkpoint`` with a policy."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from keras_mp import _keras_internals

# Operations that put numbers elsewhere and leave them what they are: what they are made of serves
# as well, and is mostly kept anyway.
_MOVES = ("reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "copy")
# Parts of a weight, as of an LSTM's for its four gates. Part of another value may be all that is
# kept of it.
_PARTS = ("split", "slice")


def copies_not_kept(layer: Any, function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)``, of which the backward pass keeps no cast of the layer's weights.

    Nor a wider copy of a narrower value, nor one in another order. All else is kept as it would be,
    so nothing that costs time is computed twice.

    Args:
        layer: Its variables are those that the function reads and assigns to.
        function: Part of the layer's call.
        args: Arrays, or lists of them.
    """
    weights = [_keras_internals.stored_value(v) for v in layer.variables]
    if not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((args, weights))):
        return function(*args)  # nothing is differentiated
    shapes = {tuple(w.shape) for w in weights}
    state = layer.non_trainable_variables

    def kept(primitive: Any, *values: Any, **params: Any) -> bool:
        if primitive.name in _MOVES:
            return False
        if primitive.name not in ("convert_element_type", *_PARTS):
            return True
        if tuple(values[0].shape) in shapes:
            return False
        made = params.get("new_dtype", values[0].dtype)
        return np.dtype(made).itemsize <= values[0].dtype.itemsize

    def computed(*args: Any) -> tuple[Any, list[Any]]:
        before = [_keras_internals.stored_value(v) for v in state]
        result = function(*args)
        after = [_keras_internals.stored_value(v) for v in state]
        moved = [new if new is not old else None for old, new in zip(before, after, strict=True)]
        return result, moved

    result, moved = jax.checkpoint(computed, policy=kept)(*args)
    # What the function assigned means nothing out here.
    for variable, value in zip(state, moved, strict=True):
        if value is not None:
            variable.assign(value)
    return result
