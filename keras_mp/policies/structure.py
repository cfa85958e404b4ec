"""How a model is made up: every layer once, with a stable path, its parent, its role."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from keras_mp import _keras_internals
from keras_mp.policies.categories import Category, category_of, is_a
from keras_mp.policies.tracing import Call, traced_calls

# Layers that hand their input on, or nearly so: the layer before them decides the output's values.
_TRANSPARENT = (
    *("Reshape", "Flatten", "Permute", "RepeatVector", "Identity", "Dropout", "Masking"),
    *("Cropping1D", "Cropping2D", "Cropping3D", "Activation", "ReLU", "LeakyReLU", "ELU", "PReLU"),
)
# Activations whose result says how sure a net is, and reaches its bounds exactly in half precision.
SATURATING = ("sigmoid", "softmax", "hard_sigmoid", "log_softmax", "log_sigmoid", "tanh")


@dataclass
class Place:
    """A layer in its model.

    Attributes:
        path: Names from the model down, such as "encoder/block1/dense"; two layers of one name in
            one parent become "dense" and "dense#2". Stays the same when the model is saved and
            loaded.
        parent: What holds it; None for the model.
        children: What it holds.
        output: Whether its values are the model's outputs.
    """

    layer: Any
    path: str
    parent: "Place | None" = None
    children: list["Place"] = field(default_factory=list)
    output: bool = False

    @property
    def category(self) -> Category:
        return category_of(type(self.layer))


@dataclass
class Structure:
    """All places of a model, parents before their children; and what concerns all of it.

    Attributes:
        masked: Some layer makes a mask (``Embedding(mask_zero=True)``, ``Masking``), or a user's
            may.
    """

    places: list[Place]
    masked: bool

    @property
    def root(self) -> Place:
        return self.places[0]


def structure_of(model: Any, *, ends: bool = True) -> Structure:
    """The structure of a built model: functional, sequential or subclassed, nested as it may be.

    Args:
        model: The model, or a layer.
        ends: Whether to find its ``output`` places, for which a model with a ``call`` of its own is
            traced. Defaults to True.

    Raises:
        ValueError: The model is not built: a subclassed one has not got all its layers yet.
        TypeError: It is no Keras model or layer.
    """
    if not hasattr(model, "dtype_policy") or not hasattr(model, "built"):
        raise TypeError(
            f"Expected a Keras model. Received: model={model!r} (of type {type(model).__name__})"
        )
    if not model.built:
        raise ValueError(
            "The model is not built, so its layers are not all known. Expected a model that was "
            f"called once or got its input shape (`model.build`). Received: model={model!r}"
        )
    places: dict[int, Place] = {}
    _walk(model, None, "", places)
    for layer in _output_layers(model, places) if ends else ():
        if id(layer) in places:
            for place in (places[id(layer)], *below(places[id(layer)])):
                place.output = True
    masked = any(
        is_a(place.layer, "Masking")
        or getattr(place.layer, "mask_zero", False)
        or (place.category == "custom" and _makes_masks(place.layer))
        for place in places.values()
    )
    return Structure(list(places.values()), masked)


def _makes_masks(layer: Any) -> bool:
    return not type(layer).compute_mask.__module__.startswith("keras.")


def below(place: Place) -> Iterator[Place]:
    """Everything that a layer holds, at any depth."""
    for child in place.children:
        yield child
        yield from below(child)


def is_functional(model: Any) -> bool:
    """Whether Keras knows the model's graph (Functional, and a Sequential that is built)."""
    return bool(getattr(model, "outputs", None)) and not _is_custom_call(model)


def _is_custom_call(model: Any) -> bool:
    """A class of the user's that is a Functional or Sequential too, with a ``call`` of its own."""
    return not type(model).call.__module__.startswith("keras.")


def _walk(layer: Any, parent: Place | None, path: str, places: dict[int, Place]) -> None:
    place = Place(layer, path, parent)
    places[id(layer)] = place
    if parent is not None:
        parent.children.append(place)
    used: dict[str, int] = {}
    for child in _keras_internals.child_layers(layer):
        if is_a(child, "InputLayer"):
            continue
        used[child.name] = used.get(child.name, 0) + 1
        if id(child) in places:  # shared: it stands where it was met first
            continue
        number = f"#{used[child.name]}" if used[child.name] > 1 else ""
        _walk(child, place, f"{path}/{child.name}{number}".lstrip("/"), places)


