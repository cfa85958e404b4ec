"""Loss scale settings to try on a recorded run, and how a key changes one. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from keras_mp.scaling.presets import PRESETS
from keras_mp.scaling.state import LARGEST_SCALE, SMALLEST_SCALE, ScaleConfig
from keras_mp.telemetry.format import power_of_two, whole

OWN = "its own"


@dataclass(frozen=True)
class Field:
    """A field of a setting, as the user moves it.

    Attributes:
        name: In ScaleConfig. title: On the screen. by: What a key press multiplies it by, or
            (``count``) adds to it.
    """

    name: str
    title: str
    by: float = 2.0
    count: bool = False

    def text(self, config: ScaleConfig) -> str:
        value = getattr(config, self.name)
        if isinstance(value, bool):
            return "yes" if value else "no"
        if self.name in ("growth_factor", "backoff_factor"):
            return f"{value:.4g}"
        return power_of_two(value) if isinstance(value, float) else whole(value)


FIELDS = (
    Field("dynamic", "moves by itself"),
    Field("initial_scale", "first scale"),
    Field("growth_interval", "grows after"),
    Field("growth_factor", "grows by"),
    Field("backoff_factor", "backs off by"),
    Field("hysteresis", "overflows until then", count=True),
    Field("min_scale", "smallest"),
    Field("max_scale", "largest"),
)
_UNITS = {"growth_interval": " clean steps"}


def settings(own: ScaleConfig | None) -> dict[str, ScaleConfig]:
    """Name -> setting: the run's own first, then the presets."""
    first = {OWN: own} if own is not None else {}
    return first | PRESETS


def rows(config: ScaleConfig) -> Iterator[tuple[Field, str]]:
    """Each field with its value."""
    for field in FIELDS:
        yield field, field.text(config) + _UNITS.get(field.name, "")


def moved(config: ScaleConfig, field: Field, by: int) -> ScaleConfig:
    """The setting with one field a step lower (-1) or higher (+1); as it was if that is no setting.

    A first scale stays within the limits, which give way to it.
    """
    value = getattr(config, field.name)
    changed: dict[str, Any]
    if isinstance(value, bool):
        changed = {field.name: not value}
    elif field.count:
        changed = {field.name: value + by}
    elif isinstance(value, int):
        changed = {field.name: max(1, round(value * field.by**by))}
    else:
        changed = {field.name: value * field.by**by}
    if field.name == "initial_scale":
        scale = min(max(changed["initial_scale"], SMALLEST_SCALE), LARGEST_SCALE)
        changed = {
            "initial_scale": scale,
            "min_scale": min(config.min_scale, scale),
            "max_scale": max(config.max_scale, scale),
        }
    if field.name in ("min_scale", "max_scale"):
        low = changed.get("min_scale", config.min_scale)
        high = changed.get("max_scale", config.max_scale)
        changed["initial_scale"] = min(max(config.initial_scale, low), high)
    try:
        return replace(config, **changed)
    except (ValueError, TypeError):
        return config
