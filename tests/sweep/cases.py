"""How a case of the sweep is written down, and the numbers that are put into it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sweep.precision import exact

ORDINARY = "ordinary"
# Magnitudes: 2^13 is far from float16's end itself, and the sum of nine such numbers, or the square
# of one, is beyond it; squares of 2^-13 are below its beginning.
SCALES = {ORDINARY: 1.0, "large": 2.0**13, "tiny": 2.0**-13}
MAGNITUDES = (*SCALES, "zeros", "constant")


@dataclass(frozen=True)
class Floats:
    """Floating numbers, drawn from a normal distribution and exact in both half formats.

    Attributes:
        kind: "any"; "positive"; "unit" (between 0 and 1, of any magnitude's case); "shares" (sum to
            1 over the last axis).
        fixed: The same in every magnitude.
        label: Not part of what is computed in half precision: stays float32 in every case.
        raw: Not rounded to half precision's numbers (raw features).
    """

    shape: tuple[int, ...]
    kind: str = "any"
    fixed: bool = False
    label: bool = False
    raw: bool = False
    low: float | None = None
    high: float | None = None

    def draw(self, rng: np.random.Generator, magnitude: str) -> np.ndarray:
        if self.low is not None:
            values = rng.uniform(self.low, self.high, self.shape)
        elif self.kind == "unit":
            values = rng.uniform(0.02, 0.98, self.shape)
        elif self.kind == "shares":
            values = rng.gamma(1.0, size=self.shape) + 0.02
            values = values / values.sum(-1, keepdims=True)
        else:
            values = np.clip(rng.normal(size=self.shape), -3, 3)
        if self.kind == "positive":
            values = np.abs(values) + 0.1
        if not self.fixed and self.kind in ("any", "positive"):
            if magnitude in SCALES:
                values = values * SCALES[magnitude]
            else:
                values = np.full(self.shape, {"zeros": 0.0, "constant": 3.0}[magnitude])
        return values.astype("float32") if self.raw else exact(values)


@dataclass(frozen=True)
class Ints:
    shape: tuple[int, ...]
    high: int = 4
    low: int = 0
    dtype: str = "int32"

    def draw(self, rng: np.random.Generator, magnitude: str) -> np.ndarray:
        return rng.integers(self.low, self.high, self.shape).astype(self.dtype)


@dataclass(frozen=True)
class Bools:
    """A mask: drawn, or all of it True or False."""

    shape: tuple[int, ...]
    all_: bool | None = None

    def draw(self, rng: np.random.Generator, magnitude: str) -> np.ndarray:
        if self.all_ is not None:
            return np.full(self.shape, self.all_)
        return rng.random(self.shape) < 0.6


@dataclass(frozen=True)
class Given:
    """These values."""

    values: Any
    label: bool = False

    def draw(self, rng: np.random.Generator, magnitude: str) -> np.ndarray:
        return np.asarray(self.values)


@dataclass(frozen=True)
class Case:
    """One way to use a public name.

    Attributes:
        make: A layer's factory; a function itself.
        inputs: What goes in.
        call: How: ``call(layer, *tensors)``. A layer is called with its inputs, one alone or all in
            a list, if not given.
        label: What is special about it.
        magnitudes: Which of ``MAGNITUDES`` are tried.
        roundings: As ``precision`` has it.
        each: A function of single elements.
        random: Draws numbers, others in another dtype: nothing is compared but that the result is
            finite and of the right shape and type.
        gradient: Whether it has one.
        training: Called as in training.
        vanishing: Gradients that are zero but for rounding (a softmax does not change when all its
            logits do): their numbers in the list of inputs and variables.
        keeps_dtype: Hands on something in the dtype that it came in.
        backends: Where Keras has it.
    """

    make: Callable[..., Any]
    inputs: tuple[Any, ...]
    call: Callable[..., Any] | None = None
    label: str = ""
    magnitudes: tuple[str, ...] = (*SCALES, "zeros")
    roundings: int = 4
    each: bool = False
    random: bool = False
    gradient: bool = True
    training: bool = True
    vanishing: tuple[int, ...] = ()
    keeps_dtype: bool = False
    backends: tuple[str, ...] = ("torch", "tensorflow", "jax")

    def draw(self, magnitude: str) -> list[np.ndarray]:
        rng = np.random.default_rng(7)
        return [spec.draw(rng, magnitude) for spec in self.inputs]


def case(make: Callable[..., Any], *inputs: Any, **options: Any) -> Case:
    """A case; a bare shape stands for ``Floats`` of that shape."""
    specs = tuple(Floats(i) if isinstance(i, tuple) else i for i in inputs)
    return Case(make, specs, **options)
