"""The plan for a model: each layer's policy, by your rules, by hazard, by worth, by category."""

import dataclasses
from typing import Any, Literal

import keras

from keras_mp.policies import mixing, worth
from keras_mp.policies.classes import (
    HEADS,
    KERAS,
    OURS,
    better_class,
    class_name,
    costs_time,
    suits_float32,
    why,
)
from keras_mp.policies.detect import device_of
from keras_mp.policies.hardware import Device, recommend_for
from keras_mp.policies.hazards import Circumstances, hazard, usual
from keras_mp.policies.measure import calibrate
from keras_mp.policies.own_code import needs_of_code
from keras_mp.policies.policy import choose, resolve_one
from keras_mp.policies.precision_plan import Gradients, PrecisionPlan, Row, applied_plan
from keras_mp.policies.raw import raw_values
from keras_mp.policies.reason import Reason
from keras_mp.policies.rules import CheckedRules, Rules
from keras_mp.policies.structure import Place, structure_of
from keras_mp.policies.work import work_of

__all__ = ["PrecisionPlan", "Row", "applied_plan", "plan"]

HALF = ("float16", "bfloat16")
# Reasons that speak for half precision, and give way to a better one against it.
_USUAL = ("product", "pointwise", "reduction", "alignment")

# Hazards of attention in float16, and the layers of which ours computes the logits in float32.
_ATTENTION = ("attention-mask", "attention-logits")
_MENDED = ("Attention", "AdditiveAttention", "MultiHeadAttention")


def plan(
    model: Any,
    policy: str = "auto",
    data: Any = None,
    *,
    loss: Any = None,
    rules: Rules | None = None,
    device: Device | str | None = None,
    replace: bool | Literal["speed"] = True,
) -> PrecisionPlan:
    """A policy for every layer of a built model, each with its reason. Nothing is changed.

    Products and pointwise layers compute in half precision. Layers that would go wrong there stay
    in float32: outputs, raw features, sums that overflow (see ``hazards.py`` for each); so do those
    that would gain nothing (see ``worth.py``).

    Args:
        model: A built model: functional, sequential, subclassed; nested, with shared layers.
        policy: What set_policy takes; "auto" for what suits the device.
        data: A batch to calibrate with: ``(x, y)`` or ``(x, y, sample_weight)`` as ``fit`` takes
            them, or inputs alone (anything but a tuple). The model runs it in float32, forward and
            backward. A layer whose values leave float16's range stays in float32; each row tells
            what float16 would lose of its activations and gradients (``Row.measured``), and the
            plan proposes a loss scale to begin with (``plan.initial_scale``).
        loss: For ``(x, y)`` and a model that is not compiled: a Keras loss, its name, or
            ``(y, y_pred) -> tensor``.
        rules: Yours, which win over any reason: a path or a layer's name, a compiled regular
            expression over paths, or a layer class -> a policy. The first that matches decides.
        device: Where the model will compute, as ``recommend`` takes it. Defaults to the device of
            this process.
        replace: Let layers that ``keras_mp.layers`` does better become ones of ours, with the same
            weights (``Row.replace``). True (the default) for all that keep fewer bytes; "speed"
            leaves out those that pay for them with time, a cast of each weight a step; False for
            none. A plan for float32 gives Keras' own back.

    Raises:
        ValueError: The model is not built, an argument is not known, a rule matches no layer, or
            there are targets and no loss.

    Example:

    ```python
    plan = keras_mp.plan(model, "mixed_float16", rules={keras.layers.LSTM: "float32"})
    print(plan)
    plan.apply(model)
    ```
    """
    if replace not in (True, False, "speed"):
        raise ValueError(f"Expected True, False or 'speed'. Received: replace={replace!r}")
    where = device_of(device)
    if policy == "auto":
        policy = _auto(device, where)
    name = resolve_one(policy)
    structure = structure_of(model)
    half = keras.DTypePolicy(name).compute_dtype
    measured = None
    if data is not None and half in HALF:
        measured = calibrate(model, data, structure, loss)
    backend = keras.backend.backend()
    code = needs_of_code(structure, half, backend) if half in HALF else {}
    around = Circumstances(
        half, backend, where, structure, measured, raw_values(structure), code, _replaced(model)
    )
    planner = _Planner(name, around, CheckedRules(rules or {}, structure), replace)
    return PrecisionPlan(name, planner.rows(), planner.summary())


def _auto(asked: Device | str | None, where: Device) -> str:
    """The environment may ask for a policy on this device; of another it knows nothing."""
    return (choose("auto") if asked is None else recommend_for(where)).policy


