"""Published training speeds and accuracies in float32 or TF32 and in mixed precision, with sources.

From ``published.csv`` and ``accuracy.csv``; none was measured by this project. The figures of
arXiv:1710.03740 are as several independent summaries of its tables give them. The V100's speeds
compare with float32, the A100's with TF32, which already uses the tensor cores: their gains are
smaller for that reason.
"""

import csv
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from keras_mp.bench.estimate import Range


@dataclass(frozen=True)
class Row:
    """One published pair of speeds.

    Attributes:
        batch: As the source gives it; "40/64" is 40 in the baseline and 64 in mixed precision, and
            "" where it does not say.
        baseline, mixed: Throughput in ``unit``. speedup: As published. gpus: How many cards.
        source: Repository, file, and the first 8 digits of its commit.
    """

    kind: str
    model: str
    framework: str
    hardware: str
    batch: str
    baseline_precision: str
    baseline: float
    mixed_precision: str
    mixed: float
    unit: str
    speedup: float
    gpus: int
    source: str

    @property
    def card(self) -> str:
        """The card without its memory: "V100"."""
        return self.hardware.split()[0]


@dataclass(frozen=True)
class Accuracy:
    """A published pair of results of one training.

    Attributes:
        higher_is_better: Of the metric. baseline, mixed: In the metric's own unit.
        note: On what, and what was special; "" if nothing was.
    """

    kind: str
    model: str
    metric: str
    higher_is_better: bool
    baseline_precision: str
    baseline: float
    mixed: float
    note: str
    source: str


@dataclass(frozen=True)
class Published:
    """What is published for a question.

    Attributes:
        speedup: From the lowest to the highest figure, with their median.
        rows: The figures that the range is made of. exact: How many of them, the first ones, are of
            the model that was asked for.
        basis: What the range stands on, as a clause.
    """

    speedup: Range
    rows: tuple[Row, ...]
    exact: int
    basis: str


class NothingPublishedError(LookupError):
    """There is no figure for that model or card; the message says for what there is."""


def _read(name: str) -> csv.DictReader:
    text = (resources.files(__package__) / name).read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())


@cache
def accuracies() -> tuple[Accuracy, ...]:
    """Every row of the table of accuracies: the 2018 paper's first."""
    return tuple(
        Accuracy(
            kind=row["kind"],
            model=row["model"],
            metric=row["metric"],
            higher_is_better=row["better"] == "higher",
            baseline_precision=row["baseline_precision"],
            baseline=float(row["baseline"]),
            mixed=float(row["mixed"]),
            note=row["note"],
            source=row["source"],
        )
        for row in _read("accuracy.csv")
    )


@cache
def rows() -> tuple[Row, ...]:
    """Every row of the table of speeds."""
    return tuple(
        Row(
            kind=row["kind"],
            model=row["model"],
            framework=row["framework"],
            hardware=row["hardware"],
            batch=row["batch"],
            baseline_precision=row["baseline_precision"],
            baseline=float(row["baseline_throughput"]),
            mixed_precision=row["mixed_precision"],
            mixed=float(row["mixed_throughput"]),
            unit=row["unit"],
            speedup=float(row["speedup"]),
            gpus=int(row["gpus"]),
            source=row["source"],
        )
        for row in _read("published.csv")
    )


def look_up(device: str | None = None, model: str | None = None) -> Published:
    """The published range for a model, a card, or both; never a single number.

    Where one figure alone is published for the model on that card, the range is that of its kind
    of model there, and failing that of everything there.

    Args:
        device: Part of a card's name, such as "V100" or "NVIDIA A100-SXM4-80GB".
        model: Part of a model's name, such as "resnet50", or of a kind, such as "recommender".

    Raises:
        NothingPublishedError: No figure fits.
    """
    if device is None and model is None:
        raise ValueError("A device, a model or both are needed. Received: neither")
    on_card = [row for row in rows() if device is None or _is_card(row, device)]
    if not on_card:
        cards = sorted({row.card for row in rows()})
        raise NothingPublishedError(
            f"No training speed is published here for {device!r}. Cards with figures: "
            f"{', '.join(cards)}"
        )
    wanted = [row for row in on_card if model is None or _is_model(row, model)]
    if not wanted:
        elsewhere = sorted({row.card for row in rows() if model and _is_model(row, model)})
        if elsewhere:
            raise NothingPublishedError(
                f"No training speed of {model!r} is published here for {device!r}. There is one "
                f"for {', '.join(elsewhere)}"
            )
        names = list(dict.fromkeys(row.model for row in on_card))
        raise NothingPublishedError(
            f"No training speed is published here for a model {model!r}. Models with figures: "
            f"{'; '.join(names)}"
        )
    where = f" on {wanted[0].card}" if device else ""
    what = _names(wanted) if model else "all models"
    if _spread(wanted):
        return _published(wanted, len(wanted), f"{_figures(wanted)} for {what}{where}")
    kind = wanted[0].kind
    of_kind = [row for row in on_card if row.kind == kind and row not in wanted]
    if _spread([*wanted, *of_kind]):
        basis = f"one figure for {what}{where}; the range is that of {kind} there"
        return _published([*wanted, *of_kind], len(wanted), basis)
    rest = [row for row in on_card if row not in wanted]
    basis = f"one figure for {what}{where}; the range is that of every model there"
    return _published([*wanted, *rest], len(wanted), basis)


def _published(found: Sequence[Row], exact: int, basis: str) -> Published:
    ups = [row.speedup for row in found]
    return Published(Range(min(ups), max(ups), statistics.median(ups)), tuple(found), exact, basis)


def _spread(found: Sequence[Row]) -> bool:
    return len({row.speedup for row in found}) > 1


def _figures(found: Sequence[Row]) -> str:
    return f"{len(found)} figure{'s' if len(found) != 1 else ''}"


def _names(found: Sequence[Row]) -> str:
    names = list(dict.fromkeys(row.model for row in found))
    return names[0] if len(names) == 1 else f"{len(names)} models"


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _is_card(row: Row, device: str) -> bool:
    """By the card's own name and, where the question names it, its memory."""
    asked = _letters(device)
    memory = re.search(r"(\d+)\s*GB", device, re.IGNORECASE)
    if memory and memory[1] not in re.findall(r"(\d+)GB", row.hardware):
        return False
    return bool(asked) and (_letters(row.card) in asked or asked in _letters(row.hardware))


def _is_model(row: Row, model: str) -> bool:
    asked = _letters(model)
    return bool(asked) and (asked in _letters(row.model) or asked in _letters(row.kind))
