"""A layer as the subject of the sweep: alone in a model, under a policy or a plan."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from sweep import backends
from sweep.cases import Case
from sweep.precision import Half, exact, shaken

import keras_mp
from keras_mp._keras_internals import flatten_layers


class ModelSubject:
    """A model of one layer. Every evaluation starts from the same variables.

    Args:
        policy: The layer's; under a plan of that policy where ``planned``. Then something in
            float32 follows the layer, so that the plan does not take it for the model's output.
        like: Another subject whose weights it gets.
    """

    def __init__(
        self, case: Case, policy: str, planned: bool = False, like: "ModelSubject | None" = None
    ):
        self.case, self.planned = case, planned
        keras.utils.set_random_seed(0)
        with keras_mp.policy_scope("float32" if planned else policy):
            self.layer = case.make()
            symbolic = [
                keras.Input(batch_shape=a.shape, dtype=_dtype(a)) for a in case.draw("ordinary")
            ]
            outputs = _call(case, self.layer, symbolic)
            if planned:
                tail = layers.Rescaling(1.0, dtype="float32")
                outputs = keras.tree.map_structure(
                    lambda o: tail(o) if backends.is_float(o) else o, outputs
                )
            self.model = keras.Model(symbolic, outputs)
        if like is None:
            rng = np.random.default_rng(1)
            for variable in self.model.trainable_variables:
                value = backends.host(variable.value)
                variable.assign(exact(value + 0.25 * np.clip(rng.normal(size=value.shape), -2, 2)))
        else:
            self.model.set_weights(like.weights)
        if planned:
            keras_mp.plan(self.model, policy).apply(self.model)
        # Training a layer changes its statistics and its random seeds.
        self._start = [(v, np.array(backends.host(v.value))) for v in self.model.variables]
        # Copies: torch hands out its own memory.
        self.weights = [np.array(w) for w in self.model.get_weights()]
        self._outputs = len(backends.flat(self.model.outputs))
        self._moved: dict[int, np.ndarray] = {}

    @property
    def computes(self) -> list[tuple[type, str]]:
        """What each layer is, and by which policy: subjects that agree in it compute the same."""
        own = [layer for layer in flatten_layers(self.model) if layer is not self.model]
        made = {"InputLayer", "Rescaling"} if self.planned else {"InputLayer"}
        if isinstance(self.layer, layers.Rescaling):
            made.discard("Rescaling")
        return [
            (type(layer), layer.dtype_policy.name)
            for layer in own
            if type(layer).__name__ not in made
        ]

    def shake(self, seed: int) -> None:
        self._moved = {
            id(v): shaken(backends.host(v.value), seed + 11) for v in self.model.trainable_variables
        }

    def restore(self) -> None:
        self._moved = {}

    def _reset(self) -> None:
        for variable, value in self._start:
            variable.assign(self._moved.get(id(variable), value))

    def tensors(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        return [a if a.dtype.kind in "US" else ops.convert_to_tensor(a) for a in arrays]

    def _run(self, *tensors: Any) -> list[Any]:
        outputs = backends.flat(self.model(list(tensors), training=self.case.training))
        state = [v.value for v in self.model.non_trainable_weights]
        return outputs + [s for s in state if backends.is_float(s)]

    def wrong_dtypes(self, tensors: list[Any]) -> list[str]:
        """Outputs that Keras' policy would not give: a label keeps its dtype, the rest is cast."""
        if self.case.keeps_dtype or self.layer is None:
            return []
        expected = {"float32", "float64"} if self.planned else {self.layer.compute_dtype}
        found = [keras.backend.standardize_dtype(o.dtype) for o in tensors[: self._outputs]]
        return [
            f"output {i}: {dtype} instead of {'/'.join(sorted(expected))}"
            for i, dtype in enumerate(found)
            if keras.backend.is_float_dtype(dtype) and dtype not in expected
        ]

    def largest(self, output: Any, half: Half) -> float:
        return half.largest

    def outputs(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        self._reset()
        return backends.forward(self._run, self.tensors(arrays))

    def gradients(self, arrays: Sequence[np.ndarray], cotangents: list[np.ndarray]) -> list[Any]:
        self._reset()
        variables = self.model.trainable_variables

        def outputs_only(*tensors: Any) -> list[Any]:
            return backends.flat(self.model(list(tensors), training=self.case.training))

        tensors = self.tensors(arrays)
        if backends.BACKEND != "jax":
            return backends.gradients(outputs_only, tensors, _first(cotangents, self), variables)
        own = [v.value for v in variables]
        others = [v.value for v in self.model.non_trainable_variables]

        def stateless(*values: Any) -> list[Any]:
            given, trained = values[: len(tensors)], list(values[len(tensors) :])
            outputs, _ = self.model.stateless_call(
                trained, others, list(given), training=self.case.training
            )
            return backends.flat(outputs)

        return backends.gradients(stateless, [*tensors, *own], _first(cotangents, self))


def _first(cotangents: list[np.ndarray], subject: ModelSubject) -> list[np.ndarray]:
    """Those of the outputs; the rest would be for the layer's state."""
    outputs = [o for o in subject.model.outputs if backends.is_float(o)]
    return cotangents[: len(outputs)]


def _dtype(array: np.ndarray) -> str:
    return "string" if array.dtype.kind in "US" else array.dtype.name


def _call(case: Case, layer: Any, tensors: list[Any]) -> Any:
    if case.call is not None:
        return case.call(layer, *tensors)
    return layer(tensors[0] if len(tensors) == 1 else list(tensors))
