"""What Monitor and Run share: when to look at the device, and what to write then."""

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from keras_mp.telemetry.alerts import Alerts, OnAlert
from keras_mp.telemetry.compiling import CompileWatch
from keras_mp.telemetry.ending import Ending, end_with
from keras_mp.telemetry.exchange import EventSink
from keras_mp.telemetry.folders import claim_run, release_run
from keras_mp.telemetry.journal import JournalWriter
from keras_mp.telemetry.pace import Pace, Window
from keras_mp.telemetry.records import (
    Alert,
    Epoch,
    Meta,
    Record,
    Result,
    Start,
    Status,
)
from keras_mp.telemetry.sources import Reading, Source
from keras_mp.telemetry.telling import Numbers, memory_record, overflow_records, step_record

log = logging.getLogger("keras_mp")

# every="auto": at most four looks a second (the dashboard paints no faster), and so seldom that
# they cost a third of a percent of the training, which leaves the rest of 1 % to the hook at each
# step and to what is done once an epoch.
MIN_INTERVAL, MAX_INTERVAL = 0.25, 10.0
COST_FACTOR = 300.0
# A look costs the processor time that it takes. While the host only waits for the device, the
# device works: that is training; what it costs is the gap until the host has handed out work again,
# taken as a tenth of the wait. On a CPU the host is the device: a wait is time that others took, as
# they would have taken it from the training.
WAIT_COST, WAIT_COST_ON_CPU = 0.1, 1.0
MEMORY_SECONDS = 2.0
# Validation writes no steps: a sign of life at least this often keeps it from looking stalled.
HEARTBEAT_SECONDS = 5.0


def check_every(every: Any) -> int | None:
    """``every`` as a number of steps; None for "auto"."""
    if every == "auto":
        return None
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(
            f'`every` must be "auto" or a number of steps from 1 on. Received: every={every!r}'
        )
    return every


