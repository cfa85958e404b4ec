"""What a training step keeps in memory, by arithmetic.

Weights, masters, gradients, slots (what the optimizer keeps for each weight) and activations,
for N parameters, A numbers kept for the backward pass for each sample, a batch of B and an
optimizer with k slots. Bytes are counted as if everything were alive at once;
a framework frees some of it earlier and needs temporary room besides, so ``keras-mp
bench`` measures. Rules: Micikevicius et al. 2018, section 3.1 and 4.1, for "paper"; Keras 3.15 for
the others: under a mixed policy variables, their gradients and slots are float32.
"""

from dataclasses import dataclass

from keras_mp.bench.estimate import positive

PARTS = ("weights", "masters", "gradients", "slots", "activations")

# Numbers that Keras' optimizers keep for each weight.
SLOTS = {
    "sgd": 0,
    "momentum": 1,
    "rmsprop": 1,
    "adagrad": 1,
    "lion": 1,
    "adam": 2,
    "adamw": 2,
    "nadam": 2,
    "adadelta": 2,
}


@dataclass(frozen=True)
class Recipe:
    """Bytes of a number of each part under a policy.

    Attributes:
        name: As commands take it. title: For people. note: What to know about it.
    """

    name: str
    title: str
    weights: int
    masters: int
    gradients: int
    slots: int
    activations: int
    note: str


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("float32", "float32", 4, 0, 4, 4, 4, "everything in float32"),
        Recipe(
            *("mixed", "mixed policy", 2, 4, 4, 4, 2),
            "mixed_float16 or mixed_bfloat16: the variables are the masters; the half-precision "
            "copies that Keras' layers cast live until the backward pass (a plan has none on torch "
            "and jax)",
        ),
        Recipe(
            *("paper", "paper's recipe", 2, 4, 2, 4, 2),
            "half-precision variables and gradients, float32 masters: here the policy float16 or "
            "bfloat16 with LossScaleOptimizer",
        ),
        Recipe(
            *("half", "half, no masters", 2, 0, 2, 2, 2),
            "half-precision variables and slots without masters: small updates are lost",
        ),
    )
}


@dataclass(frozen=True)
class Footprint:
    """Bytes of each part; ``total`` is their sum."""

    weights: int
    masters: int
    gradients: int
    slots: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.masters + self.gradients + self.slots + self.activations

    def parts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in PARTS}


def footprint(
    parameters: float, activations: float, batch: int, recipe: str, slots: int = 2
) -> Footprint:
    """What a step keeps.

    Args:
        parameters: Trainable numbers of the model.
        activations: Numbers kept for the backward pass for each sample.
        batch: Samples a step.
        recipe: A name in RECIPES.
        slots: Numbers that the optimizer keeps for each weight (SLOTS).

    Raises:
        ValueError: A number is out of range, or there is no such recipe.
    """
    if recipe not in RECIPES:
        raise ValueError(f"`recipe` must be one of {list(RECIPES)}. Received: recipe={recipe!r}")
    if slots < 0:
        raise ValueError(f"`slots` must be 0 or more. Received: slots={slots!r}")
    of = RECIPES[recipe]
    n = at_least_one("parameters", parameters)
    kept = at_least_one("activations", activations) * at_least_one("batch", batch)
    return Footprint(
        weights=n * of.weights,
        masters=n * of.masters,
        gradients=n * of.gradients,
        slots=n * of.slots * slots,
        activations=kept * of.activations,
    )


def at_least_one(name: str, value: float) -> int:
    """A count, rounded. Raises ValueError below one."""
    if round(positive(name, value)) < 1:
        raise ValueError(f"`{name}` must be at least 1. Received: {name}={value!r}")
    return round(value)


def largest_batch(
    budget: float,
    parameters: float,
    activations: float,
    recipe: str,
    slots: int = 2,
    headroom: float = 0.1,
) -> int:
    """The largest batch whose step fits into ``budget`` bytes, ``headroom`` of them left free.

    0 if not even one sample fits. The other arguments as for ``footprint``.
    """
    one = footprint(parameters, activations, 1, recipe, slots)
    room = positive("budget", budget) * (1 - headroom) - (one.total - one.activations)
    return max(0, int(room // one.activations))
