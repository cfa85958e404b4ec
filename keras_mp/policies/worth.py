"""Where half precision gains little, or less than it could: by a layer's size and by its shapes.

Three reasons, all from arithmetic, none from a clock. ``tests/keras_mp/policies/test_worth.py`` has
for each a model where it changes what is counted, and one where it must not be given.

*Alignment*: tensor cores multiply tiles whose sides are multiples of 8 in half precision (NVIDIA,
"Matrix Multiplication Background"). A width of 1001 costs what 1008 costs, or leaves them alone.

*Wide output*: a head over many classes is kept in half precision but for its result.

*Too small*: each variable that half precision uses is cast at each step, and so is what crosses to
a float32 neighbour. A few layers in a row, with hardly any of the model's products and values, can
need more casts in half precision than in float32, and can save nothing.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from keras_mp import _keras_internals
from keras_mp.policies.classes import HEADS, KERAS, class_name
from keras_mp.policies.hardware import Device
from keras_mp.policies.reason import Reason
from keras_mp.policies.structure import Place, Structure, is_functional
from keras_mp.policies.work import LENGTH, with_parts, work_of

TILE = 8
# A layer with less than this share of the model's products has no shape that matters.
ALIGNED_FROM = 1 / 100
# A head with this share of the model's products, over as many classes at least.
WIDE_SHARE, WIDE_UNITS = 1 / 20, 128
# Below this share of the model's products, and of the values that it moves, nothing is to be won.
SMALL = 1 / 1000
# Weights move once a batch, values once a sample: Keras' default batch size.
BATCH = 32


def padding(width: int) -> float:
    """Share of the tensor cores' multiplications that fills up a side of this width; 0 to 7/8."""
    padded = math.ceil(width / TILE) * TILE
    return 1 - width / padded


def alignment(place: Place, device: Device, total: int) -> tuple[Reason, str, int] | None:
    """A layer's width that tensor cores do not like, on a device that has them.

    NVIDIA's alone: no source that we have gives the sides of AMD's, Apple's or Google's tiles.

    Args:
        total: The model's products.

    Returns:
        The reason, the argument's name and what it should be; None if all is well.
    """
    if device.vendor != "NVIDIA" or (device.compute_capability or (0, 0)) < (7, 0):
        return None
    if with_parts(place).products < ALIGNED_FROM * total and not _feeds_products(place):
        return None
    for name, width in _widths(place):
        if width % TILE == 0:
            continue
        better = math.ceil(width / TILE) * TILE
        sentence = (
            f"{name}={width} is no multiple of {TILE}: tensor cores compute {better} "
            f"({padding(width):.1%} is padding), or are left alone. Better {name}={better}"
        )
        return Reason("alignment", sentence), name, better
    return None


def _feeds_products(place: Place) -> bool:
    """An embedding multiplies nothing, and its width is a side of the matrices after it."""
    return bool(work_of(place).widths) and work_of(place).products == 0 and not place.children


def _widths(place: Place) -> tuple[tuple[str, int], ...]:
    own = work_of(place).widths
    if own or place.category in ("container", "custom"):
        return own
    # A recurrent layer's width is its cell's.
    return tuple(width for part in place.children for width in work_of(part).widths)


def wide_output(place: Place, total: int) -> Reason | None:
    """A head that is too large a part of the model for float32: logits over many classes.

    Of few numbers each may matter to the last digit, as prices do; of many classes the order
    does, and the difference between the largest.
    """
    layer = place.layer
    kind = class_name(layer).removeprefix(HEADS).removeprefix(KERAS)
    if kind == "ReversibleEmbedding" and layer.input_dim >= WIDE_UNITS:
        return Reason("wide-output", f"a product with all {layer.input_dim:,} of its rows")
    if kind != "Dense" or layer.units < WIDE_UNITS:
        return None
    share = work_of(place).products / max(total, 1)
    if share < WIDE_SHARE:
        return None
    return Reason("wide-output", f"{share:.0%} of the model's products, too many for float32")


@dataclass
class _Call:
    """One call in a functional model's graph."""

    place: Place | None
    takes: list[Any]
    gives: list[Any]
    users: list["_Call"] = field(default_factory=list)
    sources: list["_Call | None"] = field(default_factory=list)  # one a tensor; None: an input

    @property
    def moved(self) -> int:
        """Numbers that go in and out in a batch, weights included."""
        values = BATCH * sum(_size(tensor) for tensor in (*self.takes, *self.gives))
        return values + (self.place.layer.count_params() if self.place is not None else 0)


