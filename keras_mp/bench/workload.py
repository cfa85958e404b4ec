"""What a trial runs: the user's model in one precision.

Runs in the trial's child processes; the backend is loaded there.
"""

from typing import Any

import keras

import keras_mp
from keras_mp.bench.batches import Batches
from keras_mp.bench.handover import made_by, named
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
        try:
            model = load(spec, custom_objects={c.rpartition(":")[2]: named(c) for c in classes})
        except ValueError as error:
            if "Could not locate" not in str(error):
                raise
            raise ValueError(
                f"{error}. One that is registered with keras.saving is found if --data names a "
                "function whose module imports it; else give package.module:function that makes "
                "the model"
            ) from error
        # A file holds each layer's policy: the variant's takes its place.
        keras_mp.plan(model, wanted, rules={keras.layers.Layer: wanted}).apply(model)
        keras.utils.set_random_seed(seed)
        return model
    keras_mp.set_policy(wanted)
    keras.utils.set_random_seed(seed)
    model = made_by(spec)
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


def compile_for(model: Any, batches: Batches) -> list[str]:
    """Compile a model that is not; for class ids as targets with a loss that takes them.

    Returns:
        Notes: what was chosen because the model did not say it.
    """
    if getattr(model, "compiled", False):
        return []
    loss, words = "mse", "mean squared error"
    x, y = batches.sized(2)
    out = model(keras.tree.map_structure(keras.ops.convert_to_tensor, x))
    if not keras.tree.is_nested(out) and _are_class_ids(y, out.shape):
        last = model.layers[-1]
        softmax = getattr(last, "activation", None) is keras.activations.softmax
        softmax = softmax or isinstance(last, keras.layers.Softmax)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=not softmax)
        words = "sparse categorical cross-entropy"
    model.compile(keras.optimizers.Adam(), loss, auto_scale_loss=False)
    return [f"the model is not compiled: trained with Adam and {words}"]


def _are_class_ids(y: Any, shape: Any) -> bool:
    if keras.tree.is_nested(y) or "int" not in str(y.dtype) or len(shape) < 2 or shape[-1] < 2:
        return False
    return tuple(y.shape) in (tuple(shape[:-1]), (*shape[:-1], 1))


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
