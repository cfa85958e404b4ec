"""Layers of a user's model that become ones of ours, and Keras' own again."""

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_mp import _keras_internals

OURS, KERAS = "keras_mp.layers.", "keras.layers."
HEADS = f"{OURS}heads."
_PRODUCTS = f"{OURS}products"
# What Keras' own does in half precision that ours does not.
_NORM = "Keras' own keeps float32 copies of its inputs for the backward pass"
_RECURRENT = "Keras' own casts its weights anew at every time step"
_PRODUCT = "Keras' own keeps a cast copy of its weights for the backward pass"
_ATTENTION = "Keras' own overflows in float16 where its logits pass 65,504 or a row is masked"
_RAW = "Keras' own casts raw numbers before it makes them small"
_FOREIGN = "Keras' own does not cast the module's weights with its inputs, which raises"
_WHY = {
    "keras_mp.layers.attention": _ATTENTION,
    "keras_mp.layers.preprocessing": _RAW,
    "keras_mp.layers.batch_normalization": _NORM,
    "keras_mp.layers.foreign": _FOREIGN,
    "keras_mp.layers.normalizations": _NORM,
    _PRODUCTS: _PRODUCT,
}


def better_class(layer: Any) -> str | None:
    """The name of ours that does better in half precision than this layer's class; None if none."""
    from keras_mp.layers import replacement

    made = replacement(layer)
    return None if made is None else OURS + made.__name__


def gives_float32(layer: Any) -> bool:
    """Whether a layer gives float32 though it computes in half precision: our head."""
    return class_name(layer).startswith(HEADS)


def is_quiet(name: str) -> bool:
    """Whether ours computes what Keras' own does, bit for bit, and only keeps less: products. In
    float32 they keep a neighbour's half-precision values, not their float32 copy."""
    return _module(name) == _PRODUCTS


def costs_time(name: str) -> bool:
    """Whether ours pays for fewer bytes with time: products cast each weight again for its
    gradient; so do recurrent layers on jax, where Keras' own cast once a call, too."""
    return _module(name) in ((_PRODUCTS, f"{OURS}recurrent") if _on_jax() else (_PRODUCTS,))


def why(name: str) -> str:
    """What the class of ours is better in, as a clause."""
    module = _module(name)
    return "" if module is None else _WHY.get(module, _PRODUCT if _on_jax() else _RECURRENT)


def _on_jax() -> bool:
    return bool(keras.backend.backend() == "jax")


def suits_float32(name: str | None) -> bool:
    """Whether ours is better in a float32 layer too, where the layers around it are in half
    precision: those of products keep their input as it came."""
    return name is not None and _module(name) == _PRODUCTS


def put_class(layer: Any, name: str) -> None:
    """Make a layer one of the class of that name. Weights, policy and graph stay.

    Raises:
        ValueError: ``name`` is no class that this layer can become.
    """
    if class_name(layer) == name:
        return
    if name.startswith(OURS):
        made = _ours(name)
        fits = made is not None and type(layer) in made.__mro__
    else:
        made = getattr(keras.layers, name.removeprefix(KERAS), None)
        fits = name.startswith(KERAS) and made in type(layer).__mro__
    if made is None or not fits:
        raise ValueError(
            "A plan's row asks for a class that its layer cannot become. Expected one of "
            f"{OURS}* that is a subclass of its own, or None. "
            f"Received: replace={name!r} for layer={layer!r}"
        )
    _keras_internals.become(layer, made)


def class_name(layer: Any) -> str:
    """Where the user finds the layer's class: "keras.layers.Dense", "keras_mp.layers.Dense"."""
    made = type(layer)
    if made.__module__.startswith("keras.src.layers."):
        return KERAS + made.__name__
    if made.__module__ == "keras_mp.layers.heads":
        return HEADS + made.__name__
    if made.__module__.startswith(OURS):
        return OURS + made.__name__
    return f"{made.__module__}.{made.__name__}"


def _module(name: str) -> str | None:
    """Where a class of ours stands; None where the name is none of ours."""
    made = _ours(name) if name.startswith(OURS) else None
    return None if made is None else made.__module__


def _ours(name: str) -> type | None:
    found: Any = importlib.import_module("keras_mp.layers")
    for part in name.removeprefix(OURS).split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


@contextmanager
def as_keras_own(layers: Iterable[Any]) -> Iterator[None]:
    """Layers that a plan made ours are Keras' own while the block lasts, so that plain Keras can
    read a file of them. (The plan in the file makes them ours again.)"""
    changed = [layer for layer in layers if class_name(layer).startswith(OURS)]
    ours = [type(layer) for layer in changed]
    try:
        for layer in changed:
            put_class(layer, KERAS + type(layer).__name__)
        yield
    finally:
        for layer, made in zip(changed, ours, strict=True):
            _keras_internals.become(layer, made)
