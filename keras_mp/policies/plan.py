"""A policy for every layer of a model, with the reason for each."""

import json
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import keras

from keras_mp import _keras_internals
from keras_mp.policies.categories import is_a
from keras_mp.policies.detect import current_device
from keras_mp.policies.hazards import Circumstances, Reason, hazard, usual
from keras_mp.policies.measure import largest_magnitudes
from keras_mp.policies.objects import PolicyMap, policy_named
from keras_mp.policies.policy import resolve
from keras_mp.policies.structure import Place, Structure, below, is_functional, structure_of

FORMAT = 1
# A pattern (a path, or a compiled regular expression that must match the whole path) or a layer
# class -> a policy.
Rules = Mapping[str | re.Pattern | type, str]


@dataclass(frozen=True)
class Row:
    """One layer's policy.

    Attributes:
        path: Where the layer stands (``Place.path``); "" for the model.
        layer: Name of its class.
        policy: What it is to compute by.
        code: The reason, in a word that never changes. "rule" for the user's own.
        reason: The same in a sentence.
    """

    path: str
    layer: str
    policy: str
    code: str
    reason: str


@dataclass(frozen=True)
class PrecisionPlan:
    """A policy for every layer of a model. ``print`` shows a table with a reason a row.

    Attributes:
        policy: What was asked for, such as "mixed_float16".
        rows: One a layer, parents before what they hold.
    """

    policy: str
    rows: tuple[Row, ...]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, path: str) -> Row:
        for row in self.rows:
            if row.path == path:
                return row
        raise KeyError(path)

    def apply(self, model: Any) -> Any:
        """Put the plan on a model: its layers compute by it from now on. Weights stay as they are.

        Args:
            model: The model that the plan was made for, or one of the same structure.

        Returns:
            The model itself. Compiled functions are made again.

        Raises:
            ValueError: The model has other layers than the plan.
        """
        for place, row in self._matched(structure_of(model)):
            policy = _fitting(place.layer, row.policy)
            changes = place.layer.dtype_policy.name != policy
            _keras_internals.put_policy(place.layer, policy_named(policy))
            if changes:
                _cast_again(place.layer)
        # Functions that were traced go on computing as they were traced.
        model.make_predict_function(force=True)
        if getattr(model, "optimizer", None) is not None:
            model.make_train_function(force=True)
            model.make_test_function(force=True)
        _APPLIED[model] = self
        return model

    def _matched(self, structure: Structure) -> list[tuple[Place, Row]]:
        rows = {row.path: row for row in self.rows}
        if set(rows) == {place.path for place in structure.places}:
            return [(place, rows[place.path]) for place in structure.places]
        # Automatic names differ from one build to the next ("dense_2", "dense_5"); the order does
        # not.
        kinds = [type(place.layer).__name__ for place in structure.places]
        if kinds == [row.layer for row in self.rows]:
            return list(zip(structure.places, self.rows, strict=True))
        surplus = sorted({place.path for place in structure.places} ^ set(rows))
        raise ValueError(
            "The model has other layers than the plan. Expected the model that the plan was made "
            f"for, or one of the same structure. Received: they differ in {', '.join(surplus[:5])}"
        )

    def to_json(self) -> str:
        """The plan as JSON text; ``from_json`` reads it."""
        rows = [asdict(row) for row in self.rows]
        return json.dumps({"format": FORMAT, "policy": self.policy, "rows": rows}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "PrecisionPlan":
        """The plan that ``to_json`` wrote.

        Raises:
            ValueError: It is no plan, or one of a later format.
        """
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise ValueError(
                    f"The plan has another format. Expected {FORMAT}. "
                    f"Received: format={data['format']!r}"
                )
            return cls(str(data["policy"]), tuple(Row(**row) for row in data["rows"]))
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"This is no precision plan. Expected what `to_json` wrote. Received: {text[:80]!r}"
            ) from error

    def to_policy_map(self, model: Any) -> PolicyMap:
        """The plan as a map of paths, for the ``dtype`` argument of layers that are built anew.

        Its keys are Keras' paths, which change when a model is saved and loaded: keep the plan.
        """
        rows = self._matched(structure_of(model))
        by_path = {place.layer.path: row.policy for place, row in rows if place.layer.path}
        return PolicyMap(self.policy, {re.escape(path): by_path[path] for path in by_path})

    def __str__(self) -> str:
        head = ("layer", "class", "policy", "because")
        lines = [
            (row.path or "(model)", row.layer, row.policy, row.reason)
            for row in self.rows
            if row.code != "part"
        ]
        widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in (head, *lines)
        )


# The plan that was put on a model last, as long as the model lives.
_APPLIED: "weakref.WeakKeyDictionary[Any, PrecisionPlan]" = weakref.WeakKeyDictionary()


def applied_plan(model: Any) -> PrecisionPlan | None:
    """The plan that was put on this model last."""
    return _APPLIED.get(model)


