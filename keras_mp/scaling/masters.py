"""Float32 masters of half-precision variables, so that no update is swallowed.

A float16 or bfloat16 weight w keeps its value when an update is smaller than half the gap to its
neighbour: with bfloat16's 8 bits that is 94 % of the weights of a small MLP trained with a learning
rate of 0.001, and no loss scale cures it. Micikevicius et al. 2018, 3.1 (Apex: O2): keep a float32
copy, update that, and give the model the rounded value.

For whoever writes a kernel
---------------------------
Nothing changes. The optimizer calls, around the kernel,

    masters.before()                               # a master that the model left behind is renewed
    kernel.apply(masters.gradients(grads), masters.targets_of(variables))
    masters.after()                                # the model gets the rounded masters

and, without side effects, ``masters.stateless(kernel.stateless_apply, ...)``. The inner optimizer
is built on ``targets``: the master of each half-precision variable, and the other variables as they
are; a kernel sees only these. ``optimizer._get_variable_index`` knows the targets as well as the
model's variables. So a kernel must use, where it needs *its* variables, the ones that it is given
or ``optimizer._targets`` (in the order of ``optimizer._trainable_variables``), and the inner
optimizer's own as ``inner.variables``: the masters are in ``optimizer.variables`` too, at the end.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp._keras_internals import share_weight_decay

HALF = ("float16", "bfloat16")


def masters_for(optimizer: Any, variables: list[Any], wanted: Any) -> "Masters | None":
    """The masters that these trainable variables need, or None where they need none.

    Args:
        optimizer: The LossScaleOptimizer.
        variables: Its trainable variables.
        wanted: "auto", True or False: the argument ``master_weights``.

    Raises:
        ValueError: With ``wanted=True`` where the inner optimizer is built already.
    """
    half = [v for v in variables if _needs_master(v)]
    if wanted is False or not half:
        return None
    if optimizer.inner_optimizer.built:
        said = (
            f"{len(half)} of {len(variables)} variables are in half precision, but the inner "
            "optimizer is built already, with half-precision slots: there can be no float32 "
            "masters, and small updates will be lost. Wrap an optimizer that is not built yet."
        )
        if wanted is True:
            raise ValueError(f"{said} Received: master_weights=True")
        warnings.warn(said, stacklevel=3)
        return None
    return Masters(optimizer, variables)


class Masters:
    """The masters of an optimizer's half-precision variables.

    Attributes:
        by_index: Master (float32 variable) of the i-th trainable variable, where it has one.
        variables: The masters, in order.
        targets: What the inner optimizer updates: the master, or the variable itself.
    """

    def __init__(self, optimizer: Any, variables: list[Any]):
        self._model_variables = variables
        self._index = optimizer._var_key
        self.by_index = {i: _master_of(v) for i, v in enumerate(variables) if _needs_master(v)}
        self.variables = list(self.by_index.values())
        self.targets = [self.by_index.get(i, v) for i, v in enumerate(variables)]
        self._of = {optimizer._var_key(v): t for v, t in zip(variables, self.targets, strict=True)}
        self._pairs = [(variables[i], master) for i, master in self.by_index.items()]
        self._torch: Any = None
        if keras.backend.backend() == "torch":
            from keras_mp.scaling.kernels.torch_masters import TorchMasters

            self._torch = TorchMasters(self._pairs, renewed)
        for variable, master in self._pairs:
            share_weight_decay(optimizer.inner_optimizer, variable, master)

    def targets_of(self, variables: Iterable[Any]) -> list[Any]:
        """The targets of these variables of the model (a variable that is unknown, itself)."""
        return [self._of.get(self._index(v), v) for v in variables]

    def gradients(self, grads: Iterable[Any], variables: Iterable[Any]) -> list[Any]:
        """The gradients in float32 where there is a master. Before unscaling: a gradient that is a
        normal number only because it is scaled would be lost in half precision."""
        variables = list(variables)
        targets = self.targets_of(variables)
        if self._torch is not None:
            return self._torch.gradients(list(grads), targets)
        return _cast(grads, variables, targets)

    def before(self) -> None:
        """Renew masters whose variable was changed from outside (loaded, assigned, averaged)."""
        if self._torch is not None:
            self._torch.before()
            return
        _assign_all([(m, v, lambda m, v: renewed(m, v)) for v, m in self._pairs])

    def after(self) -> None:
        """Give the model the rounded masters. After a skipped step these are what it has."""
        if self._torch is not None:
            self._torch.after()
            return
        _assign_all([(v, m, lambda v, m: ops.cast(m, v.dtype)) for v, m in self._pairs])

    def reset(self) -> None:
        """Take the model's values, as at the start."""
        if self._torch is not None:
            self._torch.reset()
            return
        _assign_all([(m, v, lambda m, v: ops.cast(v, "float32")) for v, m in self._pairs])

    def stateless(
        self,
        stateless_apply: Callable[..., tuple[list[Any], list[Any]]],
        optimizer_values: list[Any],
        grads: list[Any],
        trainable_values: list[Any],
    ) -> tuple[list[Any], list[Any]]:
        """``before``, a kernel's ``stateless_apply``, ``after``, on values.

        Args:
            stateless_apply: Of the kernel, on its own values.
            optimizer_values: Values of ``optimizer.variables``; the masters' are the last.
            grads: One a trainable variable, or None.
            trainable_values: Values of the trainable variables.
        """
        count = len(self.variables)
        own, masters = optimizer_values[:-count], optimizer_values[-count:]
        values = list(trainable_values)
        for i, master in zip(self.by_index, masters, strict=True):
            values[i] = renewed(master, trainable_values[i])
        grads = _cast(grads, self._model_variables, self.targets)
        new, own = stateless_apply(own, grads, values)
        new = list(new)
        masters = [new[i] for i in self.by_index]
        for i in self.by_index:
            new[i] = ops.cast(new[i], trainable_values[i].dtype)
        return new, [*own, *masters]

    def load(self, values: Mapping[str, Any]) -> list[str]:
        """Take ``master_<i>`` from a checkpoint; returns complaints (clauses of a sentence).

        A master that does not fit the model's value loses to it at the next step anyway.
        """
        complaints = []
        for index, master in self.by_index.items():
            value = values.get(f"master_{index}")
            if value is None:
                problem = "is missing"
            elif tuple(np.shape(value)) != tuple(master.shape):
                problem = f"has the shape {np.shape(value)}, not {tuple(master.shape)}"
            else:
                master.assign(np.asarray(value, np.float32))
                continue
            complaints.append(f"the master of `{master.path}` {problem}: the weight itself is used")
        return complaints


