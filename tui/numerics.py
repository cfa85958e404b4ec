"""The tensors of a job whose numbers were recorded: which, in which order, and how they do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from keras_mp.numerics.rows import KINDS, Kind, Row
from keras_mp.telemetry.records import Numerics
from tui.snapshot import JobView
from tui.table import NO_POINTS, Table

# The formats that a tensor can be looked at in, in the order of the key.
FORMATS = ("float16", "bfloat16", "float8_e5m2", "float8_e4m3")
Shown = Literal["lost", "headroom"]
TITLES: dict[Kind, str] = {
    "activation": "activations",
    "gradient": "gradients",
    "weight_gradient": "weight gradients",
}


@dataclass(frozen=True)
class Tensor:
    """One tensor: what was measured last, and what it lost over the run."""

    row: Row
    record: Numerics
    shares: Table

    @property
    def name(self) -> str:
        return self.row.name


def kinds(job: JobView) -> list[Kind]:
    """Those that the job has recorded; gradients first, as they are what a loss scale is for."""
    there = {record.tensor for record in job.numerics}
    return [kind for kind in (KINDS[1], KINDS[2], KINDS[0]) if kind in there]


def tensors(job: JobView, kind: Kind, fmt: str, scale: float | None, worst: bool) -> list[Tensor]:
    """The job's tensors of one kind, in the order of the forward pass, or the worst first."""
    found = [
        Tensor(
            Row.of_record(record),
            record,
            job.layer_shares.get((record.variable or record.layer, record.tensor), NO_POINTS),
        )
        for record in job.numerics
        if record.tensor == kind
    ]
    return sorted(found, key=lambda t: _badness(t.row, fmt, scale)) if worst else found


def _badness(row: Row, fmt: str, scale: float | None) -> tuple[float, float, float]:
    """What overflows first, then what loses most, then what has the least room."""
    told, room = row.shares(fmt, scale), row.headroom(fmt, scale)
    return -(told.overflow + told.nan), -told.lost_of_nonzero, room if room is not None else 1e9


def span(found: Sequence[Tensor]) -> tuple[float, float] | None:
    """First and last step of all of them; None before the first."""
    ends = [(float(t.shares["step"][0]), float(t.shares["step"][-1])) for t in found if t.shares]
    if not ends:
        return None
    start, stop = min(e[0] for e in ends), max(e[1] for e in ends)
    return (start, stop) if stop > start else (start - 0.5, stop + 0.5)
