"""A model's plan goes where the model goes: a further member of the ``.keras`` archive.

Keras stores each layer's policy of functional models, and loses those of subclassed ones. Layers
that the plan made ours are in the file as Keras' own, so that plain Keras can read it.
"""

import os
import zipfile
from typing import Any

import keras

from keras_mp.policies.classes import as_keras_own
from keras_mp.policies.plan import PrecisionPlan, applied_plan

MEMBER = "keras_mp_plan.json"


def save_model(model: Any, path: str | os.PathLike[str], plan: PrecisionPlan | None = None) -> None:
    """``model.save(path)``, and the plan with it. Plain Keras can read the file too.

    Args:
        path: A new or old ``.keras`` file.
        plan: Defaults to the one that was applied to this model last; without any, the file is as
            Keras writes it.

    Raises:
        ValueError: ``path`` does not end in ``.keras``, or as ``model.save`` does.
    """
    path = os.fspath(path)
    if not path.endswith(".keras"):
        raise ValueError(f"Expected a file name that ends in .keras. Received: path={path!r}")
    applied = applied_plan(model)
    replaced = [] if applied is None else applied.replaced_layers(model)
    with as_keras_own(replaced):
        model.save(path)
    plan = plan or applied
    if plan is not None:
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(MEMBER, plan.to_json())


def load_model(path: str | os.PathLike[str], **kwargs: Any) -> Any:
    """``keras.saving.load_model``, with the plan put on again where the file has one.

    Args:
        path: A file that ``save_model`` or Keras wrote.
        **kwargs: As Keras takes them.
    """
    model = keras.saving.load_model(path, **kwargs)
    path = os.fspath(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if MEMBER in archive.namelist():
                PrecisionPlan.from_json(archive.read(MEMBER).decode()).apply(model)
    return model
