"""What Monitor and Run share: when to look at the device, and what to write then."""

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from keras_mp.telemetry import device
from keras_mp.telemetry.alerts import Alerts, OnAlert
from keras_mp.telemetry.compiling import CompileWatch
from keras_mp.telemetry.ending import Ending, end_with
from keras_mp.telemetry.exchange import EventSink
from keras_mp.telemetry.folders import claim_run, release_run
from keras_mp.telemetry.journal import JournalWriter
from keras_mp.telemetry.pace import AHEAD_SHARE, Pace, Window
from keras_mp.telemetry.records import (
    Alert,
    Epoch,
    Memory,
    Meta,
    Overflow,
    Record,
    Result,
    Start,
    Status,
    Step,
)
from keras_mp.telemetry.sources import Reading, Source

log = logging.getLogger("keras_mp")

# every="auto": at most four looks a second (the dashboard paints no faster), and so seldom that
# they cost a third of a percent of the training, which leaves the rest of 1 % to the hook at each
# step and to what is done once an epoch.
MIN_INTERVAL, MAX_INTERVAL = 0.25, 10.0
COST_FACTOR = 300.0
# A look costs the processor time that it takes. While the host only waits for the device, the
# device works: that is training; what it costs is the gap until the host has handed out work again,
# taken as a tenth of the wait.
WAIT_COST = 0.1
MEMORY_SECONDS = 2.0
# Validation writes no steps: a sign of life at least this often keeps it from looking stalled.
HEARTBEAT_SECONDS = 5.0


@dataclass(frozen=True)
class Numbers:
    """What the training loop itself knows of a window, on the host."""

    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    samples: int | None = None
    tokens: int | None = None
    input_wait: float | None = None
    scale: float | None = None
    skipped: int | None = None


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

    def begin(self, meta: Meta, source: Source, base: int, longest: int = 1) -> None:
        """The job starts (again), with ``base`` steps already done; ``longest`` steps pass between
        two chances to look."""
        self._source, self._backend, self.step = source, meta.backend, base
        self.pace.expect_compiling()
        self.compiles = CompileWatch(meta.backend)
        self._longest = longest
        self._last_wall = time.time()
        self._next_look, self._most = 0.0, 1
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
        cost = work + WAIT_COST * max(0.0, now - began - work)
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
        for skip in reading.skips:
            share = min(1.0, max(0.0, (skip.step - self.step) / steps))
            self._write(
                Overflow(
                    step=skip.step,
                    time=self._last_wall + share * (now - self._last_wall),
                    epoch=epoch,
                    scale_before=skip.scale_before,
                    scale_after=skip.scale_after,
                    variables=skip.variables,
                    layer=skip.layer,
                    origin=skip.origin,
                    optimizer=skip.optimizer,
                )
            )
        self._write(
            Step(
                step=step,
                time=now,
                epoch=epoch,
                steps=steps,
                loss=_loss(told.loss, reading.loss),
                metrics={**told.metrics, **reading.metrics},
                samples=told.samples,
                tokens=told.tokens,
                seconds=window.seconds if window else None,
                input_wait=_exposed(told.input_wait, window, waited),
                compiling=window.compiling if window else None,
                step_time_p50=window.p50 if window and not window.compiling else None,
                step_time_p95=window.p95 if window and not window.compiling else None,
                scale=_first(reading.scale, told.scale),
                skipped=_first(reading.skipped, told.skipped),
                applied=reading.applied,
                good_steps=reading.good_steps,
                grad_norm=reading.grad_norm,
            )
        )
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
        m = device.memory(self._backend)
        self._write(
            Memory(
                step=self.step,
                time=time.time(),
                device_allocated=m.allocated,
                device_peak=m.peak,
                device_reserved=m.reserved,
                device_total=m.total,
                process_resident=device.resident(),
            )
        )

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


def _loss(told: float | None, seen: float | None) -> float | None:
    """The loop's own mean, unless one bad step has spoilt it and single losses are known."""
    if told is not None and (math.isfinite(told) or seen is None):
        return told
    return seen if seen is not None else told


def _exposed(waited: float | None, window: Window | None, device: float) -> float | None:
    """Seconds of the wait for input that cost time.

    Where the host had to wait for the device in the end, the device had work all along: as much of
    the wait for input was hidden behind it.
    """
    if waited is None or window is None:
        return None
    hidden = device if device > AHEAD_SHARE * window.seconds else 0.0
    return min(window.seconds, max(0.0, waited - hidden))


def _first(*values: Any) -> Any:
    return next((v for v in values if v is not None), None)
