"""What a trial runs: the user's model in one precision.

Runs in the trial's child processes; the backend is loaded there.
"""

import re
from typing import Any

import keras

import keras_mp
from keras_mp.bench.batches import Batches
from keras_mp.bench.handover import made_by, named
from keras_mp.commands._models import load
from keras_mp.policies.detect import current_device
from keras_mp.policies.hardware import precisions
from keras_mp.policies.rules import Rules
from keras_mp.policies.structure import structure_of
from keras_mp.scaling.binding import computes_in_float16

HALF_BY_DEFAULT = "mixed_bfloat16"


def build(spec: str, policy: str, seed: int, classes: list[str]) -> Any:
    """The model of one variant, with its own optimizer yet.

    Args:
        spec: A ``.keras`` file, or ``package.module:function`` that makes the model.
        policy: What the function makes it under. A file holds each layer's own, as a function may
            choose some: ``put_policy`` comes after this.
        seed: Of the weights: the same for all variants.
        classes: The user's layer classes in the file, each as ``named`` takes it.
    """
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
        keras.utils.set_random_seed(seed)
        return model
    named(spec)  # a program's first lines often set a policy: the variant's comes after them
    keras_mp.set_policy(policy)
    keras.utils.set_random_seed(seed)
    model = made_by(spec)
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"Expected a function that returns a keras.Model. Received: {spec} returned {model!r}"
        )
    return model


def put_policy(model: Any, policy: str) -> None:
    """Give a built model the variant's policy where its file or its function says another.

    Layers in half precision get it or, where there are none, those in float32: float32 beside half
    precision is the user's choice, and stays.
    """
    places = structure_of(model, ends=False).places
    leaves = [place for place in places if not place.children]
    half = [p for p in leaves if p.layer.compute_dtype in ("float16", "bfloat16")]
    changed = half or [p for p in leaves if p.layer.compute_dtype == "float32"]
    if all(place.layer.dtype_policy.name == policy for place in changed):
        return
    kept = {id(p) for p in leaves if half and p.layer.compute_dtype == "float32"}
    rules: Rules = {
        re.compile(re.escape(p.path)): "float32" if id(p) in kept else policy for p in places
    }
    keras_mp.plan(model, policy, rules=rules).apply(model)


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


def tf32_note() -> list[str]:
    """What to know of the baseline where float32 is not what it says."""
    fast = precisions(current_device())["tf32"].support == "fast"
    if not (fast and keras_mp.allow_tf32()):
        return []
    return ["float32 multiplies in TF32 here, on the tensor cores already: the gain is over that"]


def _are_class_ids(y: Any, shape: Any) -> bool:
    if keras.tree.is_nested(y) or "int" not in str(y.dtype) or len(shape) < 2 or shape[-1] < 2:
        return False
    return tuple(y.shape) in (tuple(shape[:-1]), (*shape[:-1], 1))


def fresh_optimizer(model: Any) -> None:
    """An optimizer with nothing learned, and with a loss scale where the model needs one."""
    given = model.optimizer
    if given is None:
        raise ValueError("Expected a model that `compile` has given an optimizer. Received: none")
    wrapped = isinstance(given, keras.optimizers.LossScaleOptimizer)
    inner = given.inner_optimizer if wrapped else given
    if not computes_in_float16(model):
        fresh = _unused(inner)
    elif isinstance(given, keras_mp.LossScaleOptimizer):
        fresh = _unused(given)
        fresh.bind(model)
    else:
        fresh = keras_mp.LossScaleOptimizer(_unused(inner), model=model)
    model.optimizer = fresh
    model.make_train_function(force=True)


def _unused(optimizer: Any) -> Any:
    """Itself if it has not been built: not every schedule of a user's own tells its config."""
    if not optimizer.built:
        return optimizer
    return type(optimizer).from_config(optimizer.get_config())
