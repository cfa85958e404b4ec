"""A run as the advice reads it: its job, and all of its numerics records."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from keras_mp.telemetry.folders import parse_events_file
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.records import Numerics, Start
from keras_mp.telemetry.runs import RunsFolder
from keras_mp.telemetry.tail import JournalFile


def material(run: Any, meta: Any = None) -> tuple[Job, list[Numerics]]:
    """(job, numerics records in order) of a run's folder, of its records, or of a Job.

    Raises:
        ValueError: There is no such run.
    """
    if isinstance(run, Job):
        return run, list(run.numerics.values())
    if isinstance(run, str | os.PathLike):
        return _of_folder(Path(run))
    job = Job("run")
    job.meta = meta
    kept: list[Numerics] = []
    for record in run:
        job.apply(record)
        _keep(kept, record)
    return job, kept


def _of_folder(path: Path) -> tuple[Job, list[Numerics]]:
    folder = RunsFolder(path)
    folder.poll(seconds=None)
    if folder.error is not None or len(folder.jobs) != 1:
        found = folder.error or f"{len(folder.jobs)} runs"
        raise ValueError(f"Expected the folder of one run. Received: {str(path)!r} ({found})")
    job = folder.jobs[0]
    kept: list[Numerics] = []
    for file in _files(Path(job.folder)):
        for record in JournalFile(file).read():
            _keep(kept, record)
    return job, kept


def _files(folder: Path) -> Iterable[Path]:
    """The files of the lowest rank, in order."""
    named = [(parse_events_file(path.name), path) for path in folder.iterdir()]
    known = sorted((place, path) for place, path in named if place is not None)
    lowest = known[0][0][0] if known else 0
    return [path for (rank, _), path in known if rank == lowest]


def _keep(kept: list[Numerics], record: Any) -> None:
    if isinstance(record, Numerics):
        kept.append(record)
    elif isinstance(record, Start) and not record.continues:
        # What came after the step that the job was started again from is of lost work.
        kept[:] = [one for one in kept if one.step <= record.step]
