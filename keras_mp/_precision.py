"""What losses and metrics do alike with dtypes."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_mp._keras_internals import carry_notes

HALF = ("float16", "bfloat16")


def is_half(value: Any) -> bool:
    """Whether a tensor is in half precision."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and keras.backend.standardize_dtype(dtype) in HALF


def in_float32(value: Any) -> Any:
    """A tensor in float32 where it was in half precision; anything else as it is."""
    return carry_notes(value, ops.cast(value, "float32")) if is_half(value) else value


def function_in_float32(stock: Callable[..., Any], module: str) -> Callable[..., Any]:
    """A loss or metric function of Keras that takes half precision and computes in float32.

    Args:
        stock: ``(y_true, y_pred, ...) -> tensor``.
        module: Where the made one stands; files know it by that.
    """

    @functools.wraps(stock)
    def made(y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        return stock(in_float32(y_true), in_float32(y_pred), *args, **kwargs)

    made.__module__ = module
    return keras.saving.register_keras_serializable(package=module)(made)


def widest(
    init: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a Keras loss or metric, with ``dtype`` "float32" where it would be half.

    Args:
        init: The bound ``__init__`` that they are for.
    """
    bound = inspect.signature(init).bind(*args, **kwargs)
    given = bound.arguments.get("dtype", kwargs.get("dtype"))
    compute = keras.dtype_policies.get(given or keras.config.floatx()).compute_dtype
    if compute not in HALF:
        return args, kwargs
    if "dtype" in bound.arguments:
        bound.arguments["dtype"] = "float32"
        return bound.args, bound.kwargs
    return args, {**kwargs, "dtype": "float32"}
