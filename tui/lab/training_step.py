"""One step of one weight, in NumPy, every intermediate rounded as the chosen format rounds it.

The weight is used by 16,384 samples (positions of a convolution, say). Each has an input between 0
and 1, as after a ReLU, and 1,440 outputs share the mean of the squared errors: the demo's net has
as many, and it is what makes each output's gradient small.

    output = weight * input;  loss = mean((output - target)^2);  weight -= rate * d loss / d weight

The paper's three techniques (Micikevicius et al. 2018, section 3) can each be left out: float32
masters, loss scaling, and sums of half-precision products in float32.
"""

import math
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from keras_mp.numerics.formats import Format, get_format, round_to

SAMPLES = 16_384
OUTPUTS = SAMPLES * 1_440
WEIGHT = 0.75
# What the targets were made with: the weight has to come down to it.
TRUE_WEIGHT = 0.7
NOISE = 0.02


@dataclass(frozen=True)
class Setting:
    """How a step is computed.

    Attributes:
        format: Name of the half-precision format.
        scale: The loss is multiplied by it, unless ``scaling`` is off.
        rate: Learning rate of plain gradient descent.
        masters: Keep and update the weight in float32.
        scaling: Multiply the loss, and divide the gradient again.
        float32_sums: Add products in float32; off adds them in the format.
    """

    format: str = "float16"
    scale: float = 2.0**15
    rate: float = 0.1
    masters: bool = True
    scaling: bool = True
    float32_sums: bool = True

    @property
    def used_scale(self) -> float:
        return self.scale if self.scaling else 1.0


@dataclass(frozen=True)
class StepResult:
    """Everything that a step computed; of the first sample where a sample is meant.

    Attributes:
        stored: The weight as it is stored. cast: In the format.
        x, output, target: Of the first sample, in the format.
        loss: Mean over all outputs, float32.
        delta: Gradient of the scaled loss by the first sample's output, in the format;
            delta_exact: the same without rounding.
        zeros: Share of the samples whose ``delta`` became zero.
        summed: The weight's scaled gradient: sum of input * delta, in the format.
        sum_exact: Without any rounding.
        unscaled: float32. finite: Whether the step is taken.
        update: rate * unscaled. new: The stored weight afterwards. exact_new: Of a step in float64
            from the same stored weight.
    """

    stored: float
    cast: float
    x: float
    output: float
    target: float
    loss: float
    delta: float
    delta_exact: float
    zeros: float
    summed: float
    sum_exact: float
    unscaled: float
    finite: bool
    update: float
    new: float
    exact_new: float

    @property
    def moved(self) -> float:
        return self.new - self.stored

    @property
    def exact_move(self) -> float:
        return self.exact_new - self.stored

    @property
    def error(self) -> float:
        """By which share of the exact move this one is off; 1 for a weight that does not move."""
        return abs(self.moved - self.exact_move) / abs(self.exact_move)


@cache
def samples() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(inputs, targets); the same every time."""
    rng = np.random.default_rng(0)
    inputs = rng.uniform(0, 1, SAMPLES)
    return inputs, TRUE_WEIGHT * inputs + rng.normal(0, NOISE, SAMPLES)


def take(weight: float, setting: Setting) -> StepResult:
    """Compute one step from ``weight``."""
    return _take(float(weight), setting)


@lru_cache(maxsize=256)
def _take(weight: float, setting: Setting) -> StepResult:
    fmt = get_format(setting.format)
    inputs, targets = samples()
    stored = float(np.float32(weight)) if setting.masters else float(round_to(weight, fmt))
    cast = float(round_to(stored, fmt))
    x = round_to(inputs, fmt).astype(np.float64)
    t = round_to(targets, fmt).astype(np.float64)
    output = round_to(cast * x, fmt).astype(np.float64)
    scale = setting.used_scale
    exact_delta = scale * 2.0 * (output - t) / OUTPUTS
    delta = round_to(exact_delta, fmt).astype(np.float64)
    terms = x * delta
    with np.errstate(over="ignore", invalid="ignore"):
        if setting.float32_sums:
            # NumPy adds pairwise, as the blocks of a matrix unit do.
            total = float(np.sum(terms.astype(np.float32), dtype=np.float32))
        else:
            total = add_up(round_to(terms, fmt), fmt)
    summed = float(round_to(total, fmt))
    finite = math.isfinite(summed)
    unscaled = float(np.float32(summed / scale)) if finite else summed
    update = float(np.float32(setting.rate * unscaled)) if finite else summed
    new = stored
    if finite:
        new = (
            float(np.float32(stored - update))
            if setting.masters
            else float(round_to(stored - float(round_to(update, fmt)), fmt))
        )
    exact_gradient = float(np.sum(inputs * 2.0 * (stored * inputs - targets) / OUTPUTS))
    return StepResult(
        stored=stored,
        cast=cast,
        x=float(x[0]),
        output=float(output[0]),
        target=float(t[0]),
        loss=float(np.mean((output - t) ** 2) * SAMPLES / OUTPUTS),
        delta=float(delta[0]),
        delta_exact=float(exact_delta[0]),
        zeros=float(np.mean((delta == 0) & (exact_delta != 0))),
        summed=summed,
        sum_exact=scale * exact_gradient,
        unscaled=unscaled,
        finite=finite,
        update=update,
        new=new,
        exact_new=stored - setting.rate * exact_gradient,
    )


def add_up(terms: NDArray[np.float32], fmt: Format) -> float:
    """The sum, one after the other, rounded to the format after each addition."""
    if fmt.name == "float16":
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.cumsum(terms.astype(np.float16), dtype=np.float16)[-1])
    # Plain Python: a rounding that depends on the sum before it cannot be done all at once.
    total, bits, lowest = 0.0, fmt.mantissa_bits, fmt.min_exponent
    for term in terms.tolist():
        total += term
        if total == 0 or not math.isfinite(total):
            continue
        spacing = max(math.frexp(total)[1] - 1, lowest) - bits
        total = math.ldexp(round(math.ldexp(total, -spacing)), spacing)  # ties to even
        if abs(total) > fmt.max:
            total = math.copysign(math.inf, total)
    return total
