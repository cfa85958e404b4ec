"""Who runs: the ``Meta`` of this process, from the model and the optimizer by public names."""

import functools
import importlib.metadata
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from keras_mp._version import __version__
from keras_mp.telemetry import device, process
from keras_mp.telemetry.records import Meta
from keras_mp.telemetry.sources import Source

_PACKAGES = ("keras", "torch", "tensorflow", "jax", "numpy")


def rank_and_world() -> tuple[int, int]:
    """This process' rank and the number of processes, as torchrun and its like tell (RANK)."""
    try:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1
    return (rank, world) if 0 <= rank < max(1, world) else (0, 1)


def describe(
    run_id: str,
    name: str | None,
    *,
    source: Source,
    model: Any = None,
    optimizer: Any = None,
    policy: str | None = None,
    backend: str | None = None,
    rank: int = 0,
    world_size: int = 1,
    **planned: Any,
) -> Meta:
    """The ``Meta`` of a job in this process. ``planned``: Meta's planned_* and steps_per_epoch."""
    return Meta(
        run_id=run_id,
        name=name or run_id,
        started=time.time(),
        host=process.HOST,
        pid=os.getpid(),
        process_started=process.own_start(),
        rank=rank,
        world_size=world_size,
        backend=backend,
        device=device.name(backend),
        policy=policy or model_policy(model),
        versions=versions(),
        scaler=source.settings,
        optimizer=_optimizer_name(optimizer),
        model=getattr(model, "name", None) or (type(model).__name__ if model else None),
        parameters=_parameters(model),
        argv=[str(a) for a in sys.argv],
        **planned,
    )


def versions() -> dict[str, str]:
    """Package -> version, of those that this process has loaded."""
    return dict(_versions(tuple(package for package in _PACKAGES if package in sys.modules)))


@functools.cache  # reading a package's metadata takes a fifth of a millisecond
def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {"python": platform.python_version(), "keras_mp": __version__}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            # A build under another name (tensorflow-cpu) says its version itself.
            version = getattr(sys.modules[package], "__version__", None)
            if isinstance(version, str):
                found[package] = version
    return found


def layers_of(model: Any) -> Iterator[Any]:
    """All layers of a Keras model, nested ones and those held as attributes included."""
    import keras

    seen: set[int] = set()
    stack: list[Any] = [model]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, keras.layers.Layer):
            yield item
            stack.extend(vars(item).values())
            stack.extend(getattr(item, "layers", ()))
        elif isinstance(item, list | tuple):
            stack.extend(item)
        elif isinstance(item, dict):
            stack.extend(item.values())


def model_policy(model: Any) -> str | None:
    """Name of the dtype policy that most of the parameters are in; None if not a model.

    Layers in float16 have a say of their own, however few: what float16 needs, the model needs. (A
    large head in float32 is the rule in mixed models.)
    """
    if model is None or not hasattr(model, "dtype_policy"):
        return None
    names: Counter[str] = Counter()
    for layer in layers_of(model):
        if layer is not model and layer.weights and not getattr(layer, "layers", None):
            names[layer.dtype_policy.name] += int(layer.count_params())
    half = Counter({name: n for name, n in names.items() if name in ("mixed_float16", "float16")})
    chosen = half or names
    return chosen.most_common(1)[0][0] if chosen else str(model.dtype_policy.name)


def _optimizer_name(optimizer: Any) -> str | None:
    """Class name, of the inner optimizer where there is a wrapper."""
    if optimizer is None:
        return None
    if isinstance(optimizer, Mapping):
        return ", ".join(str(_optimizer_name(one)) for one in optimizer.values())
    return type(getattr(optimizer, "inner_optimizer", optimizer)).__name__


def _parameters(model: Any) -> int | None:
    if model is None or not getattr(model, "built", False) or not hasattr(model, "count_params"):
        return None
    return int(model.count_params())
