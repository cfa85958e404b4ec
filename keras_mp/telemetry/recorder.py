"""What Monitor and Run share: when to look at the device, and what to write then."""

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from keras_mp.scaling.told import LossScaleExhaustedError
from keras_mp.telemetry.alerts import Alerts, call_hook
from keras_mp.telemetry.compiling import CompileWatch
from keras_mp.telemetry.ending import Ending, end_with
from keras_mp.telemetry.exchange import EventSink
from keras_mp.telemetry.fetch import numbers_of
from keras_mp.telemetry.folders import claim_run, release_run
from keras_mp.telemetry.journal import JournalWriter
from keras_mp.telemetry.looks import Looks
from keras_mp.telemetry.pace import Pace, Window
from keras_mp.telemetry.records import Alert, Epoch, Meta, Record, Result, Start, Status
from keras_mp.telemetry.settings import Settings
from keras_mp.telemetry.sources import Reading, Source
from keras_mp.telemetry.telling import Numbers, memory_record, overflow_records, step_record

log = logging.getLogger("keras_mp")

MEMORY_SECONDS = 2.0
# Validation writes no steps: a sign of life at least this often keeps it from looking stalled.
HEARTBEAT_SECONDS = 5.0


class Recorder:
    """Writes one run. Its public methods raise nothing that comes from telemetry itself.

    Args:
        settings: Where and how. default: Names a job without a name, with the time.
        owner: Monitor or Run: when it goes before the job has ended, the job was left. Nothing
            that the recorder holds may hold it.

    Attributes:
        step: Last step written. pace: The timer that the caller marks. latest: The last reading.
    """

    def __init__(self, settings: Settings, default: str, owner: object):
        self.rank = rank = settings.rank
        self.step = 0
        self.pace = Pace()
        self.folder = claim_run(settings.runs, settings.name, default, shared=rank > 0)
        self.writer = JournalWriter(self.folder, rank=rank, buffer=settings.buffer)
        self._sink: EventSink | None = None
        if settings.tensorboard is not None:
            own = Path(settings.tensorboard) / self.folder.name
            self._sink = EventSink(own if rank == 0 else own / f"rank-{rank}")
        self.meta: Meta | None = None
        self._alerts: Alerts | None = None
        self._on_alert = settings.on_alert
        self._source: Source | None = None
        self._unstarted: str | None = None
        self._sync: Callable[[], None] | None = None
        self._backend: str | None = None
        self.compiles = CompileWatch(None)
        self._looks = Looks(settings.every)
        self._epoch: int | None = None
        self._last_wall = time.time()
        self._last_write = 0.0
        self._memory_at = 0.0
        self.latest = Reading()
        self._counts_samples = False
        self._epoch_work = (0, 0.0)  # samples and seconds of this epoch, compiling left out
        self._said: set[str] = set()
        self._ending = Ending(self.writer, self._sink)
        end_with(owner, self._finish)

    # Begin and end.

    def begin(
        self,
        meta: Meta,
        source: Source,
        base: int,
        longest: int = 1,
        compiled: bool = False,
        sync: Callable[[], None] | None = None,
    ) -> None:
        """The job will start (again), with ``base`` steps already done.

        Args:
            longest, compiled: See ``Looks.begin``.
            sync: Brings up to date what is looked at, where it is behind (jax).
        """
        self._source, self._sync, self._backend, self.step = source, sync, meta.backend, base
        self.pace = Pace()  # a training that raised has left its last steps there
        if compiled:
            self.pace.expect_warm()
        self.compiles = CompileWatch(meta.backend)
        self._last_wall = time.time()
        self._looks.begin(source.rows, longest, meta.device == "cpu", compiled)
        self._unstarted = "anew" if self.meta is None else "again"
        self.meta = meta
        self._alerts = Alerts(meta)
        self._ending.running = True

    def start(self, base: int | None = None) -> None:
        """Write that the job has begun, which whatever is written does at the latest.

        Args:
            base: As ``begin`` has it, where it is known better by now.
        """
        how, self._unstarted = self._unstarted, None
        if how is None or self.meta is None:
            return
        if base is not None:
            self.step = base
        if how == "again":
            self.writer.update_meta(self.meta)
            self._write(Start(step=self.step, time=time.time(), rank=self.rank, pid=os.getpid()))
        else:
            self.writer.start(self.meta, self.step)
            if self._sink is not None:
                self._sink.start(self.meta, self.step)

    def replan(self, **planned: Any) -> None:
        """What the job means to do has become known (planned_steps, steps_per_epoch ...)."""
        if self.meta is not None and any(getattr(self.meta, k) != v for k, v in planned.items()):
            self.meta = replace(self.meta, **planned)
            self.writer.update_meta(self.meta)

    def end(self, status: Status, reason: str | None = None) -> None:
        """The job is over; ``result`` may still follow."""
        if self._ending.running:
            self.start()
            self._ending.write(status, reason)
            release_run(self.folder)

    def result(self, values: Mapping[str, Any]) -> None:
        """A measure of the job in the user's own terms.

        Raises:
            ValueError: One is no number.
        """
        told = numbers_of(values)
        for name in values.keys() - told.keys():
            raise ValueError(
                f"A result must be a number or a scalar tensor. Received: {name}={values[name]!r}"
            )
        self._write(Result(step=self.step, time=time.time(), values=told))
        self.writer.flush()

    # While it runs.

    def due(self, now: float) -> bool:
        """Whether to look at the device before the next steps begin. Asked at each step."""
        return self._looks.due(now, self.pace.pending)

    def look(self, numbers: Callable[[Reading, int], Numbers], epoch: int | None = None) -> None:
        """Look at the device and write what happened since the last look.

        Args:
            numbers: Fetches what the loop knows (it may read the device), told what the optimizer
                said and of how many steps.
        """
        if self._source is None:
            return
        began, self._epoch = self._looks.start(), epoch
        compiled = self.compiles.seconds(math.inf)  # by the steps: looking may compile, too
        reading = self.guard("loss scale", self._read, Reading())
        steps = (self.counted if reading.step is None else reading.step) - self.step
        told = self.guard("metrics", lambda: numbers(reading, steps), Numbers())
        read = time.perf_counter()
        if reading.step is not None or reading.scale is not None:
            self.latest = reading
        window = self.pace.close(read, read - began)
        if window is not None and window.compiling is None and compiled is not None:
            window = replace(window, compiling=min(window.seconds, compiled))
        self.guard("record", lambda: self._tell(window, reading, told, epoch, read - began), None)
        self.guard("alerts", self._alert, None)
        self.compiles.forget()
        self._looks.done()

    def log_keys(self) -> dict[str, float]:
        """What the journal adds to an epoch's logs; what is not known is left out.

        Where only compiling steps were timed the rate is NaN, and so is the norm where all steps
        were skipped: History's lists must stay as long as each other.
        """
        latest, (samples, seconds) = self.latest, self._epoch_work
        norm = latest.grad_norm
        if norm is None and latest.good_steps is not None and latest.step is not None:
            norm = math.nan
        rate = samples / seconds if seconds else math.nan if self._counts_samples else None
        known = {
            "loss_scale": latest.scale,
            "skipped_steps": latest.skipped if latest.scale is not None else None,
            "grad_norm": norm,
            "samples_per_second": rate,
        }
        return {name: float(value) for name, value in known.items() if value is not None}

    def epoch_end(self, epoch: int, seconds: float | None, logs: Mapping[str, Any]) -> None:
        """An epoch is over."""
        now, told = time.time(), numbers_of(logs)
        self._write(Epoch(epoch=epoch, step=self.step, time=now, seconds=seconds, logs=told))
        self._epoch_work = (0, 0.0)

    def tell(self, records: Iterable[Record]) -> None:
        """Write further records of the job."""
        for record in records:
            self._write(record)

    def heartbeat(self) -> None:
        """A sign of life where no steps are written."""
        if time.perf_counter() - self._last_write >= HEARTBEAT_SECONDS:
            self._tell_memory()

    def guard(self, what: str, call: Callable[[], Any], otherwise: Any) -> Any:
        """``call()``; trouble is said once and never reaches the training loop.

        What is no trouble is the user's wish that a loss scale without a way on ends it.
        """
        try:
            return call()
        except LossScaleExhaustedError:
            raise
        except Exception as error:
            if what not in self._said:
                self._said.add(what)
                log.warning(
                    "keras-mp telemetry: the %s could not be read (%s: %s). Training goes on "
                    "without it in the journal.",
                    what,
                    type(error).__name__,
                    error,
                )
            return otherwise

    def _read(self) -> Reading:
        if self._source is None:
            return Reading()
        if self._sync is not None:
            self._sync()
        return self._source.read(self.counted)

    def left(self) -> None:
        """A training that raised has told nobody: its last steps are still on the device, and they
        mostly say why."""
        if self._ending.running and self._ending.is_ours:
            self.start()
            with contextlib.suppress(Exception):  # the device may be what raised
                reading = self._read()
                if reading.step is not None:
                    self._tell(None, reading, Numbers(), self._epoch, 0.0)
                    self._alert()

    def _finish(self) -> None:
        """The owner is no more, or the interpreter ends."""
        self.left()
        self._ending.finish()

    @property
    def counted(self) -> int:
        """Steps done by the marks alone."""
        return self.step + self.pace.pending

    def _tell(
        self,
        window: Window | None,
        reading: Reading,
        told: Numbers,
        epoch: int | None,
        waited: float,
    ) -> None:
        step = reading.step
        if step is None:
            step = self.step + (window.steps if window else 0)
        steps = step - self.step
        now = time.time()
        if steps <= 0:
            return
        for skip in overflow_records(reading.skips, self.step, steps, self._last_wall, now, epoch):
            self._write(skip)
        self._write(step_record(step, steps, now, epoch, window, reading, told, waited))
        self.step, self._last_wall = step, now
        self._counts_samples = self._counts_samples or told.samples is not None
        if window and told.samples is not None and not window.compiling:
            samples, seconds = self._epoch_work
            self._epoch_work = (samples + told.samples, seconds + window.seconds)
        if reading.missed:
            self._write(
                Alert(
                    step=step,
                    time=now,
                    severity="warning",
                    code="steps_missed",
                    message=f"{reading.missed:,} steps were not seen one by one; totals are right",
                )
            )
        if time.perf_counter() >= self._memory_at:
            self._tell_memory()

    def _tell_memory(self) -> None:
        self._memory_at = time.perf_counter() + MEMORY_SECONDS
        self._write(memory_record(self.step, self._backend))

    def _alert(self) -> None:
        """Judge the job by what it has written, and say what is new."""
        if self._alerts is None:
            return
        for alert in self._alerts.news(time.time()):
            self._write(alert)
            call_hook(self._on_alert, alert, self._said)

    def _write(self, record: Record) -> None:
        self.start()
        self._last_write = time.perf_counter()
        self.writer.write(record)
        if self._alerts is not None:
            self.guard("alerts", partial(self._alerts.see, record), None)
        if self._sink is not None:
            self._sink.write(record)
