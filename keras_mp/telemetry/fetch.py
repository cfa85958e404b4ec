"""Scalars that may still be on a device: kept there without their graph, fetched many at once."""

import sys
from collections.abc import Sequence
from typing import Any


def detached(value: Any) -> Any:
    """``value`` without what hangs on it: a torch tensor lets go of its graph, and its memory."""
    detach = getattr(value, "detach", None)
    return detach() if detach is not None else value


def fetch(values: Sequence[Any]) -> list[float]:
    """Scalars (numbers or tensors of any framework) as floats; a device's in one read."""
    out: list[float] = [0.0] * len(values)
    by_framework: dict[str, list[int]] = {}
    for i, value in enumerate(values):
        if isinstance(value, int | float):
            out[i] = float(value)
        else:
            by_framework.setdefault(type(value).__module__.split(".")[0], []).append(i)
    for framework, places in by_framework.items():
        stacked = _stack(framework, [values[i] for i in places])
        for i, number in zip(places, stacked, strict=True):
            out[i] = float(number)
    return out


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
    return [float(v) for v in values]
