"""A finished or running job's journal as TensorBoard event files or as CSV."""

import csv
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_mp.telemetry import event_proto as proto
from keras_mp.telemetry import records as r
from keras_mp.telemetry.decode import decode_meta
from keras_mp.telemetry.exchange import MEMORY, about_run, events_of
from keras_mp.telemetry.folders import MAX_META_BYTES, events_file, meta_file, parse_events_file
from keras_mp.telemetry.growing import read_start
from keras_mp.telemetry.tail import JournalFile
from keras_mp.telemetry.tfrecord import frame


def is_run(folder: Path) -> bool:
    """Whether ``folder`` holds a journal of ours."""
    try:
        return any(map(parse_events_file, os.listdir(folder)))
    except OSError:
        return False


def ranks_of(folder: Path) -> list[int]:
    """The processes that wrote there."""
    places = filter(None, map(parse_events_file, os.listdir(folder)))
    return sorted({rank for rank, _ in places})


def meta_of(folder: Path, rank: int = 0) -> r.Meta | None:
    """The run's ``meta.json``; None if there is none that can be read."""
    try:
        return decode_meta(read_start(folder / meta_file(rank), MAX_META_BYTES))
    except OSError:
        return None


def _read(folder: Path, rank: int) -> Iterator[r.Record]:
    places = filter(None, map(parse_events_file, os.listdir(folder)))
    for seq in sorted(seq for found, seq in places if found == rank):
        for block in JournalFile(folder / events_file(rank, seq)).blocks():
            yield from block


def records_of(folder: Path, rank: int = 0) -> Iterator[r.Record]:
    """A rank's records in order, without those of work that was lost and done again.

    Reads twice and keeps nothing but the restarts, so a journal of gigabytes is no matter.
    """
    restarts: list[tuple[int, int]] = []  # (which record, steps done before it)
    for number, record in enumerate(_read(folder, rank)):
        if isinstance(record, r.Start) and number and not record.continues:
            restarts.append((number, record.step))
    least = math.inf
    bounds: list[tuple[int, float]] = []
    for number, step in reversed(restarts):
        least = min(least, step)
        bounds.append((number, least))
    for number, record in enumerate(_read(folder, rank)):
        while bounds and bounds[-1][0] <= number:
            bounds.pop()
        if not bounds or getattr(record, "step", 0) <= bounds[-1][1]:
            yield record


@dataclass(frozen=True)
class Exported:
    """What was written: the file and how many records or rows."""

    path: Path
    count: int


def export_tensorboard(run: str | os.PathLike[str], into: str | os.PathLike[str]) -> list[Exported]:
    """A run's journal as event files, ``into/<run>``; of further ranks in ``into/<run>/rank-<n>``.

    Exported again, it replaces what an earlier export wrote.

    Raises:
        OSError: If it cannot be read or written.
    """
    run = Path(run)
    out = []
    for rank in ranks_of(run):
        meta = meta_of(run, rank)
        folder = Path(into) / (
            run.resolve().name if rank == 0 else f"{run.resolve().name}/rank-{rank}"
        )
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"events.out.tfevents.{0:010d}.keras-mp-export.{rank}.0"
        scratch = path.with_name(f".export.{os.getpid()}")
        count = 0
        try:
            with open(scratch, "wb") as file:
                file.write(frame(proto.file_version(meta.started if meta else 0.0)))
                if meta is not None:
                    file.write(frame(about_run(meta)))
                for record in records_of(run, rank):
                    if not isinstance(record, r.Start):  # lost work is left out already
                        for event in events_of(record):
                            file.write(frame(event))
                        count += 1
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)
        out.append(Exported(path, count))
    return out


_CSV = [
    *("step", "time", "epoch", "steps", "loss", "samples", "tokens", "seconds", "compiling"),
    "input_wait",
    *("step_time_p50", "step_time_p95", "scale", "skipped", "applied", "good_steps", "grad_norm"),
]
_OVERFLOW = [
    *("step", "time", "epoch", "scale_before", "scale_after", "layer", "origin", "optimizer"),
    "variables",
]


def export_csv(run: str | os.PathLike[str], file: str | os.PathLike[str]) -> list[Exported]:
    """A run's windows as a table, a row each, and beside it the skipped steps.

    ``FILE`` has the fields of ``records.Step``, then the memory known by then, then the metrics
    (``metric:<name>``); ``<FILE's name>.overflows.csv`` has one row a skipped step, and is written
    only if there are any. What was not measured is empty; non-finite numbers are nan, inf, -inf.
    With several ranks there is a column ``rank``.

    Raises:
        OSError: If it cannot be read or written.
        ValueError: ``file`` is no place for it: empty, or one of a run's own files.
    """
    run, path = Path(run), Path(file)
    if not path.name or parse_events_file(path.name) or path.name == meta_file(0):
        raise ValueError(
            f"`file` must be a table's path, and no run's own file. Received: file={str(file)!r}"
        )
    ranks = ranks_of(run)
    metrics: dict[str, None] = {}
    skips = 0
    for rank in ranks:
        for record in records_of(run, rank):
            if isinstance(record, r.Step):
                metrics.update(dict.fromkeys(record.metrics))
            skips += isinstance(record, r.Overflow)
    own = [f"metric:{name}" for name in metrics]
    lead = ["rank"] if len(ranks) > 1 else []
    count = _table(
        path,
        [*lead, *_CSV, *MEMORY, *own],
        ({"rank": rank, **row} for rank in ranks for row in _rows(run, rank)),
    )
    out = [Exported(path, count)]
    if skips:
        beside = path.with_name(f"{path.stem}.overflows.csv")
        rows = (
            {"rank": rank, **r.encode(record), "variables": " ".join(record.variables)}
            for rank in ranks
            for record in records_of(run, rank)
            if isinstance(record, r.Overflow)
        )
        out.append(Exported(beside, _table(beside, [*lead, *_OVERFLOW], rows)))
    return out


def _rows(run: Path, rank: int) -> Iterator[dict[str, Any]]:
    memory: dict[str, Any] = {}
    for record in records_of(run, rank):
        if isinstance(record, r.Memory):
            memory = {k: v for k, v in r.encode(record).items() if k in MEMORY}
        elif isinstance(record, r.Step):
            row = r.encode(record)
            own = {f"metric:{name}": value for name, value in row.pop("metrics", {}).items()}
            yield {**memory, **row, **own}


def _table(path: Path, columns: list[str], rows: Iterator[dict[str, Any]]) -> int:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    count = 0
    try:
        with open(scratch, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            for row in rows:
                writer.writerow(row)
                count += 1
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
    return count
