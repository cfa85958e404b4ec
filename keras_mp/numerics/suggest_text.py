"""A suggestion in words."""

from keras_mp.numerics.suggest import Suggestion
from keras_mp.telemetry.format import power_of_two, share


def as_text(suggestion: Suggestion) -> str:
    """Lines for a person, the code to type among them."""
    s = suggestion
    looks = "one look" if s.looks == 1 else f"{s.looks} looks"
    lines = [f"{s.run}: from {looks} at its numbers"]
    if s.static is not None:
        static = s.static
        lines += [
            f"  static scale   {power_of_two(static.low)} to {power_of_two(static.high)} lose "
            f"least and never overflow; without a scale {share(static.lost_unscaled)} of the "
            "non-zero gradients are lost",
            f"                 keras_mp.LossScaleOptimizer(optimizer, scale={_code(static.best)})"
            f"   # loses {share(static.lost)}",
        ]
    if s.dynamic is not None:
        config, waste = s.dynamic.config, s.dynamic.wasted
        steps = "one step" if waste == 1 else f"{waste:,} steps"
        lines += [
            f"  dynamic scale  would have wasted {steps} ({share(s.dynamic.share)}); the run "
            f"itself wasted {s.dynamic.recorded:,}",
            f"                 keras_mp.LossScaleOptimizer(optimizer, "
            f"initial_scale={_code(config.initial_scale)}, "
            f"growth_interval={config.growth_interval})",
        ]
    if s.layers:
        lines.append("  float32        keep these layers out of float16:")
        lines += [f"                 {layer.path}: {layer.why}" for layer in s.layers]
    else:
        lines.append("  float32        no layer needs it by these numbers")
    lines += [f"  note: {note}" for note in s.notes]
    return "\n".join(lines)


def _code(scale: float) -> str:
    """A power of two as Python has it: ``2.0**15``."""
    import math

    power = math.log2(scale)
    return f"2.0**{int(power)}" if power == int(power) else f"{scale:g}"
