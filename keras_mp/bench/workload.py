"""What a trial runs: the user's model in one precision.

Runs in the trial's child processes; the backend is loaded there.
"""

from typing import Any

import keras

import keras_mp
from keras_mp.bench.handover import named
from keras_mp.commands._models import load
from keras_mp.scaling.binding import computes_in_float16

HALF_BY_DEFAULT = "mixed_bfloat16"


def build(spec: str, variant: str, seed: int, classes: list[str]) -> Any:
    """The model of one variant, with its own optimizer yet; "planned" is float32 until its plan.

    Args:
        spec: A ``.keras`` file, or ``package.module:function`` that makes the model.
        variant: "float32", "mixed_bfloat16", "mixed_float16" or "planned".
        seed: Of the weights: the same for all variants.
        classes: The user's layer classes in the file, each as ``named`` takes it.
    """
    wanted = "float32" if variant == "planned" else variant
    if spec.endswith(".keras"):
        model = load(spec, custom_objects={c.rpartition(":")[2]: named(c) for c in classes})
        # A file holds each layer's policy: the variant's takes its place.
        keras_mp.plan(model, wanted, rules={keras.layers.Layer: wanted}).apply(model)
        keras.utils.set_random_seed(seed)
        return model
    keras_mp.set_policy(wanted)
    keras.utils.set_random_seed(seed)
    model = named(spec)()
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"Expected a function that returns a keras.Model. Received: {spec} returned {model!r}"
        )
    return model


def half_policy() -> str:
    """What to plan for where nobody says it: what is recommended here, if it is half precision."""
    recommended = keras_mp.recommend().policy
    half = keras.DTypePolicy(recommended).compute_dtype in ("float16", "bfloat16")
    return recommended if half else HALF_BY_DEFAULT


def compile_for(model: Any) -> list[str]:
    """Compile a model that is not.

    Returns:
        Notes: what was chosen because the model did not say it.
    """
    if getattr(model, "compiled", False):
        return []
    model.compile(keras.optimizers.Adam(), "mse", auto_scale_loss=False)
    return ["the model is not compiled: trained with Adam and mean squared error"]


def fresh_optimizer(model: Any) -> None:
    """An optimizer with nothing learned, and with a loss scale where the model needs one."""
    given = model.optimizer
    wrapped = isinstance(given, keras.optimizers.LossScaleOptimizer)
    inner = given.inner_optimizer if wrapped else given
    fresh = type(inner).from_config(inner.get_config())
    if computes_in_float16(model):
        ours = isinstance(given, keras_mp.LossScaleOptimizer)
        fresh = (
            type(given).from_config(given.get_config())
            if ours
            else keras_mp.LossScaleOptimizer(fresh)
        )
        fresh.bind(model)
    model.optimizer = fresh
    model.make_train_function(force=True)