class _Planner:
    """Rows for one model."""

    def __init__(self, policy: str, around: Circumstances, rules: CheckedRules, replace: Any):
        self.policy, self.around, self._user, self._replace = policy, around, rules, replace
        self.products = sum(work_of(place).products for place in around.structure.places)
        self._rows: dict[int, Row] = {}

    def rows(self) -> tuple[Row, ...]:
        structure = self.around.structure
        rows = [self.row(place) for place in structure.places]
        if self.around.half in HALF:
            free = {row.path for row in rows if row.code in _USUAL}
            small = worth.too_small(structure, {row.path: row.policy for row in rows}, free)
            rows = [_in_float32(row, small.get(row.path)) for row in rows]
            policies = {row.path: row.policy for row in rows}
            joined = mixing.one_dtype(structure, policies, {row.path: row.code for row in rows})
            rows = [_changed(row, *joined.get(row.path, (row.policy, None))) for row in rows]
        pairs = zip(rows, structure.places, strict=True)
        return tuple(self._with_class(row, place) for row, place in pairs)

    def _with_class(self, row: Row, place: Place) -> Row:
        """Ours where it is better, Keras' own again where a plan had changed it and it is not."""
        if row.code == "quantized":
            return row
        if row.code == "wide-output":
            sentence = f"{row.reason}: its logits are {self.around.half}'s, given in float32"
            head = HEADS + type(place.layer).__name__
            return dataclasses.replace(row, reason=sentence, replace=head)
        changed = place.path in self.around.anew
        name = self._better(row, place, changed) if self._replace else None
        if name is not None:
            return dataclasses.replace(row, reason=f"{row.reason}; {why(name)}", replace=name)
        if changed:
            return dataclasses.replace(row, replace=KERAS + type(place.layer).__name__)
        return row

    def _better(self, row: Row, place: Place, changed: bool) -> str | None:
        """The class of ours for a layer; an earlier plan may have ``changed`` it to that one."""
        in_half = keras.dtype_policies.get(row.policy).compute_dtype in HALF
        if row.code in _ATTENTION and in_half:
            return OURS + type(place.layer).__name__
        name = class_name(place.layer) if changed else better_class(place.layer)
        if name is None or name.startswith(HEADS):
            return None
        # In a float32 row of a half-precision plan too, where it suits.
        suits = in_half or (self.around.half in HALF and suits_float32(name))
        slow = self._replace == "speed" and in_half and costs_time(name)
        return name if suits and not slow else None

    def summary(self) -> Gradients | None:
        """What the calibration batch showed of all gradients together."""
        found = self.around.measured
        if found is None or found.lost_gradients is None:
            return None
        return Gradients(
            found.initial_scale,
            found.zero_gradients or 0.0,
            found.lost_gradients,
            found.lost_scaled,
        )

    def row(self, place: Place) -> Row:
        known = self._rows.get(id(place))
        if known is None:
            policy, reason = self._decide(place)
            kind = type(place.layer).__name__
            measured = self.around.measured
            seen = None if measured is None else measured.layers.get(place.path)
            known = Row(place.path, kind, policy, reason.code, reason.sentence, measured=seen)
            self._rows[id(place)] = known
        return known

    def _decide(self, place: Place) -> tuple[str, Reason]:
        mode = place.layer.quantization_mode
        if mode not in (None, "float8"):
            return place.layer.dtype_policy.name, Reason(
                "quantized", f"its weights are {mode} numbers, which no policy turns back"
            )
        ruled = self._user.policy_of(place)
        if ruled is not None:
            return ruled, Reason("rule", "your rule")
        if self.around.half not in HALF:
            return self.policy, Reason("asked", "you asked for it")
        parent = place.parent
        if parent is not None and parent.category not in ("container", "custom"):
            return self.row(parent).policy, Reason("part", f"part of {parent.path}")
        found = hazard(place, self.around)
        if found is not None and found.code == "foreign" and self._replace:
            ours = better_class(place.layer)
            found = None if ours is not None else found
        if found is not None:
            mended = self._mended(place, found)
            return ("float32", found) if mended is None else (self.policy, mended)
        if place.category == "container":
            return self._container(place)
        aligned = worth.alignment(place, self.around.device, self.products)
        return self.policy, usual(place) if aligned is None else aligned[0]

    def _mended(self, place: Place, found: Reason) -> Reason | None:
        """The reason for half precision after all, where a layer of ours takes a hazard away."""
        if not self._replace:
            return None
        if found.code in ("output", "output-activation"):
            return worth.wide_output(place, self.products)
        kind = class_name(place.layer).removeprefix(KERAS)
        ours = (kind.removeprefix(OURS) if place.path in self.around.anew else kind) in _MENDED
        if found.code not in _ATTENTION or self.around.half != "float16" or not ours:
            return None
        return found if hazard(place, self.around, besides=_ATTENTION) is None else None

    def _container(self, place: Place) -> tuple[str, Reason]:
        """What a container casts its own inputs to."""
        if not hasattr(place.layer, "make_predict_function") and place.children:
            # A wrapper casts its inputs, and then calls what it holds.
            held = {self.row(child).policy for child in place.children}
            if held == {"float32"}:
                return "float32", Reason("part", f"holds {place.children[0].path}")
        return self.policy, usual(place)


def _replaced(model: Any) -> frozenset[str]:
    """Paths of the layers that the plan that was put on this model made ours."""
    before = applied_plan(model)
    if before is None:
        return frozenset()
    return frozenset(row.path for row in before if (row.replace or "").startswith(OURS))


def _in_float32(row: Row, reason: Reason | None) -> Row:
    return _changed(row, "float32", reason)


def _changed(row: Row, policy: str, reason: Reason | None) -> Row:
    if reason is None:
        return row
    return dataclasses.replace(row, policy=policy, code=reason.code, reason=reason.sentence)