def plan(
    model: Any, policy: str = "auto", data: Any = None, *, rules: Rules | None = None
) -> PrecisionPlan:
    """A policy for every layer of a built model, each with its reason. Nothing is changed.

    Products and pointwise layers compute in half precision. Layers that would go wrong there stay
    in float32: outputs, raw features, sums that overflow (see ``hazards.py`` for each).

    Args:
        model: A built model: functional, sequential, subclassed; nested, with shared layers.
        policy: What set_policy takes; "auto" for what suits the device.
        data: A batch of inputs to calibrate with. The model runs it once in float32, and a layer
            whose values come near the end of the half-precision range stays in float32.
        rules: Yours, which win over any reason: a path, a compiled regular expression over paths,
            or a layer class -> a policy. The first that matches decides.

    Raises:
        ValueError: The model is not built, a policy is not known, or a rule matches no layer.

    Example:

    ```python
    plan = keras_mp.plan(model, "mixed_float16", rules={keras.layers.LSTM: "float32"})
    print(plan)
    plan.apply(model)
    ```
    """
    if policy == "auto":
        from keras_mp.policies.policy import recommend

        policy = recommend().policy
    name = resolve(policy)
    structure = structure_of(model)
    half = keras.DTypePolicy(name).compute_dtype
    device = current_device()
    measured = None
    if data is not None and half in ("float16", "bfloat16"):
        measured = largest_magnitudes(model, data, structure)
    around = Circumstances(
        half, keras.backend.backend(), device.vendor == "CPU", structure, measured
    )
    planner = _Planner(name, around, _Rules(rules or {}, structure))
    return PrecisionPlan(name, tuple(planner.row(place) for place in structure.places))


def _fitting(layer: Any, policy: str) -> str:
    """Pure half precision for a layer with float32 variables is the mixed policy.

    Under "float16" Keras casts no variable, as they are float16 already, and those of float32 would
    draw the computation into float32.
    """
    wide = any(keras.backend.standardize_dtype(v.dtype) == "float32" for v in layer.weights)
    return f"mixed_{policy}" if policy in ("float16", "bfloat16") and wide else policy


def _cast_again(layer: Any) -> None:
    """``Normalization`` keeps its mean and variance cast to the dtype it was built in."""
    if not is_a(layer, "Normalization"):
        return
    if layer.input_mean is None:
        layer.finalize_state()
    else:
        layer.build(layer.get_build_config()["input_shape"])


class _Planner:
    def __init__(self, policy: str, around: Circumstances, rules: "_Rules"):
        self.policy, self.around, self.rules = policy, around, rules
        self._rows: dict[int, Row] = {}

    def row(self, place: Place) -> Row:
        known = self._rows.get(id(place))
        if known is None:
            policy, reason = self._decide(place)
            kind = type(place.layer).__name__
            known = Row(place.path, kind, policy, reason.code, reason.sentence)
            self._rows[id(place)] = known
        return known

    def _decide(self, place: Place) -> tuple[str, Reason]:
        ruled = self.rules.policy_of(place)
        if ruled is not None:
            return ruled, Reason("rule", "your rule")
        if self.around.half not in ("float16", "bfloat16"):
            return self.policy, Reason("asked", "you asked for it")
        parent = place.parent
        if parent is not None and parent.category not in ("container", "custom"):
            return self.row(parent).policy, Reason("part", f"part of {parent.path}")
        found = hazard(place, self.around)
        if found is not None:
            return "float32", found
        if place.category == "container":
            return self._container(place)
        return self.policy, usual(place)

    def _container(self, place: Place) -> tuple[str, Reason]:
        """What a container casts its own inputs to."""
        is_model = hasattr(place.layer, "make_predict_function")
        if is_model and not is_functional(place.layer):
            raw = [p for p in below(place) if self.row(p).code == "raw-input"]
            if raw:
                sentence = f"its inputs reach {raw[0].path} raw: it must not cast them"
                return "float32", Reason("raw-input", sentence)
        if not is_model and place.children:
            # A wrapper casts its inputs, and then calls what it holds.
            held = {self.row(child).policy for child in place.children}
            if held == {"float32"}:
                return "float32", Reason("part", f"holds {place.children[0].path}")
        return self.policy, usual(place)


class _Rules:
    """The user's rules, checked: each names a policy that exists and matches some layer."""

    def __init__(self, rules: Rules, structure: Structure):
        self._rules: Sequence[tuple[Any, str]] = [
            (pattern, resolve(policy, f"rules[{pattern!r}]")) for pattern, policy in rules.items()
        ]
        for pattern, _ in self._rules:
            if not any(self._matches(pattern, place) for place in structure.places):
                paths = ", ".join(place.path for place in structure.places[1:9])
                raise ValueError(
                    "A rule matches no layer. Expected a path, a compiled regular expression that "
                    f"matches a whole path, or a layer class; paths are {paths}, ... "
                    f"Received: rules={{{pattern!r}: ...}}"
                )

    def policy_of(self, place: Place) -> str | None:
        for pattern, policy in self._rules:
            if self._matches(pattern, place):
                return policy
        return None

    @staticmethod
    def _matches(pattern: Any, place: Place) -> bool:
        if isinstance(pattern, str):
            return pattern == place.path
        if isinstance(pattern, re.Pattern):
            return pattern.fullmatch(place.path) is not None
        return isinstance(place.layer, pattern)