class Recorder:
    """Writes one run. Its public methods raise nothing that comes from telemetry itself.

    Args:
        runs: Folder of runs. name: The job's name, or None for a fresh one after ``default``.
        every: Steps between two looks; None decides by what a look costs.
        rank: Which process of the job.
        buffer: See JournalWriter.
        on_alert: Called with each Alert when something begins to go wrong, or is over.
        tensorboard: Folder for event files beside the journal, a folder each run; None for none.

    Attributes:
        step: Last step written. pace: The timer that the caller marks.
        latest: What the optimizer said at the last look.
    """

    def __init__(
        self,
        runs: str | os.PathLike[str],
        name: str | None,
        *,
        default: str,
        every: int | None,
        rank: int = 0,
        buffer: float = 0.0,
        on_alert: OnAlert | None = None,
        tensorboard: str | os.PathLike[str] | None = None,
    ):
        self.rank = rank
        self.every = every
        self.step = 0
        self.pace = Pace()
        self.folder = claim_run(runs, name, default, shared=rank > 0)
        self.writer = JournalWriter(self.folder, rank=rank, buffer=buffer)
        self._sink: EventSink | None = None
        if tensorboard is not None:
            own = Path(tensorboard) / self.folder.name
            self._sink = EventSink(own if rank == 0 else own / f"rank-{rank}")
        self.meta: Meta | None = None
        self._alerts: Alerts | None = None
        self._on_alert = on_alert
        self._source: Source | None = None
        self._backend: str | None = None
        self.compiles = CompileWatch(None)
        self._wait_cost = WAIT_COST
        self._longest = 1
        self._next_look, self._most = 0.0, 1
        self._last_wall = time.time()
        self._last_write = 0.0
        self._memory_at = 0.0
        self.latest = Reading()
        self._counts_samples = False
        self._epoch_work = (0, 0.0)  # samples and seconds of this epoch, compiling left out
        self._said: set[str] = set()
        self._ending = Ending(self.writer, self._sink)
        end_with(self, self._ending)

    # Begin and end.

    def begin(
        self, meta: Meta, source: Source, base: int, longest: int = 1, compiled: bool = False
    ) -> None:
        """The job starts (again), with ``base`` steps already done.

        Args:
            longest: Steps that pass between two chances to look.
            compiled: Whether its first step is already compiled, and needs no look of its own.
        """
        self._source, self._backend, self.step = source, meta.backend, base
        if not compiled:
            self.pace.expect_compiling()
        self.compiles = CompileWatch(meta.backend)
        self._wait_cost = WAIT_COST_ON_CPU if meta.device == "cpu" else WAIT_COST
        self._longest = longest
        self._last_wall = time.time()
        self._next_look, self._most = 0.0, 1
        if compiled:
            self._plan_look(time.perf_counter(), 0.0)
        again = self.meta is not None
        self.meta = meta
        self._alerts = Alerts(meta)
        if again:
            self.writer.update_meta(meta)
            self._write(Start(step=base, time=time.time(), rank=self.rank, pid=os.getpid()))
        else:
            self.writer.start(meta, base)
            if self._sink is not None:
                self._sink.start(meta, base)
        self._ending.running = True

    def replan(self, **planned: Any) -> None:
        """What the job means to do has become known (planned_steps, steps_per_epoch ...)."""
        if self.meta is not None and any(getattr(self.meta, k) != v for k, v in planned.items()):
            self.meta = replace(self.meta, **planned)
            self.writer.update_meta(self.meta)

    def end(self, status: Status, reason: str | None = None) -> None:
        """The job is over; ``result`` may still follow."""
        if self._ending.running:
            self._ending.write(status, reason)
            release_run(self.folder)

    def result(self, values: Mapping[str, float]) -> None:
        """A measure of the job in the user's own terms."""
        self._write(Result(step=self.step, time=time.time(), values=dict(values)))
        self.writer.flush()

    # While it runs.

    def due(self, now: float) -> bool:
        """Whether to look at the device before the next steps begin. Asked at each step."""
        pending = self.pace.pending
        if pending >= self._most:
            return self._source is not None and pending > 0
        return self.every is None and now >= self._next_look and pending > 0

    def _plan_look(self, now: float, cost: float) -> None:
        """When to look next: by the clock, but before the device forgets."""
        self._next_look = now + min(MAX_INTERVAL, max(MIN_INTERVAL, COST_FACTOR * cost))
        rows = self._source.rows if self._source is not None else 1
        self._most = max(1, min(self.every or rows, rows - self._longest + 1))

    def look(
        self, numbers: Callable[[], Numbers], epoch: int | None = None, done: float | None = None
    ) -> Reading | None:
        """Look at the device and write what happened since the last look.

        Args:
            numbers: Fetches what the loop knows (it may read the device).
            done: Clock time when the last step was finished, if that is some time ago.
        """
        if self._source is None:
            return None
        began, worked = time.perf_counter(), time.thread_time()
        reading = self.guard("loss scale", self._read, Reading())
        told = self.guard("metrics", numbers, Numbers())
        read = time.perf_counter()
        if reading.step is not None or reading.scale is not None:
            self.latest = reading
        window = self.pace.close(read if done is None else done, read - began)
        if window is not None and window.compiling is None:
            window = replace(window, compiling=self.compiles.seconds(window.seconds))
        self.guard("record", lambda: self._tell(window, reading, told, epoch, read - began), None)
        self.guard("alerts", self._alert, None)
        self.compiles.forget()
        now = time.perf_counter()
        work = time.thread_time() - worked
        cost = work + self._wait_cost * max(0.0, now - began - work)
        self._plan_look(now, cost)
        return reading

    def log_keys(self) -> dict[str, float]:
        """What the journal adds to an epoch's logs; what is not known is left out.

        Where only compiling steps were timed the rate is NaN: History's lists must stay as long as
        each other.
        """
        latest = self.latest
        samples, seconds = self._epoch_work
        rate = samples / seconds if seconds else math.nan if self._counts_samples else None
        known = {
            "loss_scale": latest.scale,
            "skipped_steps": latest.skipped if latest.scale is not None else None,
            "grad_norm": latest.grad_norm,
            "samples_per_second": rate,
        }
        return {name: float(value) for name, value in known.items() if value is not None}

    def epoch_end(self, epoch: int, seconds: float | None, logs: Mapping[str, Any]) -> None:
        """An epoch is over."""
        values = {k: float(v) for k, v in logs.items() if isinstance(v, int | float)}
        self._write(
            Epoch(epoch=epoch, step=self.step, time=time.time(), seconds=seconds, logs=values)
        )
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
        """``call()``; trouble is said once and never reaches the training loop."""
        try:
            return call()
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
        return self._source.read(self.counted)

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
            self._call(alert)

    def _call(self, alert: Alert) -> None:
        """The user's hook; an exception in it is said once and stops nothing."""
        if self._on_alert is None:
            return
        try:
            self._on_alert(alert)
        except Exception as error:
            if "on_alert" not in self._said:
                self._said.add("on_alert")
                log.warning(
                    "keras-mp telemetry: on_alert raised %s: %s. Training goes on; the alert is in "
                    "the journal.",
                    type(error).__name__,
                    error,
                )

    def _write(self, record: Record) -> None:
        self._last_write = time.perf_counter()
        self.writer.write(record)
        if self._alerts is not None:
            self.guard("alerts", partial(self._alerts.see, record), None)
        if self._sink is not None:
            self._sink.write(record)