def too_small(
    structure: Structure, policies: Mapping[str, str], free: Collection[str]
) -> dict[str, Reason]:
    """Layers that need fewer casts in float32 and would gain nothing in half precision.

    Only functional models tell who feeds whom; of other models nothing is found.

    Args:
        policies: Path -> the policy that it would have otherwise.
        free: Paths of the layers for whose policy nothing else speaks.
    """
    found: dict[str, Reason] = {}
    total = sum(work_of(place).products for place in structure.places)
    for place in structure.places:
        if hasattr(place.layer, "make_predict_function") and is_functional(place.layer):
            found |= _in_graph(place.layer, structure, policies, free, total)
    return found


def _in_graph(
    model: Any,
    structure: Structure,
    policies: Mapping[str, str],
    free: Collection[str],
    total: int,
) -> dict[str, Reason]:
    calls = _calls(model, structure)
    moved = sum(call.moved for call in calls)
    uses: dict[int, int] = {}
    for call in calls:
        uses[id(call.place)] = uses.get(id(call.place), 0) + 1

    def small(call: _Call | None) -> bool:
        if call is None or call.place is None or call.place.children:
            return False
        place = call.place
        return (
            place.path in free
            and place.category in ("product", "pointwise")
            and uses[id(place)] == 1
            and work_of(place).products < SMALL * total
            and call.moved < SMALL * moved
        )

    found: dict[str, Reason] = {}
    for group in _groups([call for call in calls if small(call)]):
        half, wide = _casts(group, policies)
        products = sum(work_of(call.place).products for call in group if call.place)
        if products == 0 or half is None or wide >= half:
            continue
        sentence = (
            f"below {SMALL:.1%} of the model's products and values: nothing to gain, and half "
            f"precision takes {half} casts here, float32 {wide}"
        )
        found |= {call.place.path: Reason("too-small", sentence) for call in group if call.place}
    return found


def _calls(model: Any, structure: Structure) -> list[_Call]:
    places = {id(place.layer): place for place in structure.places}
    calls: list[_Call] = []
    maker: dict[int, _Call] = {}
    for operation, takes, gives in _keras_internals.graph_calls(model):
        call = _Call(places.get(id(operation)), takes, gives)
        calls.append(call)
        maker |= {id(tensor): call for tensor in gives}
    for call in calls:
        for tensor in call.takes:
            source = maker.get(id(tensor))
            call.sources.append(source)
            if source is not None:
                source.users.append(call)
    return calls


def _groups(small: list[_Call]) -> list[list[_Call]]:
    """Small calls that feed one another."""
    left = {id(call): call for call in small}
    groups = []
    while left:
        group, waiting = [], [left.popitem()[1]]
        while waiting:
            call = waiting.pop()
            group.append(call)
            for other in (*call.sources, *call.users):
                if other is not None and left.pop(id(other), None) is not None:
                    waiting.append(other)
        groups.append(group)
    return groups


def _casts(group: list[_Call], policies: Mapping[str, str]) -> tuple[int | None, int]:
    """Casts in the forward pass if the group is in half precision, and if in float32.

    None if a function of ``keras.ops`` takes its values: what that does with them is not known.
    """
    members = {id(call) for call in group}
    half, wide = 0, 0
    for call in group:
        half += sum(_is_float32(variable) for variable in call.place.layer.weights)  # type: ignore[union-attr]
        for tensor, source in zip(call.takes, call.sources, strict=True):
            if keras.backend.is_float_dtype(tensor.dtype) and id(source) not in members:
                is_half = source is not None and _gives_half(source, policies)
                half, wide = half + (not is_half), wide + is_half
        for user in call.users:
            if id(user) in members:
                continue
            if user.place is None:
                return None, wide
            is_half = _takes_half(user, policies)
            half, wide = half + (not is_half), wide + is_half
    return half, wide


def _gives_half(call: _Call, policies: Mapping[str, str]) -> bool:
    if call.place is None:  # a function of keras.ops gives what it takes
        return all(source is not None and _gives_half(source, policies) for source in call.sources)
    return _half(call.place, policies)


def _takes_half(call: _Call, policies: Mapping[str, str]) -> bool:
    # A nested functional model casts what it takes to the dtype of its own inputs.
    is_model = hasattr(call.place.layer, "make_predict_function")  # type: ignore[union-attr]
    return not is_model and _half(call.place, policies)  # type: ignore[arg-type]


def _half(place: Place, policies: Mapping[str, str]) -> bool:
    compute = keras.dtype_policies.get(policies[place.path]).compute_dtype
    return compute in ("float16", "bfloat16")


def _is_float32(variable: Any) -> bool:
    return keras.backend.standardize_dtype(variable.dtype) == "float32"


def _size(tensor: Any) -> int:
    return math.prod(LENGTH if size is None else size for size in tensor.shape[1:])
