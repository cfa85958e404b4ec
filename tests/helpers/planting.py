"""Models in which the gradient overflows where, and when, the data say so."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops


def plant(x: Any, codes: Any, code: int) -> Any:
    """x; its gradient is infinite where the batch's codes hold ``code``."""
    factor = ops.where(ops.any(ops.equal(codes, code)), float("inf"), 1.0)

    @ops.custom_gradient
    def planted(x: Any, factor: Any) -> Any:
        def gradient(*args: Any, upstream: Any = None) -> Any:
            upstream = args[0] if upstream is None else upstream
            return upstream * factor, ops.zeros_like(factor)

        return x * 1.0, gradient

    return planted(x, factor)


class Deep(keras.Model):
    """Its layers stand in the order opposite to that of their calls."""

    planted = ("first", "block/second", "third")

    def __init__(self) -> None:
        super().__init__(name="deep")
        self.head = layers.Dense(1, name="head")
        self.third = layers.Dense(3, name="third")
        self.block = keras.Sequential([layers.Dense(3, name="second")], name="block")
        self.first = layers.Dense(3, name="first")

    def call(self, x: Any) -> Any:
        h = plant(self.first(x[:, 1:]), x[:, 0], 0)
        h = plant(self.block(ops.tanh(h)), x[:, 0], 1)
        return self.head(plant(self.third(h), x[:, 0], 2))


class Branched(keras.Model):
    """A residual block: the way around it is shorter than the one through it."""

    planted = ("stem", "inner", "outer", "after")

    def __init__(self) -> None:
        super().__init__(name="branched")
        self.head = layers.Dense(1, name="head")
        self.outer = layers.Dense(3, name="outer")
        self.inner = layers.Dense(3, name="inner")
        self.after = layers.Dense(3, name="after")
        self.stem = layers.Dense(3, name="stem")

    def call(self, x: Any) -> Any:
        h = plant(self.stem(x[:, 1:]), x[:, 0], 0)
        inner = plant(self.inner(ops.tanh(h)), x[:, 0], 1)
        h = plant(self.outer(ops.tanh(inner)), x[:, 0], 2) + h
        return self.head(plant(self.after(h), x[:, 0], 3))


class Regularized(keras.Model):
    """The first layer's kernel is near the loss by its regularizer, too."""

    planted = ("first", "second")

    def __init__(self) -> None:
        super().__init__(name="regularized")
        self.head = layers.Dense(1, name="head")
        self.second = layers.Dense(3, name="second")
        self.first = layers.Dense(3, kernel_regularizer="l2", name="first")

    def call(self, x: Any) -> Any:
        h = plant(self.first(x[:, 1:]), x[:, 0], 0)
        return self.head(plant(self.second(ops.tanh(h)), x[:, 0], 1))


def planted_data(places: int, size: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """One batch a place, in the order of the forward pass, and a sound one."""
    x = np.random.default_rng(0).normal(size=(size * (places + 1), 4)).astype("float32")
    x[:, 0] = np.repeat(np.arange(places + 1), size)
    return x, x[:, :1] * 0.25