def _output_layers(model: Any, places: dict[int, Place]) -> Iterator[Any]:
    """The layers whose values leave the model."""
    if is_functional(model):
        yield from _producers(list(model.outputs), places, set())
        return
    # A subclassed model tells no graph: what its code calls is tried.
    root = places[id(model)]
    calls = traced_calls(model, [place.layer for place in (root, *below(root))])
    if calls is None:
        yield from _last(root, {})
    else:
        yield from _called_last(root, calls, places)


def _called_last(root: Place, calls: list[Call], places: dict[int, Place]) -> Iterator[Any]:
    """The layers that gave what the call of a model gave."""
    order = {id(call.layer): number for number, call in enumerate(calls)}
    makers: dict[int, list[Call]] = {}  # the innermost first; others may have handed it on
    for call in calls[:-1]:
        for tensor in call.gives:
            makers.setdefault(id(tensor), []).append(call)
    seen = {id(tensor) for tensor in calls[-1].takes}
    waiting, known = list(calls[-1].gives), True
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if id(tensor) not in makers:
            known = False  # a function gave it
            continue
        for number, call in enumerate(makers[id(tensor)]):
            place = _whole(places[id(call.layer)])
            if number == 0 or not place.children:
                yield from _ends_of(place, places, order)
            if is_a(place.layer, *_TRANSPARENT) and ends_in(place.layer) not in SATURATING:
                waiting += call.takes
    if not known:
        yield from _last(root, order)
    for child in root.children:
        # What the call leaves alone is for other code of the model's, such as its train step.
        if _has_products(child) and not any(id(p.layer) in order for p in (child, *below(child))):
            yield from _ends_of(child, places, {})


def _whole(place: Place) -> Place:
    """The layer that something is a part of, as attention has parts."""
    while place.parent is not None and place.parent.category not in ("container", "custom"):
        place = place.parent
    return place


def _last(root: Place, order: dict[int, int]) -> Iterator[Any]:
    """Of a model whose end is not known: what it has last of products is taken for it, with every
    softmax of its own: one inside another layer is a part of attention."""
    yield from _ends(root, order)
    for place in _direct(root):
        if ends_in(place.layer) == "softmax":
            yield place.layer


def _ends(parent: Place, order: dict[int, int]) -> Iterator[Any]:
    """What a layer without a graph gives last, by the order in which it calls its layers; as far as
    that is not known, in which it got them."""
    holding = [child for child in parent.children if _has_products(child)]

    def when(child: Place) -> int:
        return max(order.get(id(place.layer), -1) for place in (child, *below(child)))

    last = max(reversed(holding), key=when, default=None)
    if last is None:
        return
    yield from _ends_of(last, {id(p.layer): p for p in (last, *below(last))}, order)


def _ends_of(place: Place, places: dict[int, Place], order: dict[int, int]) -> Iterator[Any]:
    if is_a(place.layer, "Model") and is_functional(place.layer):
        yield from _output_layers(place.layer, places)
    elif place.category in ("container", "custom") and place.children:
        yield from _ends(place, order)
    else:
        yield place.layer


def _has_products(place: Place) -> bool:
    return place.category == "product" or any(map(_has_products, place.children))


def _direct(parent: Place) -> Iterator[Place]:
    """Layers that a model holds, models in it seen through."""
    for child in parent.children:
        yield from _direct(child) if is_a(child.layer, "Model") else (child,)


def _producers(tensors: list[Any], places: dict[int, Place], seen: set[int]) -> Iterator[Any]:
    for tensor in tensors:
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        operation, inputs = _keras_internals.producer(tensor)
        if is_a(operation, "InputLayer"):
            continue
        if is_a(operation, "Model"):
            yield from _output_layers(operation, places)
            continue
        yield operation
        # A function of keras.ops has no policy: it computes in its inputs' dtype.
        function = not hasattr(operation, "dtype_policy")
        if function or (is_a(operation, *_TRANSPARENT) and ends_in(operation) not in SATURATING):
            yield from _producers(inputs, places, seen)


def ends_in(layer: Any) -> str | None:
    """The name of the activation that a layer ends in: "softmax", "relu", ...; None without one."""
    if is_a(layer, "Softmax"):
        return "softmax"
    if is_a(layer, "RNN") or category_of(type(layer)) == "container":
        return None
    return getattr(getattr(layer, "activation", None), "__name__", None)
