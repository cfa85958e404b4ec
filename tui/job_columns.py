"""The columns of the jobs table: how wide they are, and how jobs are put in order by each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tui import job_cells as cells
from tui.drawing.roles import Piece
from tui.snapshot import JobView
from tui.widgets.columns import Column


@dataclass(frozen=True)
class JobColumn:
    """A column and how to fill it.

    Attributes:
        cell: (job, short form?) -> (text, role).
        order: What to sort by, largest first where ``descending``; None sorts last.
    """

    column: Column
    cell: Callable[[JobView, bool], Piece]
    order: Callable[[JobView], Any]
    descending: bool = False


def trouble_first(job: JobView) -> tuple[int, float, str]:
    """The order that the table opens with: who needs a person (most who can still be helped), who
    runs, who is over."""
    began = job.meta.started if job.meta else (job.started or 0.0)
    over = job.verdict.state in cells.ENDED
    if job.verdict.severity == "error":
        rank = 1 if over else 0
    elif over:
        rank = 4
    else:
        rank = 2 if job.verdict.severity == "warning" else 3
    return rank, -began, job.name


def _last(column: str) -> Callable[[JobView], float | None]:
    return lambda job: float(job.points[column][-1]) if len(job.points) else None


# Rank 10 and above: shown where there is room to spare.
COLUMNS: tuple[JobColumn, ...] = (
    JobColumn(Column("mark", "", 2, tight=True), cells.mark, lambda j: None),
    JobColumn(
        Column("name", "job", 14, short=10, stretch=26, middle=True),
        cells.name,
        lambda j: j.name.lower(),
    ),
    JobColumn(Column("state", "state", 10, short=8), cells.state, lambda j: j.verdict.state),
    JobColumn(
        Column("policy", "policy", 14, short=8, rank=2), cells.policy, lambda j: j.policy or ""
    ),
    JobColumn(
        Column("epoch", "epoch", 7, right=True, rank=12),
        cells.epoch,
        lambda j: j.epoch,
        descending=True,
    ),
    JobColumn(
        Column("step", "step", 11, short=9, right=True),
        cells.step,
        lambda j: j.step,
        descending=True,
    ),
    JobColumn(Column("loss", "loss", 8, short=7, right=True), cells.loss, lambda j: j.loss),
    JobColumn(
        Column("scale", "scale", 5, right=True), cells.scale, lambda j: j.scale, descending=True
    ),
    JobColumn(
        Column("skip", "skip", 6, short=5, right=True),
        cells.skip,
        lambda j: j.skipped_share,
        descending=True,
    ),
    JobColumn(
        Column("lately", "last 100", 8, right=True, rank=10),
        cells.lately,
        lambda j: j.skipped_lately,
        descending=True,
    ),
    JobColumn(
        Column("rate", "samples/s", 9, short=5, right=True, rank=1, short_title="smp/s"),
        cells.rate,
        lambda j: j.samples_per_second,
        descending=True,
    ),
    JobColumn(
        Column("useful", "useful/s", 8, right=True, rank=11),
        cells.useful,
        lambda j: j.useful_steps_per_second,
        descending=True,
    ),
    JobColumn(
        Column("waits", "input", 6, right=True, rank=16),
        cells.waits,
        lambda j: j.input_share,
        descending=True,
    ),
    JobColumn(
        Column("step_time", "step time", 9, right=True, rank=15),
        cells.step_time,
        _last("step_time_p50"),
        descending=True,
    ),
    JobColumn(
        Column("norm", "grad norm", 9, right=True, rank=18),
        cells.norm,
        _last("grad_norm"),
        descending=True,
    ),
    JobColumn(
        Column("memory", "mem", 8, short=5, right=True, rank=3),
        cells.memory,
        lambda j: j.memory_bytes,
        descending=True,
    ),
    JobColumn(
        Column("room", "room left", 9, right=True, rank=13), cells.room_cell, lambda j: j.room[0]
    ),
    JobColumn(
        Column("eta", "ETA", 9, short=5, right=True, rank=1), cells.eta, lambda j: j.eta_seconds
    ),
    JobColumn(
        Column("took", "elapsed", 9, right=True, rank=17),
        cells.took,
        cells.elapsed,
        descending=True,
    ),
    JobColumn(
        Column("started", "started", 12, right=True, rank=19),
        cells.started,
        lambda j: j.started,
        descending=True,
    ),
    JobColumn(Column("result", "result", 12, rank=14, stretch=20), cells.result, lambda j: None),
)
BY_KEY = {c.column.key: c for c in COLUMNS}
