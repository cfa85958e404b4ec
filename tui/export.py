"""What is shown, as CSV: for a spreadsheet or another program."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from keras_mp.telemetry.folders import folder_name
from tui.job_columns import COLUMNS
from tui.snapshot import JobView


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
