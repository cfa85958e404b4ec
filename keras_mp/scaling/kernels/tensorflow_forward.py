"""tensorflow: where a traced forward pass overflowed, told by the tensors that leave each layer.

A loss that is not finite makes every gradient so: what is left of the gradients does not tell the
layer. The graph still has the layers' outputs; a conditional looks at them only where the loss is
not finite. Keras opens a name scope a layer call, which is how an operation tells its layer.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tensorflow as tf

from keras_mp.scaling.attribution import INPUTS, layer_path
from keras_mp.scaling.ring import LOSS_FINITE, LOSS_NOT_FINITE, LOSS_NOT_SEEN, overflowed_at

_FED = {"Placeholder", "IteratorGetNext", "IteratorGetNextSync"}  # what brings the batch


@dataclass(frozen=True)
class SeenLoss:
    """What the step under way has seen of its loss.

    Attributes:
        value: The unscaled loss, shape ().
        flags: bool, shape (places,): where the forward pass was not finite; None: nobody looked.
        places: What each flag stands for, as the kernel counts places, in the order of the calls.
    """

    value: Any
    flags: Any = None
    places: Sequence[int] = ()

    def code(self) -> Any:
        """int32, shape (): as the ring codes it."""
        finite = tf.math.is_finite(self.value)
        code = tf.where(finite, LOSS_FINITE, LOSS_NOT_FINITE)
        if self.flags is None:
            return code
        first = tf.gather(tf.constant(self.places, tf.int32), tf.argmax(self.flags))
        return tf.where(tf.reduce_any(self.flags), overflowed_at(first), code)


def code_of(loss: SeenLoss | None) -> Any:
    """int32, shape (): what is known of a loss (None: not seen), as the ring codes it."""
    return tf.constant(LOSS_NOT_SEEN) if loss is None else loss.code()


@dataclass(frozen=True)
class Output:
    """A tensor that leaves a layer. layer: Its path."""

    layer: str
    tensor: Any


def layer_outputs(
    ops: Iterable[Any], layers: Sequence[str], owners: dict[int, str]
) -> list[Output]:
    """The floating tensors that leave a layer (or come with the batch), in the order of the calls.

    Args:
        ops: The operations that a loss is computed with, all of one graph.
        layers: Paths of the layers there are.
        owners: Path of the variable that a tensor (by id) is the resource of.
    """
    reached = set(ops)
    ordered = [op for op in next(iter(reached)).graph.get_operations() if op in reached]
    scopes = {op: _scope(op.name, layers) for op in ordered}
    owned: dict[str, set[str]] = {}
    for op in ordered:
        for tensor in op.inputs:
            if id(tensor) in owners and scopes[op]:
                owned.setdefault(scopes[op], set()).add(layer_path(owners[id(tensor)]))
    leaving = {
        id(tensor)
        for op in ordered
        for tensor in op.inputs
        if tensor.op in reached and scopes[tensor.op] != scopes[op]
    }
    found = []
    for op in ordered:
        fed = op.type in _FED
        if not (scopes[op] or fed):
            continue
        layer = INPUTS if fed else _named(scopes[op], layers, owned.get(scopes[op], set()))
        for tensor in op.outputs:
            if tensor.dtype.is_floating and (fed or id(tensor) in leaving):
                found.append(Output(layer, tensor))
    return found


def where_not_finite(loss: Any, outputs: Sequence[Output]) -> Any:
    """bool, shape (outputs,): which outputs are not finite; all False where the loss is finite."""

    def look() -> Any:
        return tf.stack([tf.logical_not(_all_finite(o.tensor)) for o in outputs])

    return tf.cond(_all_finite(loss), lambda: tf.zeros([len(outputs)], tf.bool), look)


def _all_finite(tensor: Any) -> Any:
    return tf.reduce_all(tf.math.is_finite(tensor))


def _scope(name: str, layers: Sequence[str]) -> str:
    """The scope of the innermost layer call that made an operation; "" outside of all layers."""
    parts = name.split("/")[:-1]
    while parts and not _calls(parts[-1], tuple(layers)):
        parts.pop()
    return "/".join(parts)


def _named(scope: str, layers: Sequence[str], owners: set[str]) -> str:
    """Path of the layer whose call opened a scope.

    A second call's scope has a number behind it, which may make it another layer's name ("dense_1"
    of "dense"): the variables that are read in it tell, then the scopes around it, then its length.
    """
    parts = scope.split("/")

    def agreement(path: str) -> tuple[bool, int, int]:
        around = 0
        for part, name in zip(reversed(parts), reversed(path.split("/")), strict=False):
            if not _is_call(part, name):
                break
            around += 1
        return path in owners, around, len(path)

    return max(_calls(parts[-1], tuple(layers)), key=agreement)


@lru_cache(maxsize=4096)
def _calls(part: str, layers: tuple[str, ...]) -> tuple[str, ...]:
    """Paths of the layers that may have opened a scope of this name."""
    return tuple(path for path in layers if _is_call(part, path.rpartition("/")[2]))


def _is_call(part: str, name: str) -> bool:
    return part == name or re.fullmatch(rf"{re.escape(name)}_\d+", part) is not None
