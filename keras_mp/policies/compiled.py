"""Losses and metrics of a compiled model that are wrong for its half-precision outputs.

Which of Keras' are, the sweep found (``tests/sweep/known_losses.py``): metrics compute in the
predictions' dtype and cast the labels to it. Its loss classes compute in ``floatx``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras

from keras_mp._precision import HALF

# Whole numbers up to this are exact.
_WHOLE = {"float16": 2048, "bfloat16": 256}
# They compare class ids in the predictions' dtype.
_IDS = ("Accuracy", "CategoricalAccuracy", "SparseCategoricalAccuracy")
# They raise on tensorflow.
_RAISING = ("TopKCategoricalAccuracy", "SparseTopKCategoricalAccuracy")
# They compute with labels and predictions in the predictions' dtype.
_NUMBERS = (
    *("MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError"),
    *("MeanSquaredLogarithmicError", "LogCoshError", "CosineSimilarity", "Poisson"),
    *("PearsonCorrelation", "ConcordanceCorrelation", "KLDivergence", "SquaredHinge"),
    *("BinaryCrossentropy", "CategoricalCrossentropy", "SparseCategoricalCrossentropy"),
)


@dataclass(frozen=True)
class Wrong:
    """One finding.

    Attributes:
        error: Whether results are wrong, or the call raises; otherwise they are rounded.
        code: "stock-metric" or "half-loss".
        why: In a sentence.
        fix: Python code.
    """

    error: bool
    code: str
    why: str
    fix: str


def wrong_metrics(model: Any, half: str, classes: int | None) -> Iterator[Wrong]:
    """What compiled metrics of Keras' own do wrong with half-precision outputs.

    Args:
        half: The outputs' dtype.
        classes: The size of the outputs' last axis; None if it is not known.
    """
    config = _compiled(model)
    metrics, weighted = config.get("metrics"), config.get("weighted_metrics")
    writer = _Writer(model, half, classes)
    arguments = [f"{n}={writer.write(m)}" for n, m in _given(metrics, weighted)]
    if not writer.found:
        return
    rest = "".join(
        f", {name}={config[name]!r}" for name in ("loss_weights",) if config.get(name) is not None
    )
    fix = f"model.compile(optimizer=model.optimizer, loss=model.loss{rest}, {', '.join(arguments)})"
    for name, error, why in writer.found:
        yield Wrong(error, "stock-metric", f"keras.metrics.{name} {why}", fix)


def half_losses(model: Any) -> Iterator[Wrong]:
    """Compiled losses that compute in half precision, by their own dtype or by ``floatx``."""
    loss = getattr(model, "loss", None)
    for one in keras.tree.flatten(loss):
        dtype = getattr(one, "dtype", None) or keras.config.floatx()
        made = _loss_class(one)
        if dtype not in HALF or made is None:
            continue
        config = one.get_config() if isinstance(one, keras.Loss) else {}
        written = (
            f"keras_mp.losses.{made}.from_config({config!r})"
            if config
            else (f"keras_mp.losses.{made}()")
        )
        yield Wrong(
            True,
            "half-loss",
            f"the loss {made} computes in {dtype}: labels are rounded to it, and sums overflow",
            f"model.compile(optimizer=model.optimizer, loss={written})",
        )


def last_axis(model: Any) -> int | None:
    """The largest size of the last axis of a model's outputs; None if no graph tells it."""
    sizes = [output.shape[-1] for output in getattr(model, "outputs", None) or [] if output.shape]
    return max((size for size in sizes if size is not None), default=None)


def _given(*structures: Any) -> Iterator[tuple[str, Any]]:
    for name, structure in zip(("metrics", "weighted_metrics"), structures, strict=True):
        if structure:
            yield name, structure


def _compiled(model: Any) -> dict[str, Any]:
    if not getattr(model, "compiled", False):
        return {}
    try:
        return model.get_compile_config() or {}
    except (ValueError, TypeError):  # metrics that have no config
        return {}


