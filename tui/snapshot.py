"""What the dashboard shows at one moment: values that nobody changes any more.

The reader makes a snapshot in its thread; widgets draw it in theirs. Nothing in it is shared with
the fold that goes on behind it: arrays are read-only views that later points do not touch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_mp.telemetry.health import Verdict
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.records import Alert, End, Memory, Meta, Numerics, Overflow
from tui.devices import NO_DEVICES, Devices
from tui.room import room
from tui.table import NO_POINTS, Floats, Table

__all__ = ["EVENTS_KEPT", "Floats", "JobView", "Snapshot", "Table", "view"]

# Enough for the longest list a terminal shows; the total is a number.
EVENTS_KEPT = 500
# Steps that "lately" means in the table of jobs.
LATELY = 100


@dataclass(frozen=True, kw_only=True)
class JobView:
    """One job. Times are seconds since the epoch, memory bytes, shares 0 to 1; None: not known.

    Attributes:
        key: Tells jobs of different folders and hosts apart. place: The folder or host, as given.
        away: Its host does not answer; everything here is the last that is known.
        verdict: The one judgement of it (``health.verdict``), at the snapshot's time.
        points, scales, memories: ``Job.series``, ``.scales``, ``.memories``.
        skips: Step and time of each skipped step. overflows: The latest of them, with their layer.
        skipped_lately: Of the last 100 steps, 0 to 1.
        input_share: Of its recent time, the part that it waited for batches.
        pids: Its processes. room: (bytes it may still take, bytes in all) of its device.
        numerics: The last record of each tensor. layer_shares: (layer or variable, tensor) -> what
            it lost over the run (``telemetry.layer_shares``); its version.
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
    skipped_lately: float | None = None
    samples_per_second: float | None = None
    steps_per_second: float | None = None
    useful_steps_per_second: float | None = None
    memory_bytes: int | None = None
    memory: Memory | None = None
    pids: frozenset[int] = frozenset()
    room: tuple[int | None, int | None] = (None, None)
    tokens_per_second: float | None = None
    input_share: float | None = None
    eta_seconds: float | None = None
    started: float | None = None
    last_time: float | None = None
    nan_step: int | None = None
    end: End | None = None
    overflow_count: int = 0
    loading: float = 1.0
    resumed: int = 0
    points: Table = NO_POINTS
    scales: Table = NO_POINTS
    memories: Table = NO_POINTS
    skips: Table = NO_POINTS
    overflows: Sequence[Overflow] = ()
    alerts: Sequence[Alert] = ()
    results: Mapping[str, float] = field(default_factory=dict)
    numerics: Sequence[Numerics] = ()
    layer_shares: Mapping[tuple[str, str], Table] = field(default_factory=dict)
    layers_version: int = 0
    problems: Sequence[str] = ()


_SAME_NAME = (
    *("run_id", "name", "meta", "policy", "scaled", "step", "planned_steps", "epoch", "progress"),
    *("loss", "scale", "skipped", "skipped_share", "samples_per_second", "steps_per_second"),
    *("useful_steps_per_second", "memory_bytes", "memory", "eta_seconds", "started", "last_time"),
    *(
        "tokens_per_second",
        "input_share",
        "nan_step",
        "end",
        "overflow_count",
        "loading",
        "resumed",
    ),
)


def view(
    job: Job,
    key: str,
    place: str,
    verdict: Verdict,
    skips: Table,
    away: bool = False,
    devices: Devices = NO_DEVICES,
    before: JobView | None = None,
) -> JobView:
    """The job as it is now. ``before``: an earlier view of it, whose unchanged parts are kept."""
    values: dict[str, Any] = {name: getattr(job, name) for name in _SAME_NAME}
    pids = frozenset(
        [rank.pid for rank in job.ranks.values() if rank.pid is not None]
        + ([job.meta.pid] if job.meta is not None else [])
    )
    version = job.layer_shares.version
    if before is not None and before.layers_version == version:
        layers = before.layer_shares
    else:
        layers = {name: _table(series) for name, series in job.layer_shares.items()}
    return JobView(
        key=key,
        place=place,
        folder=str(job.folder),
        verdict=verdict,
        away=away,
        good_steps=job.latest.good_steps if job.latest else None,
        skipped_lately=_lately(job),
        pids=pids,
        room=room(job, pids, devices),
        points=_table(job.series),
        scales=_table(job.scales),
        memories=_table(job.memories),
        skips=skips,
        overflows=tuple(job.overflows)[-EVENTS_KEPT:],
        alerts=tuple(job.alerts)[-EVENTS_KEPT:],
        results=dict(job.results),
        numerics=tuple(job.numerics.values()),
        layer_shares=layers,
        layers_version=version,
        problems=tuple(job.problems),
        **values,
    )


def _lately(job: Job) -> float | None:
    """Share of the last 100 steps that were skipped; None where single skips are not told."""
    if job.skipped is None or not job.step or (job.skipped and not job.overflow_count):
        return None
    steps = min(LATELY, job.step)
    return min(1.0, job.skips_within(steps) / steps)


def _table(series: Any) -> Table:
    return Table({name: series[name] for name in series.columns})


@dataclass(frozen=True)
class Snapshot:
    """All jobs at one moment.

    Attributes:
        time: When the reader looked (seconds since the epoch).
        jobs: In no particular order. errors: What could not be read at all, in sentences.
        behind: Whether some history is still being read.
        devices: What this machine has left.
    """

    time: float
    jobs: Sequence[JobView] = ()
    errors: Sequence[str] = ()
    behind: bool = False
    devices: Devices = NO_DEVICES
