"""What a job says, as TensorBoard events: a second place beside the journal.

``EventSink`` writes event files while the job runs, ``export.py`` of a job that has run, and
``event_runs.py`` reads those of other programs. No backend, no tensorboard package:
``tfrecord.py`` says why.
"""

import contextlib
import json
import logging
import os
import time
from pathlib import Path

from keras_mp.telemetry import event_proto as proto
from keras_mp.telemetry import records as r
from keras_mp.telemetry.process import HOST
from keras_mp.telemetry.tfrecord import frame

log = logging.getLogger("keras_mp")

# After a failed write, the next attempt comes this many seconds later.
RETRY_SECONDS = 1.0
_STEP = ("loss", "scale", "skipped", "grad_norm", "step_time_p50", "step_time_p95")
MEMORY = ("device_allocated", "device_peak", "device_reserved", "process_resident")
# As Keras' log keys name them (see Monitor).
_TAGS = {"scale": "loss_scale", "skipped": "skipped_steps"}


def event_file_name(pid: int, now: float, number: int = 0) -> str:
    """As TensorFlow names them: TensorBoard takes files of one folder in the order of names."""
    return f"events.out.tfevents.{int(now):010d}.{HOST}.{pid}.{number}"


def events_of(record: r.Record) -> list[bytes]:
    """The events that tell one record; none for what TensorBoard has no page for."""
    match record:
        case r.Start():
            return [proto.restart(record.time, record.step + 1)] if record.step else []
        case r.Step():
            values = {
                _TAGS.get(name, name): float(value)
                for name in _STEP
                if (value := getattr(record, name)) is not None
            }
            if record.seconds and not record.compiling:
                values["steps_per_second"] = record.steps / record.seconds
                if record.samples is not None:
                    values["samples_per_second"] = record.samples / record.seconds
                if record.input_wait is not None:
                    values["input_share"] = min(1.0, record.input_wait / record.seconds)
                if record.tokens is not None:
                    values["tokens_per_second"] = record.tokens / record.seconds
            if record.epoch is not None:
                values["epoch"] = float(record.epoch)
            values |= {f"metrics/{name}": value for name, value in record.metrics.items()}
            return [proto.scalars(record.time, record.step, values)]
        case r.Overflow():
            where = record.layer or ", ".join(record.variables[:3]) or "not known where"
            events = [
                proto.text(
                    record.time,
                    record.step,
                    "overflow",
                    f"step {record.step} skipped: {where} ({record.origin}), scale "
                    f"{record.scale_before} → {record.scale_after}",
                )
            ]
            if record.scale_after is not None and record.optimizer is None:
                scale = {"loss_scale": record.scale_after}
                events.append(proto.scalars(record.time, record.step, scale))
            return events
        case r.Memory():
            values = {
                f"memory/{name}": float(value)
                for name in MEMORY
                if (value := getattr(record, name)) is not None
            }
            return [proto.scalars(record.time, record.step, values)] if values else []
        case r.Epoch():
            values = {f"epoch_end/{name}": value for name, value in record.logs.items()}
            return [proto.scalars(record.time, record.step, values)] if values else []
        case r.Result():
            values = {f"result/{name}": value for name, value in record.values.items()}
            return [proto.scalars(record.time, record.step, values)] if values else []
        case r.Alert():
            return [
                proto.text(record.time, record.step, f"alert/{record.severity}", record.message)
            ]
    return []


def about_run(meta: r.Meta) -> bytes:
    text = json.dumps(r.encode(meta), indent=1, ensure_ascii=False)
    return proto.text(meta.started, 0, "job", "    " + text.replace("\n", "\n    "))


class EventSink:
    """Event files of a running job, as a second place beside the journal.

    One write a record, no thread. Trouble with the disk is said once in the log "keras_mp"; what
    was lost is counted, and the training goes on.

    Args:
        folder: Where TensorBoard finds this run.

    Attributes:
        lost: Records that could not be written.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        self.lost = 0
        self._descriptor: int | None = None
        self._said = False
        self._retry_at = 0.0

    def start(self, meta: r.Meta, step: int = 0) -> None:
        """The job starts (again), with ``step`` steps already done."""
        events = [about_run(meta)]
        if step:
            events.append(proto.restart(time.time(), step + 1))
        self._put(events)

    def write(self, record: r.Record) -> None:
        events = events_of(record)
        if events:
            self._put(events)

    def close(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _put(self, events: list[bytes]) -> None:
        if time.monotonic() < self._retry_at:
            self.lost += 1
            return
        try:
            if self._descriptor is None:
                self._descriptor = self._open()
                events = [proto.file_version(time.time()), *events]
            data = b"".join(frame(event) for event in events)
            if os.write(self._descriptor, data) != len(data):
                raise OSError("the disk is full")
        except OSError as error:
            # Behind half a frame TensorBoard reads no further: go on in another file.
            self.close()
            self.lost += 1
            self._retry_at = time.monotonic() + RETRY_SECONDS
            if not self._said:
                self._said = True
                log.warning(
                    "keras-mp telemetry: cannot write TensorBoard's events to %r (%s). Training "
                    "and its journal go on; what is lost there is counted.",
                    str(self.folder),
                    error,
                )

    def _open(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        for number in range(10_000):
            path = self.folder / event_file_name(os.getpid(), time.time(), number)
            try:
                return os.open(path, flags, 0o666)
            except FileExistsError:
                continue
        raise OSError("10,000 event files of this second are there already")
