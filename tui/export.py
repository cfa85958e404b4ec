"""What is shown, as CSV: for a spreadsheet or another program."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keras_mp.telemetry.folders import folder_name
from tui.job_columns import COLUMNS
from tui.snapshot import JobView

if TYPE_CHECKING:
    from tui.numerics import Tensor


def jobs_csv(jobs: Iterable[JobView]) -> str:
    """The table of jobs, all columns, values as the dashboard writes them."""
    columns = [c for c in COLUMNS if c.column.title]
    rows: list[Sequence[str]] = [[c.column.title for c in columns]]
    rows += [[c.cell(job, False)[0] for c in columns] for job in jobs]
    return _csv(rows)


def job_csv(job: JobView) -> str:
    """A job's points in full precision, a row a record; empty where nothing was measured."""
    names = list(job.points.columns)
    rows: list[Sequence[str]] = [names]
    columns = [job.points[name] for name in names]
    for values in zip(*columns, strict=True):
        rows.append(["" if np.isnan(v) else repr(float(v)) for v in values])
    return _csv(rows)


def compare_csv(jobs: Sequence[JobView]) -> str:
    """Loss by step, a column a job; empty where that job wrote nothing at that step."""
    losses = [dict(zip(j.points["step"], j.points["loss"], strict=True)) for j in jobs]
    steps = sorted(set().union(*losses))
    rows: list[Sequence[str]] = [["step", *(job.name for job in jobs)]]
    for step in steps:
        values = [loss.get(step, np.nan) for loss in losses]
        rows.append([f"{step:.0f}", *("" if np.isnan(v) else repr(float(v)) for v in values)])
    return _csv(rows)


def layers_csv(tensors: "Sequence[Tensor]", fmt: str, scale: float | None) -> str:
    """The numerics of a job's layers as the screen shows them."""
    rows: list[Sequence[str]] = [_LAYER_TITLES]
    for tensor in tensors:
        row = tensor.row
        used = row.scale if scale is None or row.tensor == "activation" else scale
        told, room = row.shares(fmt, used), row.headroom(fmt, used)
        values = (told.zero, told.lost, told.subnormal, told.normal, told.near, told.overflow)
        rows.append(
            [
                *(row.name, row.tensor, str(tensor.record.step), fmt, repr(used)),
                *(repr(value) for value in values),
                "" if room is None else repr(room),
            ]
        )
    return _csv(rows)


_LAYER_TITLES = (
    *("name", "tensor", "step", "format", "scale"),
    *("zero", "lost", "subnormal", "normal", "near", "overflow", "headroom"),
)


def _csv(rows: Iterable[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def free_path(stem: str, suffix: str) -> Path:
    """A file name in the current folder that is not taken."""
    stem = folder_name(stem)
    path = Path(f"{stem}{suffix}")
    number = 2
    while path.exists():
        path = Path(f"{stem}-{number}{suffix}")
        number += 1
    return path


def write(path: Path, text: str) -> str | None:
    """Write a file. Returns what is wrong, in a sentence, or None."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        return f"{path} cannot be written ({error.strerror})"
    return None
