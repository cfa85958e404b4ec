"""Where raw numbers go before a layer makes them small: prices, pixels, ids that came as floats.

A layer that only hands them on (``Reshape``, ``Concatenate``, ...) casts its inputs all the same,
and what is rounded or infinite once stays so: the layer that takes raw numbers in float32 then
takes the wrong ones.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from keras_mp import _keras_internals
from keras_mp.policies.categories import is_a
from keras_mp.policies.reason import Reason
from keras_mp.policies.structure import Place, Structure, below, is_functional

# What these give are numbers that they took, or sums of a few.
_HANDING_ON = (
    *("Reshape", "Flatten", "Permute", "RepeatVector", "Identity", "Masking", "Merge", "Lambda"),
    *("Dropout", "GaussianDropout", "GaussianNoise"),
    *("Cropping1D", "Cropping2D", "Cropping3D"),
    *("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D", "UpSampling1D", "UpSampling2D"),
    *("MaxPooling1D", "MaxPooling2D", "MaxPooling3D", "GlobalMaxPooling1D", "GlobalMaxPooling2D"),
)
# The whole numbers that a format has all of, from 0 on.
_WHOLE = {"float16": 2048, "bfloat16": 256}


@dataclass(frozen=True)
class Raw:
    """Raw numbers that a layer takes and hands on.

    Attributes:
        to: Path of the layer that needs them as they are.
        ids: How many ids there are, where it looks numbers up; None where it computes with them.
        sure: False where it is not known whether ids come as floats or, as they mostly do, as
            integers, which nobody casts. A model with weights of its own, whose dtype its policy
            decides, is let alone then.
    """

    to: str
    ids: int | None = None
    sure: bool = True

    def reason(self, path: str, half: str) -> Reason | None:
        """Why the layer must not cast them; None where this format has all of those ids."""
        if self.ids is not None and self.ids - 1 <= _WHOLE[half]:
            return None
        if self.to == path:
            sentence = (
                f"takes the model's inputs as they are: {half} rounds raw features, and float16 "
                "ends at 65,504"
            )
        elif self.ids is None:
            sentence = f"hands raw features on to {self.to}: in {half} they would be rounded before"
        else:
            whole = f"{_WHOLE[half]:,}"
            sentence = f"hands ids on to {self.to} as floats: {half} rounds those above {whole}"
        return Reason("raw-input", sentence)


def raw_values(structure: Structure) -> Mapping[str, Raw]:
    """Path -> the raw numbers that the layer must not cast, for those that would.

    Of functional models the graph tells who feeds whom, models in them included. Of other code the
    order tells in which a layer or model got its layers.
    """
    found: dict[str, Raw] = {}
    root = structure.root
    if is_functional(root.layer):
        places = {id(place.layer): place for place in structure.places}
        _Graph(root.layer, places, {id(t) for t in root.layer.inputs}, found).search()
    else:
        for need in _inside(root):
            need = need if need.ids is None else Raw(need.to, need.ids, sure=False)
            if need.sure or not _own_weights(root):
                _mark(found, root, need)
            _mark_code(found, root, need)
    return found


class _Graph:
    """One functional model's graph, and which of its inputs are raw."""

    def __init__(
        self, model: Any, places: Mapping[int, Place], raw: Collection[int], found: dict[str, Raw]
    ):
        self.calls = _keras_internals.graph_calls(model)
        self.makers = {id(t): (call[0], call[1]) for call in self.calls for t in call[2]}
        self.places, self.found = places, found
        self.known = {id(t): id(t) in raw and _is_float(t) for t in model.inputs}

    def search(self) -> list[Raw]:
        """Marks every layer that hands raw numbers on; returns what needs the model's inputs."""
        needs = []
        for operation, takes, _ in self.calls:
            place = self.places.get(id(operation))
            fed = [tensor for tensor in takes if self.is_raw(tensor)]
            if place is None or not fed:
                continue
            for need in self.needs_of(place, takes):
                needs.append(need)
                for tensor in fed:
                    self.mark(tensor, need)
        return needs

    def needs_of(self, place: Place, takes: list[Any]) -> list[Raw]:
        layer = place.layer
        if hasattr(layer, "make_predict_function") and is_functional(layer):
            pairs = zip(layer.inputs, takes, strict=False)
            raw = {id(inside) for inside, given in pairs if self.is_raw(given)}
            return _Graph(layer, self.places, raw, self.found).search()
        own = list(_need(place))
        # Batch statistics first of all normalize features; code of the user's does what it likes.
        if is_a(layer, "BatchNormalization", "Lambda"):
            own.append(Raw(place.path))
            _mark(self.found, place, own[-1])
        inside = list(_inside(place))
        for need in inside:
            if place.category == "custom" or hasattr(layer, "make_predict_function"):
                _mark(self.found, place, need)
                _mark_code(self.found, place, need)
        return own + inside

    def is_raw(self, tensor: Any) -> bool:
        """Whether a tensor holds numbers of the model's raw inputs, in floats."""
        if id(tensor) not in self.known:
            operation, takes = self.makers[id(tensor)]
            place = self.places.get(id(operation))
            on = place is None or _hands_on(place)
            self.known[id(tensor)] = _is_float(tensor) and on and any(map(self.is_raw, takes))
        return self.known[id(tensor)]

    def mark(self, tensor: Any, need: Raw) -> None:
        """Whoever hands the tensor on."""
        if id(tensor) not in self.makers or not self.is_raw(tensor):
            return
        operation, takes = self.makers[id(tensor)]
        place = self.places.get(id(operation))
        if place is not None:
            for one in (place, *below(place)):
                _mark(self.found, one, need)
        for taken in takes:
            self.mark(taken, need)


def _hands_on(place: Place) -> bool:
    if place.children:
        return place.category == "container" and all(map(_hands_on, place.children))
    without_weights = place.category == "custom" and not place.layer.weights
    return without_weights or is_a(place.layer, *_HANDING_ON)


def _need(place: Place) -> Iterator[Raw]:
    """What a layer itself needs as it comes."""
    if place.category == "input":
        yield Raw(place.path)
    elif is_a(place.layer, "Embedding"):
        yield Raw(place.path, place.layer.input_dim)


def _inside(place: Place) -> Iterator[Raw]:
    for inner in below(place):
        yield from _need(inner)


def _own_weights(place: Place) -> bool:
    held = {id(variable) for child in place.children for variable in child.layer.weights}
    return any(id(variable) not in held for variable in place.layer.trainable_weights)


def _mark_code(found: dict[str, Raw], around: Place, need: Raw) -> None:
    """In a layer or model with code of its own: what holds the layer in need, and what hands on to
    it, as far as they stand before it."""
    for child in around.children:
        if need.to == child.path or need.to.startswith(f"{child.path}/"):
            if child.category == "custom":
                _mark(found, child, need)
            _mark_code(found, child, need)
            return
        if _hands_on(child):
            for one in (child, *below(child)):
                _mark(found, one, need)


def _mark(found: dict[str, Raw], place: Place, need: Raw) -> None:
    """Numbers to compute with say more than ids."""
    before = found.get(place.path)
    if before is None or (before.ids is not None and need.ids is None):
        found[place.path] = need


def _is_float(tensor: Any) -> bool:
    return bool(keras.backend.is_float_dtype(tensor.dtype))
