"""Arguments of LossScaleOptimizer that come in several shapes: which optimizer, which scale."""

import warnings
from typing import Any

import keras
import numpy as np

from keras_mp.scaling.presets import resolve
from keras_mp.scaling.state import ScaleConfig


def optimizer_from(given: Any) -> Any:
    """A Keras optimizer from one, its name, or its config."""
    wrong = (
        "`inner_optimizer` must be a keras.optimizers.Optimizer, its name or its config. "
        f"Received: inner_optimizer={given!r} (of type {type(given)})"
    )
    try:
        optimizer = keras.optimizers.get(given)
    except ValueError as error:
        raise ValueError(wrong) from error
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(wrong)
    return optimizer


def unwrapped(optimizer: Any) -> Any:
    """An optimizer without the loss scale wrappers around it: two wrappers would scale twice."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        warnings.warn(
            "The optimizer is wrapped in a LossScaleOptimizer already; its wrapper is replaced by "
            "this one, so that the loss is scaled once. Pass the inner optimizer instead.",
            stacklevel=3,
        )
        return unwrapped(optimizer.inner_optimizer)
    return optimizer


def take_over_fixed_scale(scale: Any, fixed: float | None) -> Any:
    """A fixed ``loss_scale_factor`` of the inner optimizer becomes this wrapper's static scale."""
    if fixed is None:
        return scale
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


def moving_or_not(dynamic: Any, scale: Any, initial: Any, interval: Any) -> tuple[Any, Any, Any]:
    """(scale, initial_scale, growth_interval) by tf.keras' argument ``dynamic``, whose configs of
    a static scale hold an interval, too."""
    yes_or_no("dynamic", dynamic)
    if not dynamic and isinstance(scale, str) and scale == "dynamic":
        return ScaleConfig().initial_scale if initial is None else initial, None, None
    if dynamic != resolve(scale)[1].dynamic:
        raise ValueError(
            "`dynamic` and `scale` contradict each other: leave `dynamic` out. "
            f"Received: dynamic={dynamic!r}, scale={scale!r}"
        )
    return scale, initial, interval


def yes_or_no(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"`{name}` must be True or False. Received: {name}={value!r}")
    return bool(value)


def wanted_masters(value: Any) -> bool | str:
    if isinstance(value, bool) or (isinstance(value, str) and value == "auto"):
        return value
    raise ValueError(
        f'`master_weights` must be "auto", True or False. Received: master_weights={value!r}'
    )


def the_same(name: str, one: Any, other: Any) -> Any:
    if one is not None and one != other:
        raise ValueError(
            f"`{name}` and its Keras name were both given. Received: {one!r} and {other!r}"
        )
    return other
