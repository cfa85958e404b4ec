"""tensorflow: control flow whose branches only have effects, and Python called from a graph."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def either(condition: Any, yes: Callable[[], None], no: Callable[[], None]) -> None:
    """A conditional of which only the effects matter."""

    def both(fn: Callable[[], None], value: bool) -> Callable[[], Any]:
        def branch() -> Any:
            fn()
            return tf.constant(value)

        return branch

    tf.cond(condition, both(yes, True), both(no, False))


def in_python(fn: Callable[..., Any], *args: Any) -> None:
    """Call ``fn`` with eager tensors, from a graph or from eager code."""
    if tf.executing_eagerly():
        fn(*args)
        return
    flat = tf.nest.flatten(list(args), expand_composites=True)
    tensors = [x for x in flat if isinstance(x, tf.Tensor)]  # and not the variables among them

    def call(*values: Any) -> None:
        rest = iter(values)
        filled = [next(rest) if isinstance(x, tf.Tensor) else x for x in flat]
        fn(*tf.nest.pack_sequence_as(list(args), filled, expand_composites=True))

    tf.py_function(call, tensors, [])
