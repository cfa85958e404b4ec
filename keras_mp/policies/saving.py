"""A model's plan goes where the model goes: a further member of the ``.keras`` archive.

Keras stores each layer's policy of functional models, and loses those of subclassed ones. Layers
that the plan made ours are in the file as Keras' own, so that plain Keras can read it.
"""

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
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
    plan = _stored_plan(os.fspath(path))
    # Layers of a subclassed model have no policy in the file, they are built under the global one:
    # it must be the plan's for variables that were stored in half precision to come back as such.
    with _global_policy(plan.policy if plan is not None and plan.policy in _PURE else None):
        model = keras.saving.load_model(path, **kwargs)
    return model if plan is None else plan.apply(model)


# Policies under which variables are in half precision too.
_PURE = ("float16", "bfloat16")


def _stored_plan(path: str) -> PrecisionPlan | None:
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        if MEMBER not in archive.namelist():
            return None
        return PrecisionPlan.from_json(archive.read(MEMBER).decode())


@contextmanager
def _global_policy(name: str | None) -> Iterator[None]:
    """Keras' global policy, without the advice of ``policy_scope``: nobody chose it just now."""
    previous = keras.config.dtype_policy()
    if name is not None:
        keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(previous)
