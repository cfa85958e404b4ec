"""A loss scale's state that comes from a file: what of it these settings can have. NumPy-only."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from keras_mp.scaling.state import COUNTER_MAX, ScaleConfig, ScaleState


def admit(
    values: Mapping[str, Any], current: ScaleState, config: ScaleConfig, complete: bool = True
) -> tuple[ScaleState, list[str]]:
    """A state that this config can have, from one that a file holds.

    Args:
        values: Fields of ``ScaleState``, as scalars or arrays of shape ().
        current: Gives what is missing or damaged in ``values``.
        config: With the limits.
        complete: Whether a missing field is to be complained about.

    Returns:
        (state, complaints), a complaint being a clause of a sentence.
    """
    state, complaints = asdict(current), []
    for field in fields(ScaleState):
        name = field.name
        if name not in values:
            if complete and (name != "scale" or values.get("scaled", 1)):
                complaints.append(f"`{name}` is missing and stays {state[name]!r}")
            continue
        value = np.asarray(values[name])
        if value.shape != () or value.dtype.kind not in "iuf" or not np.isfinite(value):
            complaints.append(f"`{name}` is {value!r} and stays {state[name]!r}")
            continue
        low, high = _range(name, config)
        number = float(value) if name == "scale" else int(value)
        admitted = min(max(number, low), high)
        if admitted != number:
            complaints.append(f"`{name}` is {number!r}, outside [{low}, {high}]: {admitted!r} now")
        state[name] = admitted
    if not config.dynamic:
        state["scale"] = config.initial_scale  # the user's own word
    return ScaleState(**state), complaints


def _range(name: str, config: ScaleConfig) -> tuple[float, float]:
    return {
        "scale": (config.min_scale, config.max_scale),
        "good_steps": (config.start_good_steps, COUNTER_MAX),
        "hysteresis_left": (0, config.hysteresis),
    }.get(name, (0, COUNTER_MAX))
