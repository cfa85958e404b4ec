"""What jax keeps for the backward pass: the residuals of ``jax.vjp``, from its traced program."""

import re
from contextlib import AbstractContextManager
from typing import Any

import jax
import keras

from keras_mp import _keras_internals
from keras_mp.numerics.memory import Kept
from keras_mp.policies.structure import Place

# Operations that put numbers elsewhere, in another dtype or order, and leave them what they are.
_COPIES = (
    *("convert_element_type", "reshape", "transpose", "squeeze", "broadcast_in_dim", "slice"),
    *("copy", "concatenate", "rev", "expand_dims", "split", "dynamic_slice"),
)
_SCOPE = re.compile(r"keras_mp_(\d+)_")


def kept_blocks(model: Any, inputs: Any, places: list[Place], mode: dict[str, bool]) -> list[Kept]:
    """Each residual once. See ``saved_bytes``. Nothing is computed: the program is only traced."""
    trainable = [v.value for v in model.trainable_variables]
    others = [v.value for v in model.non_trainable_variables]
    numbers = {id(place.layer): number for number, place in enumerate(places)}

    def scope(layer: Any) -> AbstractContextManager:
        return jax.named_scope(f"keras_mp_{numbers[id(layer)]}_")

    def residuals(trainable: Any, others: Any, inputs: Any) -> list[Any]:
        def outputs(trainable: Any) -> Any:
            return model.stateless_call(trainable, others, inputs, **mode)[0]

        return jax.tree.leaves(jax.vjp(outputs, trainable)[1])

    with _keras_internals.wrapped_calls([place.layer for place in places], scope):
        program = jax.make_jaxpr(residuals)(trainable, others, inputs)
    trace = _Trace(len(trainable) + len(others))
    found = trace.run(program.jaxpr, None, "")
    kept = {}
    for residual in found:
        if residual.kind not in ("weight", "constant"):
            kept[id(residual)] = residual
    return [
        Kept(
            places[r.place].path if r.place is not None else "",
            keras.backend.standardize_dtype(r.aval.dtype),
            r.aval.size * r.aval.dtype.itemsize,
            r.kind == "copy",
        )
        for r in kept.values()
    ]


class _Value:
    """A value in a traced program.

    Attributes:
        kind: "weight" for a variable itself, "copy" for a copy of one, "constant" for what comes
            of no data at all, such as an array of zeros, "" for anything else.
        place: The number of the layer that computed it.
    """

    def __init__(self, kind: str, aval: Any, place: int | None):
        self.kind, self.aval, self.place = kind, aval, place


class _Trace:
    """Follows values through a program and the functions that it calls."""

    def __init__(self, weights: int):
        self._weights = weights

    def run(self, jaxpr: Any, arguments: list[_Value] | None, stack: str) -> list[_Value]:
        values: dict[Any, _Value] = {}
        if arguments is None:
            arguments = [
                _Value("weight" if number < self._weights else "", var.aval, None)
                for number, var in enumerate(jaxpr.invars)
            ]
        values.update(zip(jaxpr.invars, arguments, strict=True))
        for var in jaxpr.constvars:
            values[var] = _Value("", var.aval, None)
        for equation in jaxpr.eqns:
            self._step(equation, values, stack)
        return [self._read(var, values) for var in jaxpr.outvars]

    def _step(self, equation: Any, values: dict[Any, _Value], stack: str) -> None:
        stack = f"{stack}/{equation.source_info.name_stack}"
        taken = [self._read(var, values) for var in equation.invars]
        inner = _called(equation)
        if inner is not None and len(inner.invars) == len(taken):
            results = self.run(inner, taken, stack)
        else:
            numbers = _SCOPE.findall(stack)
            place = int(numbers[-1]) if numbers else None
            kinds = {value.kind for value in taken} - {"constant"}
            kind = "" if kinds else "constant"
            if kinds and kinds <= {"weight", "copy"} and equation.primitive.name in _COPIES:
                kind = "copy"
            results = [_Value(kind, var.aval, place) for var in equation.outvars]
        values.update(zip(equation.outvars, results, strict=True))

    @staticmethod
    def _read(var: Any, values: dict[Any, _Value]) -> _Value:
        # A literal has its value with it.
        return _Value("constant", var.aval, None) if hasattr(var, "val") else values[var]


def _called(equation: Any) -> Any:
    """The program of a function that an equation calls once; None for loops and operations."""
    if equation.primitive.name in ("scan", "while", "cond"):
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        found = equation.params.get(name)
        if found is not None:
            return getattr(found, "jaxpr", found)
    return None
