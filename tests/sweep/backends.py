"""Values and gradients of a function of arrays, on whichever backend this process has."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops, tree

BACKEND = keras.backend.backend()


def host(tensor: Any) -> np.ndarray:
    """A tensor as an array; half precision as float32."""
    if isinstance(tensor, (np.ndarray, np.generic, int, float, bool, str, bytes)):
        return np.asarray(tensor)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if dtype in ("float16", "bfloat16"):
        tensor = ops.cast(tensor, "float32")
    return np.array(ops.convert_to_numpy(tensor))


def flat(structure: Any) -> list[Any]:
    return [leaf for leaf in tree.flatten(structure) if leaf is not None]


def is_float(tensor: Any) -> bool:
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype))


def pulled_back(outputs: list[Any], cotangents: Sequence[np.ndarray]) -> Any:
    """The sum of all floating outputs times their cotangents: a loss, in float32."""
    total = 0.0
    for output, cotangent in zip([o for o in outputs if is_float(o)], cotangents, strict=True):
        total = total + ops.sum(ops.cast(output, "float32") * ops.convert_to_tensor(cotangent))
    return total


def forward(function: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    """The function's outputs, as a flat list."""
    if BACKEND == "torch":
        import torch

        with torch.no_grad():
            return flat(function(*inputs))
    return flat(function(*inputs))


def gradients(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    cotangents: Sequence[np.ndarray],
    variables: Sequence[Any] = (),
    constant: Sequence[int] = (),
) -> list[np.ndarray | None]:
    """Gradients of ``pulled_back`` with respect to the floating inputs, then the variables.

    Inputs numbered in ``constant`` are left out.

    On jax variables are not asked for: there a layer's are arguments like any other.
    """
    floating = [
        i for i, x in enumerate(inputs) if hasattr(x, "dtype") and is_float(x) and i not in constant
    ]
    values = list(inputs)
    if BACKEND == "torch":
        import torch

        leaves = []
        for i in floating:
            values[i] = values[i].detach().clone().requires_grad_()
            leaves.append(values[i])
        leaves += [v.value for v in variables]
        with torch.enable_grad():
            loss = pulled_back(flat(function(*values)), cotangents)
            if not getattr(loss, "requires_grad", False):
                return [None] * len(leaves)
            found = torch.autograd.grad(loss, leaves, allow_unused=True)
    elif BACKEND == "tensorflow":
        import tensorflow as tf

        leaves = [values[i] for i in floating]
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            loss = pulled_back(flat(function(*values)), cotangents)
        sources = leaves + [v.value for v in variables]
        found = tape.gradient(loss, sources) if hasattr(loss, "shape") else [None] * len(sources)
        found = [tf.convert_to_tensor(g) if g is not None else None for g in found]
    else:
        import jax

        def loss_of(leaves: list[Any]) -> Any:
            for i, leaf in zip(floating, leaves, strict=True):
                values[i] = leaf
            return pulled_back(flat(function(*values)), cotangents)

        found = jax.grad(loss_of)([values[i] for i in floating]) if floating else []
    return [None if g is None else host(g) for g in found]
