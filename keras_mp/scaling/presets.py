"""Loss scales that move as other systems move theirs: a name stands for a ScaleConfig.

Each preset copies the published rule of the system it is named after, off-by-ones included
(read in the systems' sources; ``torch`` is tested against ``torch.amp.GradScaler`` itself). Where a
system has no floor or ceiling, ours take its place, because a scale that reaches zero or infinity
never comes back: parity holds inside the limits.
"""

import contextlib
from dataclasses import replace
from typing import Any

from keras_mp.scaling.state import LARGEST_SCALE, ScaleConfig, positive_finite

_NO_FLOOR = 2.0**-14
_NO_CEILING = LARGEST_SCALE

PRESETS: dict[str, ScaleConfig] = {
    # Ours: Keras' start and pace, Apex' ceiling, a floor low enough for users whose gradients are
    # large (tf.keras' floor of 1 was reported as too high).
    "dynamic": ScaleConfig(),
    # keras.optimizers.LossScaleOptimizer 3.15: counts every apply(), micro-batches too.
    "keras": ScaleConfig(
        initial_scale=2.0**15,
        growth_interval=2000,
        counts="micro_batches",
        min_scale=_NO_FLOOR,
        max_scale=_NO_CEILING,
    ),
    # torch.amp.GradScaler: growth is refused where the result would not be finite.
    "torch": ScaleConfig(
        initial_scale=2.0**16, growth_interval=2000, min_scale=_NO_FLOOR, max_scale=_NO_CEILING
    ),
    # apex.amp LossScaler: a ceiling of 2**24.
    "apex": ScaleConfig(
        initial_scale=2.0**16, growth_interval=2000, min_scale=_NO_FLOOR, max_scale=2.0**24
    ),
    # megatron.core DynamicGradScaler: the hysteresis refills only when the scale grows.
    "megatron": ScaleConfig(
        initial_scale=2.0**32,
        growth_interval=1000,
        hysteresis=2,
        min_scale=1.0,
        max_scale=_NO_CEILING,
    ),
    # DeepSpeed DynamicLossScaler with the defaults of its configuration: the first growth after an
    # overflow comes at the 1001st clean step, those after it every 1000; ends the run at its floor.
    "deepspeed": ScaleConfig(
        initial_scale=2.0**16,
        growth_interval=1000,
        hysteresis=2,
        min_scale=1.0,
        max_scale=_NO_CEILING,
        growth_delay="after_overflow",
        exhausted_after=1,
        on_exhausted="raise",
    ),
    # flax.training.dynamic_scale.DynamicScale: every growth comes one step late.
    "flax": ScaleConfig(
        initial_scale=2.0**16,
        growth_interval=2000,
        min_scale=2.0**-126,
        max_scale=_NO_CEILING,
        growth_delay="always",
    ),
    # Micikevicius et al. 2018, section 4.2: a constant; 8 for the SSD detector, which diverges
    # without it.
    "paper": ScaleConfig(dynamic=False, initial_scale=8.0),
}


def resolve(scale: Any, **overrides: Any) -> tuple[str, ScaleConfig]:
    """The config that the ``scale`` argument of LossScaleOptimizer means.

    Args:
        scale: "dynamic", the name of a preset, a number (a static scale), or a ScaleConfig.
        overrides: Fields that replace the preset's; None leaves the preset's value.

    Returns:
        (name, config); the name is "static" for a number and "custom" for a ScaleConfig.

    Raises:
        ValueError: For an unknown name, or values out of range. TypeError: for anything else.
    """
    given = {k: v for k, v in overrides.items() if v is not None}
    if isinstance(scale, ScaleConfig):
        return "custom", replace(scale, **given)
    if isinstance(scale, str):
        if scale not in PRESETS:
            raise ValueError(
                f"`scale` must be a number (a static loss scale), a ScaleConfig, or one of "
                f"{sorted(PRESETS)}. Received: scale={scale!r}"
            )
        return scale, _with(PRESETS[scale], given)
    if isinstance(scale, bool) or not hasattr(scale, "__float__"):
        raise TypeError(
            f"`scale` must be a number (a static loss scale), a ScaleConfig, or one of "
            f"{sorted(PRESETS)}. Received: scale={scale!r} (of type {type(scale)})"
        )
    for name in ("initial_scale", "growth_interval", "hysteresis"):
        if name in given:
            raise ValueError(
                f"`{name}` has no meaning beside a static scale. "
                f"Received: scale={scale!r}, {name}={given[name]!r}"
            )
    # A static scale is the user's own word: the limits of a moving one do not apply to it.
    limits = {"min_scale": 2.0**-126, "max_scale": LARGEST_SCALE}
    start = positive_finite("scale", scale)
    return "static", ScaleConfig(dynamic=False, initial_scale=start, **{**limits, **given})


def _with(preset: ScaleConfig, given: dict[str, Any]) -> ScaleConfig:
    """The preset with the user's fields; a start that the user did not choose obeys the limits."""
    if "initial_scale" not in given:
        low = given.get("min_scale", preset.min_scale)
        high = given.get("max_scale", preset.max_scale)
        with contextlib.suppress(TypeError):  # not numbers: ScaleConfig says so by name
            given = {**given, "initial_scale": min(max(preset.initial_scale, low), high)}
    return replace(preset, **given)
