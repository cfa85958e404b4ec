"""The rows of a plan, and how they are written and read as JSON."""

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from keras_mp.policies.measure import Measured
from keras_mp.policies.policy import resolve

FORMAT = 1


@dataclass(frozen=True)
class Row:
    """One layer's policy.

    Attributes:
        path: Where the layer stands (``Place.path``); "" for the model.
        layer: Name of its class.
        policy: What it is to compute by.
        code: The reason, in a word that never changes. "rule" for the user's own.
        reason: The same in a sentence.
        replace: What is to take the layer's place, such as "keras_mp.layers.BatchNormalization";
            None to keep it.
        measured: What a calibration batch showed of it; None without one.
    """

    path: str
    layer: str
    policy: str
    code: str
    reason: str
    replace: str | None = None
    measured: Measured | None = None


@dataclass(frozen=True)
class Gradients:
    """What a calibration batch showed of the loss' gradients with respect to all activations.

    Attributes:
        initial_scale: The loss scale to begin with; None if a gradient was not finite.
        zero: Share that is zero by itself. lost: Share that float16 would make zero without loss
            scaling. lost_scaled: And at the initial scale.
    """

    initial_scale: float | None
    zero: float
    lost: float
    lost_scaled: float | None


def written(policy: str, rows: tuple[Row, ...], gradients: Gradients | None) -> str:
    """The parts of a plan as JSON text."""
    plan: dict[str, Any] = {"format": FORMAT, "policy": policy}
    plan["rows"] = [_without_none(asdict(row)) for row in rows]
    if gradients is not None:
        plan["gradients"] = asdict(gradients)
    return json.dumps(plan, indent=1)


def read(text: str) -> tuple[str, tuple[Row, ...], Gradients | None]:
    """The parts of a plan that ``written`` wrote, maybe changed by hand since.

    Raises:
        ValueError: It is no plan, or one of a later format; or a row of it, which the message
            names, is none.
    """
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise ValueError(
                f"The plan has another format. Expected {FORMAT}. "
                f"Received: format={data['format']!r}"
            )
        rows, gradients = data["rows"], data.get("gradients")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise TypeError("rows")
        policy = resolve(data["policy"])
        gradients = None if gradients is None else Gradients(**gradients)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"This is no precision plan. Expected what `to_json` wrote. Received: {text[:80]!r}"
        ) from error
    made = tuple(_row(number, dict(row)) for number, row in enumerate(rows))
    paths = [row.path for row in made]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        raise ValueError(f"Expected one row a layer. Received: several of path={twice[0]!r}")
    return policy, made, gradients


_TEXTS = ("path", "layer", "policy", "code", "reason")


def _row(number: int, row: dict[str, Any]) -> Row:
    where = f"rows[{number}] (path={row.get('path')!r})"
    known = [field.name for field in fields(Row)]
    texts = [key for key in _TEXTS if not isinstance(row.get(key), str)]
    unknown = sorted(set(row) - set(known))
    replaced = isinstance(row.get("replace"), str | None)
    if texts or unknown or not replaced:
        wrong = texts[0] if texts else unknown[0] if unknown else "replace"
        received = repr(row[wrong]) if wrong in row else "nothing"
        raise ValueError(
            f"This is no row of a plan. Expected texts for {', '.join(_TEXTS)}, and nothing but "
            f"{', '.join(known)}. Received: {wrong}={received} in {where}"
        )
    if row["code"] != "quantized":  # Keras' own name of such a policy is no name to ask for
        row["policy"] = resolve(row["policy"], f"policy in {where}")
    try:
        measured = row.pop("measured", None)
        if measured is not None:
            if isinstance(measured.get("largest"), str):
                measured["largest"] = float(measured["largest"])
            row["measured"] = Measured(**measured)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            "Expected what `to_json` wrote of a calibration batch. "
            f"Received: measured={measured!r} in {where}"
        ) from error
    return Row(**row)


def _without_none(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: such magnitudes are strings, as in journals."""
    measured = row.pop("measured")
    if measured is not None:
        largest = measured["largest"]
        if largest is not None and not math.isfinite(largest):
            measured["largest"] = str(largest)
        row["measured"] = measured
    return {key: value for key, value in row.items() if value is not None}