def renewed(master: Any, value: Any) -> Any:
    """The master where it rounds to the variable's value, else that value. Elementwise, float32.

    The comparison is of bits and not of numbers: XLA may leave out a rounding to half precision
    that is followed by arithmetic, and would find no master equal to its rounded self.
    """
    dtype = keras.backend.standardize_dtype(value.dtype)
    same = ops.equal(ops.view(ops.cast(master, dtype), "int16"), ops.view(value, "int16"))
    return ops.where(same, master, ops.cast(value, "float32"))


def _cast(grads: Iterable[Any], variables: list[Any], targets: list[Any]) -> list[Any]:
    """The gradients, those of variables with a master in float32."""
    return [
        grad if grad is None or target is variable else ops.cast(grad, "float32")
        for grad, variable, target in zip(grads, variables, targets, strict=True)
    ]


def _needs_master(variable: Any) -> bool:
    # A variable that is overwritten with its gradient (float8's scales) takes no small updates.
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return dtype in HALF and not getattr(variable, "overwrite_with_gradient", False)


def _master_of(variable: Any) -> Any:
    """A float32 copy under the same path and name.

    Optimizers name their slots by the path and choose by path and name (weight decay, Muon,
    MultiOptimizer), and a layout map finds the sharding by it: all as for the variable itself.
    """
    path = getattr(variable, "path", variable.name.partition(":")[0])
    scope, _, name = path.rpartition("/")
    parent, _, leaf = scope.rpartition("/")
    with keras.name_scope(leaf, override_parent=parent) if leaf else nullcontext():
        master = keras.Variable(
            initializer=lambda shape, dtype: _first_value(variable, dtype),
            shape=tuple(variable.shape),
            dtype="float32",
            trainable=False,
            autocast=False,
            name=name,
        )
    master.constraint = getattr(variable, "constraint", None)
    return master


def _first_value(variable: Any, dtype: str) -> Any:
    """The variable's value; where it has none yet, NaN, which equals no value: ``before`` sets it.

    Inside a ``tf.function`` the value would make the initializer depend on another variable, and
    TensorFlow, which cannot lift it out then, would run the first, unfinished trace of the step.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        if tf.inside_function():
            return ops.full(tuple(variable.shape), float("nan"), dtype)
    return ops.cast(ops.convert_to_tensor(variable), dtype)


def _assign_all(updates: list[tuple[Any, Any, Callable[[Any, Any], Any]]]) -> None:
    """variable.assign(compute(variable, source)), for each (variable, source, compute)."""
    if keras.backend.backend() == "tensorflow":
        from keras_mp.scaling.kernels.tensorflow_masters import assign_all

        assign_all(updates)
        return
    for variable, source, compute in updates:
        variable.assign(compute(variable.value, source.value))
