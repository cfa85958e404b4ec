"""Scalars that may still be on a device: kept there without their graph, fetched many at once."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any


def detached(value: Any) -> Any:
    """``value`` without what hangs on it: a torch tensor lets go of its graph, and its memory."""
    detach = getattr(value, "detach", None)
    return detach() if detach is not None else value


def fetch(values: Sequence[Any]) -> list[float | None]:
    """Scalars (numbers or tensors of any framework) as floats; a device's in one read.

    What is no scalar becomes None.
    """
    out: list[float | None] = [None] * len(values)
    by_framework: dict[str, list[int]] = {}
    for i, value in enumerate(values):
        if isinstance(value, float):
            out[i] = float(value)
        else:
            by_framework.setdefault(type(value).__module__.split(".")[0], []).append(i)
    for framework, places in by_framework.items():
        some = [values[i] for i in places]
        try:
            numbers = _stack(framework, some)
        except Exception:  # one of them is no scalar
            numbers = [_number(value) for value in some]
        for i, number in zip(places, numbers, strict=True):
            out[i] = number
    return out


def numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
    """Those of ``values`` that are scalars, as floats."""
    found = zip(values, fetch(list(values.values())), strict=True)
    return {name: number for name, number in found if number is not None}


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except Exception:  # each framework has an error of its own for a vector
        return None


def _stack(framework: str, values: list[Any]) -> Any:
    module = sys.modules.get(framework)
    if len(values) > 1 and module is not None:
        if framework == "torch":
            return module.stack([v.reshape(()).float() for v in values]).cpu().tolist()
        if framework == "tensorflow":
            return module.stack([module.cast(v, "float32") for v in values]).numpy().tolist()
        if framework in ("jax", "jaxlib"):
            import jax.numpy as jnp

            return jnp.stack([jnp.asarray(v, "float32") for v in values]).tolist()
    return [_number(v) for v in values]