class _Writer:
    """Writes a structure of metrics as Python, with ours for those that are wrong.

    Attributes:
        found: (class of Keras', whether it is an error, what it does) for each of those.
    """

    def __init__(self, model: Any, half: str, classes: int | None):
        self.model, self.half, self.classes = model, half, classes
        self.found: list[tuple[str, bool, str]] = []

    def write(self, entry: Any) -> str:
        if entry is None:
            return "None"
        if isinstance(entry, (list, tuple)):
            return f"[{', '.join(map(self.write, entry))}]"
        if isinstance(entry, str):
            made, config = self._of_name(entry), {"name": entry}
        elif "class_name" not in entry:
            return f"{{{', '.join(f'{k!r}: {self.write(v)}' for k, v in entry.items())}}}"
        elif entry["class_name"] == "function" and isinstance(entry["config"], str):
            made, config = self._of_name(entry["config"]), {"name": entry["config"]}
        elif entry.get("module") == "keras.metrics":
            made, config = entry["class_name"], entry["config"]
        else:
            made, config = None, {}
        if made is not None and self._is_wrong(made):
            return _construction(made, config)
        return repr(entry) if isinstance(entry, str) else (f"keras.metrics.deserialize({entry!r})")

    def _is_wrong(self, name: str) -> bool:
        whole = _WHOLE[self.half]
        if name in _IDS and (self.classes is None or self.classes > whole):
            why = f"casts class ids to {self.half}, in which {whole + 1:,} is {whole:,}: wrong "
            self.found.append((name, True, why + "predictions count as right"))
        elif name in _RAISING and keras.backend.backend() == "tensorflow":
            self.found.append((name, True, f"raises on tensorflow for {self.half} predictions"))
        elif name in _NUMBERS:
            why = f"computes in {self.half}, labels too"
            if self.half == "float16":
                why += ": what is past 65,504, as squares above 256 are, becomes infinite"
            self.found.append((name, self.half == "float16", why))
        else:
            return False
        return True

    def _of_name(self, name: str) -> str | None:
        """The class that Keras takes for a name, among those that ours has."""
        if name.lower() in ("accuracy", "acc"):
            loss = str(getattr(self.model.loss, "name", self.model.loss)).lower()
            if self.classes == 1:
                return "BinaryAccuracy"
            return "SparseCategoricalAccuracy" if "sparse" in loss else "CategoricalAccuracy"
        try:
            found = keras.metrics.get(name)
        except ValueError:
            return None
        if isinstance(found, keras.Metric):
            return type(found).__name__
        plain = getattr(found, "__name__", "")
        camel = "".join(part.capitalize() for part in plain.split("_"))
        special = {"LogCosh": "LogCoshError", "KlDivergence": "KLDivergence"}
        return special.get(camel, camel if hasattr(keras.metrics, camel) else None)


def _construction(name: str, config: dict[str, Any]) -> str:
    """Python for our class, with the arguments that are not its defaults."""
    import keras_mp.metrics

    made = getattr(keras_mp.metrics, name)
    try:
        usual = made().get_config()
    except TypeError:  # it has arguments that must be given
        usual = {}
    changed = {k: v for k, v in config.items() if usual.get(k, ...) != v and k != "dtype"}
    return f"keras_mp.metrics.{name}({', '.join(f'{k}={v!r}' for k, v in changed.items())})"


def _loss_class(loss: Any) -> str | None:
    if isinstance(loss, keras.Loss):
        return type(loss).__name__ if type(loss).__module__.startswith("keras.src.") else None
    try:
        found = keras.losses.get(loss)
    except (ValueError, TypeError):
        return None
    name = getattr(found, "__name__", type(found).__name__)
    camel = "".join(part.capitalize() for part in name.split("_"))
    special = {"KlDivergence": "KLDivergence", "Ctc": "CTC", "LogCosh": "LogCosh"}
    camel = special.get(camel, camel)
    return camel if hasattr(keras.losses, camel) else None
