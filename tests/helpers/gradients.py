"""A layer's results and gradients on any backend, as float64 arrays of the host."""

from typing import Any

import keras
import numpy as np


def gradients(layer: Any, x: Any, weight: Any, **arguments: Any) -> tuple[Any, list[Any]]:
    """What a layer gives for ``x``, and the gradients of ``sum(result * weight)`` in float32.

    Args:
        layer: A built layer.
        x: Its input, one array.
        weight: Of the result's shape.
        arguments: For the call; arrays become tensors.

    Returns:
        The result, and the gradients of x and of the trainable weights, in float64.
    """
    arguments = {
        name: keras.ops.convert_to_tensor(a) if isinstance(a, np.ndarray) else a
        for name, a in arguments.items()
    }

    weight = keras.ops.convert_to_tensor(weight)

    def loss_of(x: Any) -> tuple[Any, Any]:
        result = layer(x, **arguments)
        return keras.ops.sum(keras.ops.cast(result, "float32") * weight), result

    result, found = _BACKENDS[keras.backend.backend()](
        layer, keras.ops.convert_to_tensor(x), loss_of
    )
    return _host(result), [_host(gradient) for gradient in found]


def _torch(layer: Any, x: Any, loss_of: Any) -> tuple[Any, list[Any]]:
    import torch

    x = x.detach().clone().requires_grad_()
    loss, result = loss_of(x)
    wanted = [x, *(v.value for v in layer.trainable_variables)]
    return result.detach(), list(torch.autograd.grad(loss, wanted))


def _tensorflow(layer: Any, x: Any, loss_of: Any) -> tuple[Any, list[Any]]:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x)
        loss, result = loss_of(x)
    return result, tape.gradient(loss, [x, *(v.value for v in layer.trainable_variables)])


def _jax(layer: Any, x: Any, loss_of: Any) -> tuple[Any, list[Any]]:
    import jax

    variables = layer.trainable_variables
    others = layer.non_trainable_variables

    def stateless(values: Any, x: Any) -> tuple[Any, Any]:
        mapping = zip(variables, values, strict=True)
        with keras.StatelessScope(state_mapping=list(mapping)) as scope:
            loss, result = loss_of(x)
        return loss, (result, [scope.get_current_value(v) for v in others])

    (_, (result, state)), (values, dx) = jax.value_and_grad(
        stateless, argnums=(0, 1), has_aux=True
    )([v.value for v in variables], x)
    for variable, value in zip(others, state, strict=True):
        if value is not None:
            variable.assign(value)
    return result, [dx, *values]


def _host(tensor: Any) -> Any:
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")), "float64")


_BACKENDS = {"torch": _torch, "tensorflow": _tensorflow, "jax": _jax}
