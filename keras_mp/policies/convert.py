"""A copy of a model in another precision, with its weights and its optimizer's state."""

import json
import os
import tempfile
import zipfile
from dataclasses import replace
from typing import Any

import keras

from keras_mp.policies.plan import PrecisionPlan, plan
from keras_mp.policies.saving import load_model, save_model
from keras_mp.policies.structure import structure_of

_CONFIG = "config.json"


def convert(model: Any, precision: PrecisionPlan | str, *, half: bool = False) -> Any:
    """A copy of ``model`` that computes by a plan, or by the plan for a policy.

    Args:
        model: A built model: functional, sequential or subclassed; nested, with shared layers.
        precision: A plan for it, or a policy's name.
        half: Keep the variables in half precision too, where the plan computes in it: half the
            size, for inference. The copy is not compiled then. Save and load it by ``save_model``
            and ``load_model``: of a subclassed model plain Keras makes float32 variables again.
            Defaults to False: variables stay float32.

    Returns:
        A new model. Converted back to "float32" (and not ``half``), it computes what the original
        does, bit for bit.

    Raises:
        ValueError: The model is not built, is another one than the plan's, or Keras cannot write
            and read it; or ``half`` with a plan that has no half precision.
    """
    planned = plan(model, precision) if isinstance(precision, str) else precision
    compute = keras.DTypePolicy(planned.policy).compute_dtype
    if half and compute == "float32":
        raise ValueError(
            "Half-size variables need half precision. Expected a plan for float16 or bfloat16. "
            f"Received: half=True with policy={planned.policy!r}"
        )
    own = _own_classes(model)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        try:
            save_model(model, path, planned)
            # Its code runs in this process already, so Lambda layers' may be read.
            copy = load_model(path, custom_objects=own, safe_mode=False)
            _take_weights(copy, model)
            if not half:
                return copy
            save_model(copy, path, _halved_plan(planned, compute))
            _halve(path, compute)
            return load_model(path, custom_objects=own, safe_mode=False, compile=False)
        except (TypeError, NotImplementedError) as error:
            raise ValueError(
                "Keras cannot write and read this model. Expected layers with `get_config`; or "
                f"change the model itself with `plan.apply(model)`. Received: {error}"
            ) from error


def _take_weights(copy: Any, model: Any) -> None:
    """Keras' files keep a model's values, not always how they are made up."""
    if [tuple(v.shape) for v in copy.weights] != [tuple(v.shape) for v in model.weights]:
        places = structure_of(copy, ends=False).places
        unbuilt = ", ".join(place.path for place in places if not place.layer.built)
        if unbuilt:
            raise ValueError(
                "Keras could not build all of a copy of this model: a file does not tell what its "
                "`call` takes besides one float32 tensor. Expected a `build(input_shape)` in the "
                "model's class that builds its layers; or `plan.apply(model)`, which changes the "
                f"model itself. Received: {unbuilt} not built"
            )
        raise ValueError(
            "A copy of this model by way of Keras' file has other weights than the model has: such "
            "as adapters (LoRA) in layers of layers, which Keras adds to their kernels. Expected "
            "`plan.apply(model)`, which changes the model itself, or the adapters added first. "
            f"Received: {len(model.weights)} weights, and {len(copy.weights)} in the copy"
        )
    copy.set_weights(model.get_weights())


def _own_classes(model: Any) -> dict[str, type]:
    """The user's layer classes, so that they need not be registered to be copied."""
    classes = {type(place.layer) for place in structure_of(model, ends=False).places}
    return {c.__name__: c for c in classes if not c.__module__.startswith("keras.")}


def _halved_plan(planned: PrecisionPlan, compute: str) -> PrecisionPlan:
    rows = tuple(
        replace(row, policy=compute) if row.policy == f"mixed_{compute}" else row for row in planned
    )
    return PrecisionPlan(compute, rows)


def _halve(path: str, compute: str) -> None:
    """Let the layers in a ``.keras`` file keep their variables in the dtype they compute in."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members[_CONFIG])
    _rename_policies(config, f"mixed_{compute}", compute)
    members[_CONFIG] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def _rename_policies(node: Any, old: str, new: str) -> None:
    if isinstance(node, dict):
        if node.get("class_name") == "DTypePolicy" and node["config"].get("name") == old:
            node["config"]["name"] = new
        if str(node.get("class_name")).startswith("Orthogonal"):
            # It is computed by a decomposition that no backend has in half precision; the weights
            # come from the file.
            node |= {"class_name": "GlorotUniform", "config": {"seed": None}}
        for value in node.values():
            _rename_policies(value, old, new)
    elif isinstance(node, list):
        for value in node:
            _rename_policies(value, old, new)
