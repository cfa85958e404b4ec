"""Who made a step overflow? A set of variables; the layer nearest the loss; and the origin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from keras_mp.scaling.ring import StepRow

INPUTS = "inputs"  # blamed where the batch itself was not finite


@dataclass(frozen=True)
class Attribution:
    """What is known of one overflow.

    Attributes:
        variables: Paths of the variables whose gradient was not finite.
        layer: The layer to blame. Where the forward pass is known to have overflowed, the first
            whose output was not finite ("inputs" if the batch was not); else the one that owns the
            member of that set nearest the loss, None if the set is empty.
        origin: "loss" only if the loss itself was not finite, "backward" if it was finite, and
            "unknown" where the loss was not seen.
    """

    variables: list[str]
    layer: str | None
    origin: Literal["loss", "backward", "unknown"]


def attribute(
    row: StepRow,
    paths: Sequence[str],
    distances: Mapping[int, int] | None = None,
    places: Sequence[str] = (),
) -> Attribution:
    """The attribution of a skipped step.

    Args:
        row: The step. paths: Path of each variable.
        distances: Operations between each variable (by index) and the loss, on the longest way. A
            non-finite value spreads from its origin away from the loss: each further member of the
            set has a way to the loss through the culprit, and so a longer longest one. (Its
            shortest may be shorter: around a residual block, or through a weight's regularizer.)
            Without distances the last variable counts as the nearest.
        places: What ``row.place`` indexes: layers, in the order of the forward pass.
    """
    distances = distances or {}
    nearest = min(row.nonfinite, key=lambda i: (distances.get(i, 2**31), -i), default=None)
    origin: Literal["loss", "backward", "unknown"] = "unknown"
    if row.loss_finite is not None:
        origin = "backward" if row.loss_finite else "loss"
    layer = None if nearest is None else layer_path(paths[nearest])
    if row.place is not None:
        layer = places[row.place]
    return Attribution(
        variables=[paths[i] for i in row.nonfinite],
        layer=layer,
        origin=origin,
    )


def layer_path(variable_path: str) -> str:
    """Path of the layer that owns a variable: "block/dense/kernel" -> "block/dense"."""
    return variable_path.rpartition("/")[0] or variable_path


def path_of(layer: Any) -> str:
    """A Keras layer's path; its name where it has no path, being made inside another layer."""
    return layer.path or layer.name
