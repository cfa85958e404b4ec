"""How a model and data get to a trial's processes: by a name they can look up, or by a file."""

import importlib
import importlib.util
import json
import os
import sys
import tempfile
import warnings
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np


def handed_over(model: Any, data: Any, stack: ExitStack) -> tuple[str, str | None, list[str], str]:
    """(model spec, data spec, the user's classes, what to call it) for the child processes.

    Args:
        model: A spec already, a function at the top of a module, or a model.
        data: A spec already, a pair of arrays (each an array, or a list or dict of them), or None.
        stack: What is written is removed when it closes.

    Raises:
        ValueError: Another process could not find it.
    """
    folder = ""
    if not isinstance(model, str) or isinstance(data, tuple | list):
        folder = stack.enter_context(tempfile.TemporaryDirectory())
    if isinstance(model, str):
        if model.endswith(".keras") and not os.path.isfile(model):
            raise ValueError(f"Expected a .keras file. Received: {model!r}, which is no file")
        spec, classes, label = model, [], os.path.basename(model)
    elif hasattr(model, "make_train_function") and not isinstance(model, type):
        from keras_mp.policies.saving import save_model
        from keras_mp.policies.structure import structure_of

        kinds = {type(place.layer) for place in structure_of(model, ends=False).places}
        classes = [where(kind) for kind in kinds if not kind.__module__.startswith("keras")]
        spec, label = os.path.join(folder, "model.keras"), model.name
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*lambda")  # said below, as an error
            save_model(model, spec)
        classes = list(dict.fromkeys([*classes, *named_in(spec)]))
    elif callable(model):
        spec, classes = where(model), []
        label = spec
    else:
        raise ValueError(
            "Expected a .keras file, package.module:function, a function or a model. "
            f"Received: model={model!r}"
        )
    if data is None or isinstance(data, str):
        return spec, data, classes, label
    if callable(data):
        return spec, where(data), classes, label
    if isinstance(data, tuple | list) and len(data) == 2:
        return spec, _written(data, folder), classes, label
    raise ValueError(
        "Another process cannot read this data. Expected a .npz file, package.module:function, a "
        f"function at the top of a module, or a pair of arrays (x, y). Received: {type(data)}"
    )


def named_in(path: str) -> list[str]:
    """Where the user's losses, metrics, activations and the like are that a model's file names.

    A file names them alone. They are looked up among the modules that are loaded here.

    Raises:
        ValueError: One of them is a lambda, which has no name.
    """
    with zipfile.ZipFile(path) as archive:
        text = archive.read("config.json").decode("utf-8")
    found: set[str] = set()

    def collect(entry: dict[str, Any]) -> dict[str, Any]:
        kind, config = entry.get("class_name"), entry.get("config")
        if kind == "__lambda__":
            raise ValueError(
                "Another process cannot read a model that holds a lambda. Expected a function at "
                "the top of a module in its place, or package.module:function that makes the model"
            )
        if kind == "function" and isinstance(config, str):
            found.add(config)
        elif isinstance(kind, str) and not str(entry.get("module")).startswith("keras"):
            found.add(kind)
        return entry

    json.loads(text, object_hook=collect)
    theirs = [
        (name, getattr(module, "__dict__", {}))
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in _OTHERS
    ]
    return [
        where(names[own])
        for own in sorted(found)
        for module, names in theirs
        if getattr(names.get(own), "__module__", None) == module
    ]


# Packages whose objects need no looking up, or are none of the user's.
_OTHERS = {"keras", "keras_mp", "torch", "tensorflow", "jax", "numpy", "builtins"}


def where(thing: Any) -> str:
    """``module:name`` of a function or a class; of the main program, ``file.py:name``.

    Raises:
        ValueError: It stands inside a function, or in a session without a file.
    """
    module, name = thing.__module__, thing.__qualname__
    if module == "__main__":
        module = getattr(sys.modules["__main__"], "__file__", None) or ""
        module = str(Path(module).resolve()) if module.endswith(".py") else ""
    if not module or "." in name:
        raise ValueError(
            "Another process must find it by its name. Expected a function or class at the top of "
            f"a module or of a program's file. Received: {thing!r}"
        )
    return f"{module}:{name}"


def named(spec: str) -> Any:
    """What ``package.module:function`` or ``folder/file.py:function`` names.

    Raises:
        ValueError: There is no such module, file or function.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise ValueError(f"Expected a .keras file or package.module:function. Received: {spec!r}")
    try:
        from_file = where.endswith(".py")
        module = _module_of_file(where) if from_file else importlib.import_module(where)
        return getattr(module, name)
    except Exception as error:  # whatever a user's module raises while it is imported
        raise ValueError(
            "Expected package.module:function that can be imported from here. "
            f"Received: {spec!r} ({type(error).__name__}: {error})"
        ) from error


def made_by(spec: str) -> Any:
    """What the function returns that ``spec`` names.

    Raises:
        ValueError: It is no function, needs arguments, or raises.
    """
    function = named(spec)
    a_model = hasattr(function, "make_train_function") and not isinstance(function, type)
    if a_model or not callable(function):
        raise ValueError(
            "Expected a function without arguments, which is called in each process. "
            f"Received: {spec}, of type {type(function).__name__}"
        )
    try:
        return function()
    except Exception as error:
        raise ValueError(f"{spec} failed: {type(error).__name__}: {error}") from error


def _module_of_file(path: str) -> Any:
    name = os.path.splitext(os.path.basename(path))[0]
    known = sys.modules.get(name)
    if getattr(known, "__file__", None) == path:  # a program runs once, whoever names it
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise OSError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its classes must be found when they are pickled or saved
    spec.loader.exec_module(module)
    return module


def _written(data: Any, folder: str) -> str:
    arrays = {}
    for side, given in zip("xy", data, strict=True):
        if isinstance(given, dict):
            parts = {f"{side}/{key}": part for key, part in given.items()}
        elif isinstance(given, tuple | list) and len(given) > 1:
            parts = {f"{side}{number}": part for number, part in enumerate(given)}
        else:
            parts = {side: given[0] if isinstance(given, tuple | list) else given}
        for name, part in parts.items():
            arrays[name] = np.asarray(part)
            if arrays[name].dtype == object:
                raise ValueError(
                    "Expected arrays of numbers, or a list or dict of them, for x and y. "
                    f"Received: {side}={type(part)}"
                )
    path = os.path.join(folder, "data.npz")
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path
