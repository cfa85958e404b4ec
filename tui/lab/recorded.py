"""What the lab shows of real runs: read once from tui/lab/data (tests/recorded/lab.py wrote it)."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from keras_mp.numerics.histogram import Histogram
from keras_mp.telemetry.records import Numerics


@dataclass(frozen=True)
class Source:
    """A tensor's histogram of magnitudes, unscaled, as float32 has them.

    Attributes:
        title: Which tensor. where: Of which run, and when.
    """

    title: str
    where: str
    histogram: Histogram


@dataclass(frozen=True)
class Overflows:
    """A recorded run, step by step.

    Attributes:
        what: The run, in words.
        log2_limit: Of each step, log2 of the scale above which its float16 gradients overflow.
    """

    what: str
    log2_limit: tuple[float, ...]


@dataclass(frozen=True)
class Net:
    """A net's size and what it keeps for the backward pass, measured.

    Attributes:
        parameters: Trainable numbers.
        kept, kept_stock, kept_ours: Bytes a sample in float32, in mixed_bfloat16 with Keras' own
            layers, and as ``keras_mp.plan`` has it.
        casts_stock, casts_ours: Bytes of half-precision copies of weights, kept besides.
    """

    name: str
    parameters: int
    kept: float
    kept_stock: float
    kept_ours: float
    casts_stock: int
    casts_ours: int


def _load(name: str) -> Any:
    text = (resources.files("tui.lab") / "data" / name).read_text(encoding="utf-8")
    return json.loads(text)


_TENSORS = {
    "activation": "output of",
    "gradient": "gradient at",
    "weight_gradient": "weight gradient of",
}


@cache
def demo_gradients() -> tuple[Source, ...]:
    """The demo's net, trained and fresh: all gradients together first, then tensor by tensor."""
    found: list[Source] = []
    for moment in reversed(_load("gradients.json")["moments"]):
        step = moment["step"]
        where = f"the demo's net, {'fresh' if step == 0 else f'after {step} steps'}"
        tensors = [
            Source(
                f"{_TENSORS[t['tensor']]} {t['layer']}",
                where,
                Histogram(
                    {int(k): v for k, v in t["histogram"].items()}, t["zeros"], 0, 0, t["largest"]
                ),
            )
            for t in moment["tensors"]
        ]
        found += [_together(tensors, where), *tensors]
    return tuple(found)


def _together(tensors: Sequence[Source], where: str) -> Source:
    whole = Histogram(largest=0.0)
    for tensor in tensors:
        whole = whole + tensor.histogram
    return Source("all gradients", where, whole)


def job_gradients(name: str, numerics: Iterable[Numerics]) -> tuple[Source, ...]:
    """The newest histograms of a job's journal; none where it recorded no numerics."""
    newest: dict[tuple[str, str, str | None], Numerics] = {}
    for record in numerics:
        if record.histogram and record.tensor in _TENSORS:
            newest[record.layer, record.tensor, record.variable] = record
    found = [
        Source(
            f"{_TENSORS[r.tensor]} {r.variable or r.layer}",
            f"{name}, step {r.step:,}",
            Histogram(
                {int(k): v for k, v in r.histogram.items()},
                r.zeros or 0,
                r.infinities or 0,
                r.nans or 0,
                r.largest,
            ),
        )
        for r in newest.values()
    ]
    gradients = [s for s in found if not s.title.startswith("output")]
    if len(gradients) > 1:
        found.insert(0, _together(gradients, f"{name}, its newest"))
    return tuple(found)


@cache
def overflows() -> Overflows:
    found = _load("overflows.json")
    return Overflows(found["what"], tuple(found["log2_limit"]))


@cache
def nets() -> tuple[Net, ...]:
    return tuple(
        Net(
            net["name"],
            net["parameters"],
            net["float32"]["bytes_a_sample"],
            net["stock"]["bytes_a_sample"],
            net["ours"]["bytes_a_sample"],
            net["stock"]["weight_casts"],
            net["ours"]["weight_casts"],
        )
        for net in _load("memory.json")["nets"]
    )
