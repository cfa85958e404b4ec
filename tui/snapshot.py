"""What the dashboard shows at one moment: values that nobody changes any more.

The reader makes a snapshot in its thread; widgets draw it in theirs. Nothing in it is shared with
the fold that goes on behind it: arrays are read-only views that later points do not touch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_mp.telemetry.health import Verdict
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.records import Alert, End, Memory, Meta, Numerics, Overflow

Floats = NDArray[np.float64]

# Enough for the longest list a terminal shows; the total is a number.
EVENTS_KEPT = 500


@dataclass(frozen=True)
class Table:
    """Columns of points, with the step and time of each."""

    columns: Mapping[str, Floats] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Floats:
        column = self.columns.get(name)
        return np.full(len(self), np.nan) if column is None else column

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __len__(self) -> int:
        step = self.columns.get("step")
        return 0 if step is None else len(step)


@dataclass(frozen=True, kw_only=True)
class JobView:
    """One job. Times are seconds since the epoch, memory bytes, shares 0 to 1; None: not known.

    Attributes:
        key: Tells jobs of different folders and hosts apart. place: The folder or host, as given.
        away: Its host does not answer; everything here is the last that is known.
        verdict: The one judgement of it (``health.verdict``), at the snapshot's time.
        points, scales, memories: ``Job.series``, ``.scales``, ``.memories``.
        skips: Step and time of each skipped step. overflows: The latest of them, with their layer.
    """

    key: str
    place: str
    run_id: str
    name: str
    folder: str
    verdict: Verdict
    away: bool = False
    meta: Meta | None = None
    policy: str | None = None
    scaled: bool = False
    step: int = 0
    planned_steps: int | None = None
    epoch: int | None = None
    progress: float | None = None
    loss: float | None = None
    scale: float | None = None
    good_steps: int | None = None
    skipped: int | None = None
    skipped_share: float | None = None
    samples_per_second: float | None = None
    steps_per_second: float | None = None
    useful_steps_per_second: float | None = None
    memory_bytes: int | None = None
    memory: Memory | None = None
    eta_seconds: float | None = None
    started: float | None = None
    last_time: float | None = None
    nan_step: int | None = None
    end: End | None = None
    overflow_count: int = 0
    loading: float = 1.0
    resumed: int = 0
    points: Table = Table()
    scales: Table = Table()
    memories: Table = Table()
    skips: Table = Table()
    overflows: Sequence[Overflow] = ()
    alerts: Sequence[Alert] = ()
    results: Mapping[str, float] = field(default_factory=dict)
    numerics: Sequence[Numerics] = ()
    problems: Sequence[str] = ()


_SAME_NAME = (
    *("run_id", "name", "meta", "policy", "scaled", "step", "planned_steps", "epoch", "progress"),
    *("loss", "scale", "skipped", "skipped_share", "samples_per_second", "steps_per_second"),
    *("useful_steps_per_second", "memory_bytes", "memory", "eta_seconds", "started", "last_time"),
    *("nan_step", "end", "overflow_count", "loading", "resumed"),
)


def view(
    job: Job, key: str, place: str, verdict: Verdict, skips: Table, away: bool = False
) -> JobView:
    """The job as it is now."""
    values: dict[str, Any] = {name: getattr(job, name) for name in _SAME_NAME}
    return JobView(
        key=key,
        place=place,
        folder=str(job.folder),
        verdict=verdict,
        away=away,
        good_steps=job.latest.good_steps if job.latest else None,
        points=_table(job.series),
        scales=_table(job.scales),
        memories=_table(job.memories),
        skips=skips,
        overflows=tuple(job.overflows)[-EVENTS_KEPT:],
        alerts=tuple(job.alerts)[-EVENTS_KEPT:],
        results=dict(job.results),
        numerics=tuple(job.numerics.values()),
        problems=tuple(job.problems),
        **values,
    )


def _table(series: Any) -> Table:
    return Table({name: series[name] for name in series.columns})


@dataclass(frozen=True)
class Snapshot:
    """All jobs at one moment.

    Attributes:
        time: When the reader looked (seconds since the epoch).
        jobs: In no particular order. errors: What could not be read at all, in sentences.
        behind: Whether some history is still being read.
    """

    time: float
    jobs: Sequence[JobView] = ()
    errors: Sequence[str] = ()
    behind: bool = False
