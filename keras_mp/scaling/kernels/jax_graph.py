"""jax: how far each variable of a model is from its outputs, told by the jaxpr of its call.

A step's own trace cannot be walked: a tracer does not tell where it comes from. So the model is
traced once more, forward only and by shapes, when the first overflow is to be described; a step
that trains knows nothing of it.
"""

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from typing import Any

import jax
import keras
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from keras_mp import _keras_internals

# What stands for a dimension that may have any size, the batch first.
_BATCH, _ANY = 2, 32


class ModelDistances:
    """The distances of an optimizer's variables, found when they are first asked for.

    Args:
        optimizer: The LossScaleOptimizer: its bound model is the one, until a train step tells.
    """

    def __init__(self, optimizer: Any):
        self.optimizer = optimizer
        self.trained: Any = None  # (model, held weakly; shapes and dtypes of its inputs)
        self.found: dict[int, int] | None = None

    def trains(self, model: Any, inputs: Any) -> None:
        """A train step of this model is being traced."""
        self.trained = weakref.ref(model), like(inputs)
        self.found = None

    def get(self) -> dict[int, int]:
        """As ``model_distances``; empty, too, where no model is known."""
        if self.found is None:
            binding = self.optimizer._binding
            model, inputs = None if binding is None else binding.model, None
            if self.trained is not None:
                model, inputs = self.trained[0](), self.trained[1]
            if model is None or not model.built:
                return {}
            self.found = model_distances(model, self.optimizer._trainable_variables, inputs)
        return self.found


def like(values: Any) -> Any:
    """A structure of arrays as one of shapes and dtypes."""
    return keras.tree.map_structure(
        lambda v: None if v is None else _shaped(v.shape, v.dtype), values
    )


def model_distances(model: Any, variables: Sequence[Any], inputs: Any = None) -> dict[int, int]:
    """The operations between each variable and the model's outputs, the longest way.

    Args:
        model: A built model. variables: Trainable variables.
        inputs: Shapes and dtypes of what the model is called with. Defaults to what it was built
            for: the inputs of a functional model, else the shapes that ``build`` was given.

    Returns:
        By position among ``variables``. Empty where the model cannot be called by shapes alone.
    """
    trainable, rest = model.trainable_variables, model.non_trainable_variables
    training = {"training": True} if "training" in signature(model.call).parameters else {}

    def forward(trainable: list[Any], rest: list[Any], inputs: Any) -> list[Any]:
        outputs, _, losses = model.stateless_call(
            trainable, rest, inputs, return_losses=True, **training
        )
        return [*keras.tree.flatten(outputs), *losses]

    try:
        values = like(trainable), like(rest), _inputs_of(model) if inputs is None else inputs
        jaxpr = jax.make_jaxpr(forward)(*values).jaxpr
    except Exception:  # of the user's layers: any. Then the variables' order has to do.
        return {}
    found = _from_outputs(jaxpr, [0.0] * len(jaxpr.outvars))
    by_id = {id(v): d for v, d in zip(trainable, found, strict=False)}
    known = ((i, by_id.get(id(v), -math.inf)) for i, v in enumerate(variables))
    return {i: int(d) for i, d in known if d >= 0}


def _from_outputs(jaxpr: Any, outputs: Sequence[float]) -> list[float]:
    """The distance of each input, given that of each output."""
    distances: dict[Any, float] = {}

    def reach(variable: Any, distance: float) -> None:
        if not isinstance(variable, Literal):
            distances[variable] = max(distance, distances.get(variable, -math.inf))

    def each(fn: Callable[[Any, float], None], variables: Any, values: Any) -> None:
        for variable, value in zip(variables, values, strict=True):
            fn(variable, value)

    each(reach, jaxpr.outvars, outputs)
    for equation in reversed(jaxpr.eqns):
        after = [distances.get(v, -math.inf) for v in equation.outvars]
        if max(after, default=-math.inf) < 0:
            continue
        inside = False
        for inner in _inner(equation):
            inside = True
            skipped = len(equation.invars) - len(inner.invars)  # which branch, before its operands
            each(reach, equation.invars[skipped:], _from_outputs(inner, after))
        if not inside:
            each(reach, equation.invars, [max(after) + 1] * len(equation.invars))
    return [distances.get(v, -math.inf) for v in jaxpr.invars]


def _inner(equation: Any) -> Iterator[Any]:
    """The jaxprs of a call (jit, checkpoint, scan, a custom derivative) or of a cond's branches,
    where inputs and outputs stand for the equation's own."""
    for parameter in equation.params.values():
        for one in parameter if isinstance(parameter, tuple) else (parameter,):
            jaxpr = one.jaxpr if isinstance(one, ClosedJaxpr) else one
            if (
                isinstance(jaxpr, Jaxpr)
                and len(jaxpr.outvars) == len(equation.outvars)
                and len(equation.invars) - len(jaxpr.invars) in (0, 1)
            ):
                yield jaxpr


def _inputs_of(model: Any) -> Any:
    if isinstance(model, keras.Sequential):
        return like(model.inputs[0])
    functional: Any = _keras_internals.functional_class()
    if isinstance(model, functional):
        return like(model.input)
    return _of_shapes((model.get_build_config() or {})["input_shape"])


def _of_shapes(shapes: Any) -> Any:
    if isinstance(shapes, dict):
        return {key: _of_shapes(shape) for key, shape in shapes.items()}
    if all(size is None or isinstance(size, int) for size in shapes):
        return _shaped(shapes, keras.config.floatx())
    return [_of_shapes(shape) for shape in shapes]


def _shaped(shape: Sequence[int | None], dtype: Any) -> Any:
    sizes = [(_ANY if i else _BATCH) if size is None else size for i, size in enumerate(shape)]
    return jax.ShapeDtypeStruct(sizes, keras.backend.standardize_dtype(dtype))
