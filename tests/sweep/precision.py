"""How far a half-precision result may lie from float32's: derived, not fitted.

A computation in half precision rounds what goes in, what comes out and what lies between, each by
at most the format's unit roundoff u (and by its smallest number, where it runs out of exponents).
Sums of products, and sums, are done in float32 (the 2018 paper's third technique), so the number of
terms of a sum does not count. How much one rounding of the inputs moves the result, the function's
own condition, is measured: float32 again, with each number moved up or down by u. Then

    |half - float32| <= roundings * (moved + u * |float32| + smallest)

where ``roundings`` counts the places on the way where numbers are rounded: a cast of the inputs and
the weights, a product, a bias, an activation; more in layers with steps.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Half:
    """A half-precision format.

    Attributes:
        unit: Unit roundoff: half the distance from 1 to the next number.
        largest: Largest finite number.
        smallest: Smallest number that is not rounded to zero at all.
    """

    name: str
    unit: float
    largest: float
    smallest: float


FLOAT16 = Half("float16", 2.0**-11, 65504.0, 2.0**-24)
BFLOAT16 = Half("bfloat16", 2.0**-8, 3.3895e38, 2.0**-126)  # backends flush its subnormals
FLOAT32_LARGEST = 3.4028e38
FORMATS = {half.name: half for half in (FLOAT16, BFLOAT16)}


def exact(array: np.ndarray) -> np.ndarray:
    """The nearest numbers that both half formats hold: what goes in is then the same for all."""
    bfloat16 = np.asarray(array, "float32").astype(ml_dtypes.bfloat16).astype("float32")
    with np.errstate(over="ignore"):
        return bfloat16.astype("float16").astype("float32")


def shaken(array: np.ndarray, seed: int) -> np.ndarray:
    """Each number moved up or down by float16's unit roundoff and half its smallest number."""
    rng = np.random.default_rng(seed)
    up = rng.choice([-1.0, 1.0], size=np.shape(array))
    moved = np.asarray(array, "float64") * (1 + up * FLOAT16.unit) + up * FLOAT16.smallest / 2
    return moved.astype("float32")


def is_floating(array: np.ndarray) -> bool:
    return np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.complexfloating)


def fits(array: np.ndarray, half: Half) -> bool:
    """Whether all of it are numbers of the format."""
    return not is_floating(array) or bool(np.all(np.abs(array) <= half.largest))


def difference(
    reference: np.ndarray,
    got: np.ndarray,
    moved: list[np.ndarray],
    half: Half,
    roundings: int,
    *,
    each: bool = False,
    smallest: float | None = None,
    largest: float | None = None,
) -> str | None:
    """What is wrong with a half-precision result, in words; None if nothing is.

    Where float32's own result is not finite, or no number of the format, nothing is asked.

    Args:
        reference: float32's result.
        moved: float32's results for shaken inputs.
        each: Every element against its own bound (functions of single elements); otherwise all of
            them against the largest.
        smallest: The format's smallest number in the result's units, where the result was scaled.
        largest: Beyond it nothing is asked. The format's largest number if not given.
    """
    if reference.shape != got.shape:
        return f"shape {got.shape} instead of {reference.shape}"
    if not is_floating(reference):
        wrong = int(np.sum(reference != got))
        return f"{wrong} of {got.size} differ" if wrong else None
    with np.errstate(all="ignore"):
        largest = half.largest if largest is None else largest
        expected = np.isfinite(reference) & (np.abs(reference) <= largest)
        if not expected.any():
            return None
        ratio = half.unit / FLOAT16.unit
        condition = np.max([np.abs(m - reference) for m in moved] + [np.zeros(reference.shape)], 0)
        condition = np.where(np.isfinite(condition), condition, np.inf) * ratio
        smallest = half.smallest if smallest is None else smallest
        bound = roundings * (condition + half.unit * np.abs(reference) + smallest)
        if not each:
            bound = np.full(reference.shape, np.max(bound[expected]))
        # So near the format's end that rounding may reach it.
        expected &= np.abs(reference) + bound <= largest
        lost = expected & ~np.isfinite(got)
        if lost.any():
            return f"{int(lost.sum())} of {got.size} are not finite"
        error = np.where(expected, np.abs(got - reference), 0)
        if np.all((error <= bound) | ~expected):
            return None
        worst = np.unravel_index(np.argmax(np.where(expected, error - bound, -np.inf)), error.shape)
        allowed = bound[worst]
        return f"{got[worst]:.6g} instead of {reference[worst]:.6g}, off by more than {allowed:.2g}"
