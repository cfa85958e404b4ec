"""What of a model is watched during a probe, and how it is made to compute in float32 for once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_mp import _keras_internals
from keras_mp.policies.categories import is_a
from keras_mp.policies.objects import policy_named
from keras_mp.policies.structure import Place, Structure, below

OUTPUTS = "(outputs)"


def watched(structure: Structure) -> dict[Any, str]:
    """Layer or operation -> its path, of all whose outputs can be read after a forward pass.

    Parts of recurrent and time-distributed layers are left out: some backends call them inside a
    loop of their own, where values are not to be had. Their layer's output is seen.
    """
    inside: set[int] = set()
    for place in structure.places:
        if is_a(place.layer, "RNN", "TimeDistributed"):
            inside |= {id(part.layer) for part in below(place)}
    found: dict[Any, str] = {}
    for place in structure.places:
        if id(place.layer) not in inside:
            found[_ById(place.layer)] = place.path or OUTPUTS
            for operation, path in _functions(place):
                found[_ById(operation)] = path
    return found


def _functions(place: Place) -> Iterator[tuple[Any, str]]:
    """The ``keras.ops`` calls between the layers of a functional model, with their paths."""
    if not isinstance(place.layer, _keras_internals.functional_class()):
        return
    for operation in getattr(place.layer, "operations", ()):
        if not isinstance(operation, keras.layers.Layer):
            yield operation, f"{place.path}/{operation.name}".lstrip("/")


def owners(structure: Structure) -> dict[int, str]:
    """id of a trainable variable -> path of the innermost layer that has it."""
    found: dict[int, str] = {}
    for place in structure.places:  # parents come before what they hold
        found.update((id(v), place.path or OUTPUTS) for v in place.layer.trainable_variables)
    return found


def random_layers(structure: Structure) -> tuple[list[Any], bool]:
    """Layers that draw random numbers in their compute dtype, and whether all can be made to agree.

    Backends draw other numbers in float16 than in float32 from the same seed. A layer without
    weights (Dropout, noise) can draw in float32 while its neighbours compute in float16; where
    others draw (recurrent dropout), a float16 and a float32 pass are two different passes.

    Returns:
        (the layers without weights that draw, whether there are no others).
    """
    drawing = [
        place
        for place in structure.places
        if any(isinstance(v, keras.random.SeedGenerator) for v in vars(place.layer).values())
    ]
    free = [place.layer for place in drawing if not place.layer.trainable_variables]
    others = [
        place
        for place in drawing
        if place.layer.trainable_variables
        and place.category != "container"
        and not _draws_nothing(place.layer)
    ]
    return free, not others


def _draws_nothing(layer: Any) -> bool:
    """A layer that holds a seed for a dropout that it does not have."""
    rates = [getattr(layer, name, None) for name in ("dropout", "recurrent_dropout", "rate")]
    known = [rate for rate in rates if isinstance(rate, int | float)]
    return bool(known) and not any(known)


class _ById:
    """A key that is an object itself: layers of the user's may define equality."""

    def __init__(self, it: Any):
        self.it = it

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.it is self.it


class Outputs:
    """The outputs of a forward pass in the order of the calls: what ``observed_calls`` shows to.

    A tensor that only passes through (a container's output is its last layer's) counts once.

    Attributes:
        paths, tensors: One entry a tensor.
        unseen: Paths of layers whose values could not be read.
    """

    def __init__(self, things: dict[Any, str], readable: Callable[[Any], bool]):
        self._paths = {id(key.it): path for key, path in things.items()}
        self._readable = readable
        self._known: set[int] = set()
        self.paths: list[str] = []
        self.tensors: list[Any] = []
        self.unseen: list[str] = []

    def ignore(self, data: Any) -> None:
        """These tensors are the batch's own: a layer that hands them on makes no new values."""
        self._inputs = [t for t in keras.tree.flatten(data) if t is not None]
        self._known |= {id(t) for t in self._inputs}

    def __call__(self, layer: Any, _inputs: Any, outputs: Any) -> Any:
        path = self._paths[id(layer)]
        return keras.tree.map_structure(lambda value: self._note(path, value), outputs)

    def _note(self, path: str, value: Any) -> Any:
        if not keras.ops.is_tensor(value) or id(value) in self._known:
            return value
        if not keras.backend.is_float_dtype(keras.backend.standardize_dtype(value.dtype)):
            return value
        if not self._readable(value):
            if path not in self.unseen:
                self.unseen.append(path)
            return value
        value = self.replaced(value)
        self._known.add(id(value))
        self.paths.append(path)
        self.tensors.append(value)
        return value

    def replaced(self, value: Any) -> Any:
        """What takes an output's place in the pass; the output itself."""
        return value


@contextmanager
def in_float32(layers: list[Any]) -> Iterator[None]:
    """All these layers compute in float32 while the block lasts; their weights stay as they are."""
    policies = [layer.dtype_policy for layer in layers]
    try:
        for layer in layers:
            _keras_internals.put_policy(layer, policy_named("float32"))
        yield
    finally:
        for layer, policy in zip(layers, policies, strict=True):
            _keras_internals.put_policy(layer, policy)
