"""Layers of a user's model that become ones of ours, and Keras' own again."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_mp import _keras_internals

OURS, KERAS = "keras_mp.layers.", "keras.layers."
# What Keras' own does in half precision that ours does not.
_WHY = {
    "BatchNormalization": "Keras' own keeps float32 copies of its inputs for the backward pass",
    "Dense": "a large part of the products: in half precision, given to the activation in float32",
    "RNN": "Keras' own casts its weights anew at every time step",
}
_RECURRENT = ("RNN", "SimpleRNN", "LSTM", "GRU")


def better_class(layer: Any) -> str | None:
    """The name of ours that does better in half precision than this layer's class; None if none."""
    from keras_mp.layers import replacement

    made = replacement(layer)
    return None if made is None else OURS + made.__name__


def gives_float32(layer: Any) -> bool:
    """Whether a layer gives float32 though it computes in half precision: our ``Dense``."""
    return type(layer).__name__ == "Dense" and _module(layer) + "." == OURS


def why(name: str) -> str:
    """What the class of ours is better in, as a clause."""
    kind = name.rpartition(".")[2]
    kind = "RNN" if kind in _RECURRENT else kind
    return _WHY.get(kind, "in half precision ours measures better than Keras' own")


def put_class(layer: Any, name: str) -> None:
    """Make a layer one of the class of that name. Weights, policy and graph stay.

    Raises:
        ValueError: ``name`` is no class that this layer can become.
    """
    if f"{_module(layer)}.{type(layer).__name__}" == name:
        return
    if name.startswith(OURS):
        from keras_mp import layers

        made = getattr(layers, name.removeprefix(OURS), None)
        if isinstance(made, type) and type(layer) in made.__mro__:
            _keras_internals.become(layer, made)
            return
    elif name.startswith(KERAS):
        made = getattr(keras.layers, name.removeprefix(KERAS), None)
        if made is not None and made in type(layer).__mro__:
            _keras_internals.become(layer, made)
            return
    raise ValueError(
        "A plan's row asks for a class that its layer cannot become. Expected "
        f"{better_class(layer)!r} or None. Received: replace={name!r} for layer={layer!r}"
    )


def _module(layer: Any) -> str:
    """Where the user finds the layer's class: "keras.layers", "keras_mp.layers", or its module."""
    module = type(layer).__module__
    if module.startswith("keras_mp.layers."):
        return OURS.rstrip(".")
    return KERAS.rstrip(".") if module.startswith("keras.src.layers.") else module


@contextmanager
def as_keras_own(layers: Iterable[Any]) -> Iterator[None]:
    """Layers that a plan made ours are Keras' own while the block lasts, so that plain Keras can
    read a file of them. (The plan in the file makes them ours again.)"""
    changed = [layer for layer in layers if _module(layer) + "." == OURS]
    ours = [type(layer) for layer in changed]
    try:
        for layer in changed:
            put_class(layer, KERAS + type(layer).__name__)
        yield
    finally:
        for layer, made in zip(changed, ours, strict=True):
            _keras_internals.become(layer, made)
