"""One step of a recurrent cell, as a function of a step's input and the states."""

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any

import keras
from keras import ops

Step = Callable[[Any, Sequence[Any]], tuple[Any, Any]]
_KERAS_OWN = (keras.layers.LSTMCell, keras.layers.GRUCell, keras.layers.SimpleRNNCell)


def steps_of(layer: Any, sequences: Any, masked: bool, training: bool) -> tuple[Any, Step]:
    """What to give the cell at each step, and the cell as a function of it and of the states.

    Rounds where Keras rounds: the product of input and kernel is taken for all steps at once where
    Keras does so, and step by step elsewhere. (Step by step its gradient has more roundings, which
    cancel out in the float32 sum; at once it is faster.)

    Args:
        layer: A recurrent layer, within the scope that gives its cell's weights their values.
        sequences: Shape (batch, time, features).
        masked: Whether there is a mask.
        training: Whether dropout drops.

    Returns:
        Shape (batch, time, ...), and ``step(inputs, states) -> (output, new states)``.
    """
    cell = layer.cell
    # torch's hooks on the cell, which only a call runs.
    hooked = getattr(cell, "_forward_hooks", None) or getattr(cell, "_forward_pre_hooks", None)
    if type(cell) not in _KERAS_OWN or hooked or cell.activity_regularizer:
        return sequences, _called(cell, cell, training)
    write_out = _WRITTEN_OUT.get(type(cell))
    at_once = (
        write_out is not None
        and not masked
        and getattr(layer, "use_cudnn", False)
        and not cell.recurrent_dropout
        and cell.implementation == 2
        and getattr(cell, "reset_after", True)
    )
    if not at_once or write_out is None:
        # Without what Keras does around a layer's call, which costs more than a step's arithmetic:
        # the input has the right dtype, and the weights are cast.
        return sequences, _called(cell.call, cell, training)
    if training and cell.dropout:
        sequences = sequences * ops.expand_dims(cell.get_dropout_mask(sequences[:, 0]), 1)
    return write_out(cell, ops.matmul(sequences, cell.kernel))


def _called(function: Any, cell: Any, training: bool) -> Step:
    takes_training = "training" in signature(cell.call).parameters
    return partial(function, training=training) if takes_training else function


def _lstm(cell: Any, projected: Any) -> tuple[Any, Step]:
    def step(x: Any, states: Sequence[Any]) -> tuple[Any, Any]:
        h, c = states
        gates = ops.split(x + ops.matmul(h, cell.recurrent_kernel), 4, axis=1)
        i, f, o = (cell.recurrent_activation(gates[number]) for number in (0, 1, 3))
        c = f * c + i * cell.activation(gates[2])
        h = o * cell.activation(c)
        return h, [h, c]

    return projected + cell.bias if cell.use_bias else projected, step


def _gru(cell: Any, projected: Any) -> tuple[Any, Step]:
    def step(x: Any, states: Sequence[Any]) -> tuple[Any, Any]:
        h = states[0]
        inner = ops.matmul(h, cell.recurrent_kernel)
        if cell.use_bias:
            inner = inner + cell.bias[1]
        x_z, x_r, x_h = ops.split(x, 3, axis=-1)
        h_z, h_r, h_h = ops.split(inner, 3, axis=-1)
        z, r = cell.recurrent_activation(x_z + h_z), cell.recurrent_activation(x_r + h_r)
        h = z * h + (1 - z) * cell.activation(x_h + r * h_h)
        return h, [h]

    return projected + cell.bias[0] if cell.use_bias else projected, step


_WRITTEN_OUT = {keras.layers.LSTMCell: _lstm, keras.layers.GRUCell: _gru}
