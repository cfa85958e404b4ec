"""What the code of the user's own layers does that half precision makes wrong, as far as its names
and constants tell. Nothing is run.

Three reasons: a *tiny epsilon*, which is zero in float16; a *large number*, which is infinite; and
a *running sum*, which adds one number after the other in the dtype that it is given. Code that
names float32 takes care of itself.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from keras_mp.numerics.formats import get_format
from keras_mp.policies.categories import category_of
from keras_mp.policies.reason import Reason
from keras_mp.policies.structure import Place, Structure, below, is_functional
from keras_mp.policies.tracing import traced_calls

_NOT_OWN = ("keras.", "keras_mp.", "torch.", "tensorflow.", "jax.", "numpy.")
_WIDE, _WHOLE = {"float32", "float64"}, {"int32", "int64"}
_FLOAT16 = get_format("float16")
# Measured by 3,000 ones: they come to 256 in bfloat16 and 2,048 in float16. A test repeats it.
_SUMS = {
    "tensorflow": {
        *("segment_sum", "segment_mean", "unsorted_segment_sum", "unsorted_segment_mean"),
        *("scatter", "scatter_nd", "tensor_scatter_nd_add", "cumsum"),
    },
    "jax": {"segment_sum", "scatter"},
    "torch": {"scatter", "scatter_add", "scatter_add_", "index_add", "index_add_"},
}
_STOPS = {"float16": "2,048", "bfloat16": "256"}


@dataclass(frozen=True)
class Code:
    """A function of the user's.

    Attributes:
        names: Of the functions and attributes that it uses.
        constants: Numbers and texts in it, defaults of its arguments among them.
    """

    names: frozenset[str]
    constants: frozenset[Any]

    def tells(self, words: set[str]) -> bool:
        """Whether one of these words stands in it."""
        return not words.isdisjoint(self.names | self.constants)


def own_code(layer: Any, *, narrow: bool = False) -> Iterator[Code]:
    """The functions of the user's that a layer's ``call`` may call, itself first.

    Methods of the layer, and functions of the modules or functions that they stand in. ``narrow``:
    without those that name float32, and what they call.
    """
    seen: set[int] = set()
    waiting = [_definitions(layer, "call")]
    while waiting:
        chain = waiting.pop(0)
        if not chain or id(chain[0]) in seen:
            continue
        function = chain[0]
        seen.add(id(function))
        codes = list(_codes(function.__code__))
        names = frozenset(name for code in codes for name in code.co_names)
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        constants = (*defaults, *(one for code in codes for one in code.co_consts))
        code = Code(names, frozenset(one for one in constants if isinstance(one, float | str)))
        if narrow and code.tells(_WIDE):
            continue
        yield code
        if "super" in names:
            waiting.append(chain[1:])
        for name in names:
            waiting.append(_definitions(layer, name))
            waiting.append(_own([function.__globals__.get(name)]))
        waiting += [_own([_content(cell)]) for cell in function.__closure__ or ()]


def takes_code(layer: Any) -> bool:
    """Whether a function of the user's is an argument of a layer of Keras': Lambda, activations."""
    return bool(_own([getattr(layer, name, None) for name in ("function", "activation")]))


def adds_loss(layer: Any) -> bool:
    """Whether the user's code in a layer's class names ``add_loss``."""
    return any("add_loss" in code.names for code in own_code(layer))


def needs_of_code(structure: Structure, half: str, backend: str) -> Mapping[str, Reason]:
    """Path -> why a layer must stay in float32 for the code that it has or stands in.

    What a layer with such code holds gives it the numbers that it computes with: all of it, or,
    where its code can be traced, what hands something to other code than a layer's.
    """
    found: dict[str, Reason] = {}
    for place in structure.places:
        reason = _need(place, half, backend)
        if reason is None:
            continue
        name = place.path or "the model"
        inside = Reason(reason.code, f"gives {name} numbers, and that {reason.sentence}")
        found.setdefault(place.path, Reason(reason.code, f"it {reason.sentence}"))
        for one in _givers(place):
            found.setdefault(one.path, inside)
    return found


def _need(place: Place, half: str, backend: str) -> Reason | None:
    model = hasattr(place.layer, "make_predict_function")
    if is_functional(place.layer) if model else category_of(type(place.layer)) != "custom":
        return None
    for code in own_code(place.layer, narrow=True):
        sums = sorted(code.names & _SUMS[backend])
        if sums == ["cumsum"] and code.tells(_WHOLE):  # of positions
            sums = []
        if sums:
            sentence = f"adds up by {sums[0]}, which on {backend} stops at {_STOPS[half]} ones"
            return Reason("running-sum", f"{sentence} in {half}: cast to float32 before it")
    if half != "float16" or model:
        return None
    # Here what names float32 speaks for itself alone: its helpers may be given other values.
    numbers = (_number(place.layer, c) for c in own_code(place.layer) if not c.tells(_WIDE))
    return next((reason for reason in numbers if reason is not None), None)


def _number(layer: Any, code: Code) -> Reason | None:
    """A number that float16 does not have: an attribute that code uses, or written in it."""
    held = vars(layer)
    named = [(f"{name}={held[name]!r}", held[name]) for name in sorted(code.names & set(held))]
    written = [(repr(one), one) for one in sorted(code.constants, key=repr)]
    for text, value in (pair for pair in named + written if isinstance(pair[1], float)):
        if 0.0 < value <= _FLOAT16.zero_below:
            return Reason(
                "tiny-epsilon",
                f"computes with {text}, which is zero in float16: what it is to keep from a "
                "division by zero is not kept from it",
            )
        if _FLOAT16.max < abs(value) < math.inf:
            return Reason(
                "large-number",
                f"computes with {text}, which is infinite in float16: what is multiplied by it, as "
                "masks are, becomes infinite or NaN",
            )
    return None


def _givers(place: Place) -> Iterator[Place]:
    calls = traced_calls(place.layer, [one.layer for one in (place, *below(place))])
    kept: set[int] = set()
    if calls is not None:
        direct = {id(child.layer): child for child in place.children}
        inner = [call for call in calls if id(call.layer) in direct]
        taken = {id(tensor) for call in inner for tensor in call.takes}
        taken |= {id(tensor) for tensor in calls[-1].gives}
        given = [call for call in inner if not taken.issuperset(map(id, call.gives))]
        kept = set(direct) - {id(call.layer) for call in given}
    for child in place.children:
        if id(child.layer) not in kept:
            yield child
            yield from below(child)


def _definitions(layer: Any, name: str) -> list[FunctionType]:
    """A method of the user's, and those that it overrides."""
    found = []
    for made in type(layer).__mro__:
        method = vars(made).get(name)
        for inside in ("__func__", "fget", "__wrapped__"):  # static, a property, decorated
            method = getattr(method, inside, method)
        found += _own([method])
    return found


def _own(candidates: Iterable[Any]) -> list[FunctionType]:
    """Those that are functions of the user's."""
    functions = (one for one in candidates if isinstance(one, FunctionType))
    return [one for one in functions if not f"{one.__module__}.".startswith(_NOT_OWN)]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing in it yet
        return None
