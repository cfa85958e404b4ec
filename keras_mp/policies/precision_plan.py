"""A plan: a policy for every layer of a model, as a value that can be stored and put on."""

import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras

from keras_mp import _keras_internals
from keras_mp._precision import HALF
from keras_mp.policies.categories import is_a
from keras_mp.policies.classes import OURS, put_class
from keras_mp.policies.objects import Policy, PolicyMap, policy_named, widening
from keras_mp.policies.plan_rows import Gradients, Row, read, written
from keras_mp.policies.plan_table import as_text
from keras_mp.policies.structure import Place, Structure, structure_of


@dataclass(frozen=True)
class PrecisionPlan:
    """A policy for every layer of a model. ``print`` shows a table with a reason a row.

    Attributes:
        policy: What was asked for, such as "mixed_float16".
        rows: One a layer, parents before what they hold.
        gradients: What a calibration batch with targets showed of them; None without one.
    """

    policy: str
    rows: tuple[Row, ...]
    gradients: Gradients | None = None

    @property
    def initial_scale(self) -> float | None:
        """The loss scale to begin with, for ``keras_mp.LossScaleOptimizer(initial_scale=...)``.

        None where no calibration batch with targets was given, or its gradients were not finite.
        """
        return None if self.gradients is None else self.gradients.initial_scale

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, path: str) -> Row:
        for row in self.rows:
            if row.path == path:
                return row
        raise KeyError(path)

    def apply(self, model: Any) -> Any:
        """Put the plan on a model: its layers compute by it from now on. Weights stay as they are.

        Layers whose row says so become ones of ``keras_mp.layers``, the same objects as before.

        Args:
            model: The model that the plan was made for, or one of the same structure.

        Returns:
            The model itself. Compiled functions are made again.

        Raises:
            ValueError: The model has other layers than the plan.
        """
        for place, row in self._matched(structure_of(model, ends=False)):
            if row.code == "quantized":
                continue
            policy = fitting(place.layer, row.policy)
            # Ours of products leave a float32 layer's weights as they are.
            widens = policy.compute_dtype == "float32" and policy.variable_dtype in HALF
            if row.replace is not None and not widens:
                put_class(place.layer, row.replace)
            changes = place.layer.dtype_policy.name != policy.name
            _keras_internals.put_policy(place.layer, policy)
            if changes:
                _cast_again(place.layer)
        # Functions that were traced go on computing as they were traced.
        model.make_predict_function(force=True)
        if getattr(model, "optimizer", None) is not None:
            model.make_train_function(force=True)
            model.make_test_function(force=True)
        _APPLIED[model] = self
        return model

    def replaced_layers(self, model: Any) -> list[Any]:
        """The layers of a model that this plan makes ours."""
        rows = self._matched(structure_of(model, ends=False))
        return [place.layer for place, row in rows if (row.replace or "").startswith(OURS)]

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
        return written(self.policy, self.rows, self.gradients)

    @classmethod
    def from_json(cls, text: str) -> "PrecisionPlan":
        """The plan that ``to_json`` wrote.

        Raises:
            ValueError: It is no plan, or one of a later format; or a row of it, which the message
                names, is none.
        """
        return cls(*read(text))

    def to_policy_map(self, model: Any) -> PolicyMap:
        """The plan as a map of paths, for the ``dtype`` argument of layers that are built anew.

        Its keys are Keras' paths, which change when a model is saved and loaded: keep the plan.
        """
        rows = self._matched(structure_of(model, ends=False))
        rows = [(place, row) for place, row in rows if row.code != "quantized"]
        by_path = {place.layer.path: row.policy for place, row in rows if place.layer.path}
        return PolicyMap(self.policy, {re.escape(path): by_path[path] for path in by_path})

    def __str__(self) -> str:
        return as_text(self)


# The plan that was put on a model last, as long as the model lives.
_APPLIED: "weakref.WeakKeyDictionary[Any, PrecisionPlan]" = weakref.WeakKeyDictionary()


def applied_plan(model: Any) -> PrecisionPlan | None:
    """The plan that was put on this model last."""
    return _APPLIED.get(model)


def fitting(layer: Any, policy: str) -> Policy:
    """Keras casts variables to the compute dtype where the policy says that they have another.

    Under "float16" it casts none, as they are float16 already, and those of float32 would draw the
    computation into float32: the mixed policy. Under "float32" it casts none either, and products
    of float32 inputs with half-precision weights raise or are rounded: a policy that says so.
    """
    kept = {keras.backend.standardize_dtype(v.dtype) for v in layer.weights}
    if policy in HALF and "float32" in kept:
        return policy_named(f"mixed_{policy}")
    half = sorted(kept.intersection(HALF))
    return widening(half[0]) if policy == "float32" and half else policy_named(policy)


def _cast_again(layer: Any) -> None:
    """``Normalization`` keeps its mean and variance cast to the dtype it was built in."""
    if not is_a(layer, "Normalization"):
        return
    if layer.input_mean is None:
        layer.finalize_state()
    else:
        layer.build(layer.get_build_config()["input_shape"])
