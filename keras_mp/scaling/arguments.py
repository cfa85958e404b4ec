"""Arguments of LossScaleOptimizer that come in several shapes: which optimizer, which scale."""

import warnings
from typing import Any

import keras
import numpy as np


def unwrapped(optimizer: Any) -> Any:
    """An optimizer without the loss scale wrappers around it: two wrappers would scale twice."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "`inner_optimizer` must be a keras.optimizers.Optimizer, its name or its config. "
            f"Received: inner_optimizer={optimizer!r} (of type {type(optimizer)})"
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        warnings.warn(
            "The optimizer is wrapped in a LossScaleOptimizer already; its wrapper is replaced by "
            "this one, so that the loss is scaled once. Pass the inner optimizer instead.",
            stacklevel=3,
        )
        return unwrapped(optimizer.inner_optimizer)
    return optimizer


def take_over_fixed_scale(scale: Any, fixed: float) -> Any:
    """A fixed ``loss_scale_factor`` of the inner optimizer becomes this wrapper's static scale."""
    if scale != "dynamic" and scale != fixed:
        raise ValueError(
            "The inner optimizer has a fixed `loss_scale_factor` and the wrapper another scale: "
            "remove one of them. "
            f"Received: scale={scale!r}, inner_optimizer.loss_scale_factor={fixed!r}"
        )
    warnings.warn(
        f"The inner optimizer's `loss_scale_factor` of {fixed} becomes the wrapper's static scale "
        f"(scale={fixed}); the inner optimizer's own is set to None, so that gradients are "
        "unscaled once. Pass scale= to LossScaleOptimizer instead.",
        stacklevel=3,
    )
    return float(np.float32(fixed))


def the_same(name: str, one: Any, other: Any) -> Any:
    if one is not None and one != other:
        raise ValueError(
            f"`{name}` and its Keras name were both given. Received: {one!r} and {other!r}"
        )
    return other
