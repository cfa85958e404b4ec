"""What a job has said so far: the fold of a run's records.

    job = Job("resnet50")
    for record in JournalFile("runs/resnet50/events-0.jsonl").read():
        job.apply(record)
    print(job.name, job.step, job.loss, job.scale)
    steps, loss = job.series["step"], job.series["loss"]      # NumPy views, for a chart

``runs.RunsFolder`` does this for all runs of a folder. No backend, no Keras, no UI. All times are
seconds since the epoch, durations seconds, memory bytes, shares 0 to 1; ``None`` is "not known", in
arrays NaN. ``health.verdict(job, now)`` says how a job is doing.
"""

import math
from collections import deque
from pathlib import Path

from keras_mp.numerics.formats import FORMATS
from keras_mp.telemetry import records as r
from keras_mp.telemetry.layer_shares import LayerShares
from keras_mp.telemetry.rates import Rank, Rates
from keras_mp.telemetry.series import MAX_POINTS, Series

FLOAT16 = FORMATS["float16"]
# Single skipped steps kept with their layer; the total is counted for ever.
MAX_OVERFLOWS = 20_000
# A growth interval's worth at least: verdicts count within one.
LEAST_OVERFLOWS = 2_000
MAX_ALERTS = 1_000
MAX_LAYERS = 2_000
# So many skipped steps in one window without any finite loss are no single overflow any more.
NAN_WINDOW = 8


class Job(Rates):
    """One run: latest values, counters, and series.

    Attributes:
        run_id: Name of the run's folder. folder: its path (a text for remote runs).
        meta: ``meta.json``; None while it is missing or damaged.
        step, epoch: The last ones said. started, last_time: of the first and last record.
        latest: The last ``Step`` record; memory, last_epoch, end likewise.
        resumed: How often the run was started again.
        series: A point per ``Step``: loss, scale, skipped, applied, samples_per_second,
            tokens_per_second, steps_per_second, input_share, step_time_p50, step_time_p95,
            grad_norm, good_steps, epoch, and ``metric:<name>`` for each metric.
        scales: The loss scale, step by step where it changed: column scale. At a skipped step there
            are two points, the scale it used and the one after.
        memories: device_allocated, device_peak, device_reserved, process_resident.
        epochs: A point per epoch: seconds and ``log:<name>`` for each log (step is the epoch).
        overflows: The latest skipped steps, oldest first (at most 20,000).
        overflow_count: Skipped steps in the journal, all of them.
        numerics: (variable or layer, tensor) -> the last ``Numerics`` record of it.
        limits: A point per step with numerics: the largest loss scale (column limit) whose float16
            gradients would all have been finite on that batch.
        starts: The last step done when a process began or went on, one a ``Start`` record.
        layer_shares: (variable or layer, tensor) -> a Series of what it lost over the run.
        alerts: The latest alerts. results: the user's own measures, such as {"hits": 0.703}.
        nan_step: First step of a window without any finite loss; None if there was none.
        ranks: rank -> Rank, for each process that wrote.
        records, corrupt: Lines read; lines that were damaged.
        problems: What could not be read, in sentences.
        loading: Share of the journal read so far; below 1 only the latest state is right.
    """

    def __init__(self, run_id: str, folder: Path | str = ""):
        self.run_id = run_id
        self.folder = folder
        self.meta: r.Meta | None = None
        self.step = 0
        self.epoch: int | None = None
        self.started: float | None = None
        self.last_time: float | None = None
        self.latest: r.Step | None = None
        self.memory: r.Memory | None = None
        self.last_epoch: r.Epoch | None = None
        self.end: r.End | None = None
        self.resumed = 0
        self.series = Series("loss")
        self.scales = Series("scale")
        self.memories = Series("device_peak")
        self.epochs = Series("seconds")
        self.overflows: deque[r.Overflow] = deque(maxlen=MAX_OVERFLOWS)
        self.overflow_count = 0
        self.numerics: dict[tuple[str, str], r.Numerics] = {}
        self.limits = Series("limit")
        self.starts: list[int] = []
        self.layer_shares = LayerShares()
        self.alerts: deque[r.Alert] = deque(maxlen=MAX_ALERTS)
        self.results: dict[str, float] = {}
        self.nan_step: int | None = None
        self._unheard = (0, 0)  # end of the first, steps of all windows now without a loss
        self.ranks: dict[int, Rank] = {}
        self.records = 0
        self.corrupt = 0
        self.problems: list[str] = []
        self.loading = 1.0
        self.version = 0
        self.max_points = MAX_POINTS
        self._lead: int | None = None  # the rank whose steps are drawn
        self._begun_at: int | None = None  # the step that a resumed job began after

    # What it runs.

    @property
    def name(self) -> str:
        return self.meta.name if self.meta and self.meta.name else self.run_id

    @property
    def policy(self) -> str | None:
        return self.meta.policy if self.meta else None

    @property
    def scaled(self) -> bool:
        """Whether the job has a loss scale."""
        return self.scale is not None or bool(self.meta and self.meta.scaler)

    # The latest values.

    @property
    def loss(self) -> float | None:
        return self.latest.loss if self.latest else None

    @property
    def scale(self) -> float | None:
        return self.latest.scale if self.latest else None

    @property
    def memory_bytes(self) -> int | None:
        """What the table shows: the device's peak where there is a device, else the process."""
        m = self.memory
        if m is None:
            return None
        device = m.device_peak if m.device_peak is not None else m.device_allocated
        return device if device is not None else m.process_resident

    def limit_points(self, points: int) -> None:
        """Keep about this many points of each series, and skipped steps: where many jobs share the
        memory."""
        self.max_points = points
        kept = min(MAX_OVERFLOWS, max(LEAST_OVERFLOWS, points))
        self.overflows = deque(self.overflows, maxlen=kept)
        for series in (self.series, self.scales, self.memories):
            series.limit(points)

    def skips_within(self, steps: int) -> int:
        """Skipped steps among the last ``steps`` attempted ones."""
        first = self.step - steps
        count = 0
        for overflow in reversed(self.overflows):
            if overflow.step <= first:
                break
            count += 1
        return count

    # The fold.

    def apply(self, record: r.Record, rank: int = 0) -> None:
        """Take one record in. Records of one rank come in the order they were written."""
        self.records += 1
        self.version += 1
        state = self.ranks.get(rank)
        if state is None:
            state = self.ranks[rank] = Rank(rank)
            self._lead = min(self.ranks)
        # The last word of each, not the latest date: a clock may have been set back.
        state.time = record.time
        self.started = record.time if self.started is None else self.started
        self.last_time = record.time
        if len(self.ranks) > 1:
            self.last_time = max(rank.time for rank in self.ranks.values() if rank.time is not None)
        lead = rank == self._lead
        match record:
            case r.Start():
                state.pid, state.end = record.pid, None
                if lead:
                    self._start(record)
            case r.Step():
                state.step, state.end = record.step, None
                if record.samples is not None and record.seconds and not record.compiling:
                    state.samples_per_second = record.samples / record.seconds
                if lead:
                    self._step(record)
            case r.Overflow() if lead:
                self._overflow(record)
            case r.Memory():
                state.memory = record
                if lead:
                    self._memory(record)
            case r.Epoch() if lead:
                self.last_epoch, self.epoch = record, record.epoch
                logs = {f"log:{k}": v for k, v in record.logs.items()}
                self.epochs.append(record.epoch, record.time, {"seconds": record.seconds, **logs})
            case r.Numerics():
                key = (record.variable or record.layer, record.tensor)
                if key in self.numerics or len(self.numerics) < MAX_LAYERS:
                    self.numerics[key] = record
                    self.layer_shares.append(key, record)
                if lead and self._limits_scale(record):
                    self._limit(record)
            case r.Alert():
                self.alerts.append(record)
            case r.Result():
                if len(self.results) < MAX_LAYERS:
                    self.results.update(record.values)
            case r.End():
                state.end = record
                if lead or record.status == "failed":
                    self.end = record

    def _start(self, record: r.Start) -> None:
        if not record.continues:
            self.resumed += self.records > 1
            self._begun_at = record.step if self.records > 1 else None
            self.starts = [*self.starts[-MAX_ALERTS:], record.step]
            self.end = None
            self.results = {}

    def _note_nan(self, record: r.Step) -> None:
        """Whether the job has no finite loss any more, other than by single skipped steps.

        An overflow in the forward pass makes one loss infinite, and its step is skipped: no NaN of
        the job. Many steps of nothing but that are: the loss was never finite.
        """
        if record.loss is None or math.isfinite(record.loss):
            self._unheard = self._unheard if record.loss is None else (0, 0)
            return
        first, steps = self._unheard[0] or record.step, self._unheard[1] + record.steps
        self._unheard = first, steps
        before = (self.latest.skipped or 0) if self.latest else 0
        applied = (record.skipped or 0) - before < record.steps
        if self.nan_step is None and (applied or steps >= NAN_WINDOW):
            self.nan_step = record.step if applied else first

    def _step(self, record: r.Step) -> None:
        if record.step <= self.step:
            self._rewind(record.step - record.steps + 1)
        self._note_nan(record)
        self.step, self.latest, self.end = record.step, record, None
        self.epoch = record.epoch if record.epoch is not None else self.epoch
        pace: dict[str, float | None] = {}
        if record.seconds and not record.compiling:
            pace["steps_per_second"] = record.steps / record.seconds
            if record.samples is not None:
                pace["samples_per_second"] = record.samples / record.seconds
            if record.tokens is not None:
                pace["tokens_per_second"] = record.tokens / record.seconds
            if record.input_wait is not None:
                pace["input_share"] = min(1.0, record.input_wait / record.seconds)
        names = ("loss", "scale", "skipped", "applied", "step_time_p50", "step_time_p95")
        values: dict[str, float | None] = {n: getattr(record, n) for n in names}
        values |= {"grad_norm": record.grad_norm, "good_steps": record.good_steps}
        values |= {"epoch": record.epoch, **pace}
        values |= {f"metric:{k}": v for k, v in record.metrics.items()}
        self.series.append(record.step, record.time, values)
        if record.scale is not None:
            point = {"scale": record.scale}
            self.scales.append(record.step, record.time, point, replace=False)

    def _overflow(self, record: r.Overflow) -> None:
        if record.step <= self.step:
            self._rewind(record.step)
        self.overflows.append(record)
        self.overflow_count += 1
        if record.optimizer is not None:
            return  # the scale drawn is the first optimizer's
        for value in (record.scale_before, record.scale_after):
            if value is not None:
                self.scales.append(record.step, record.time, {"scale": value}, replace=False)

    def _memory(self, record: r.Memory) -> None:
        self.memory = record
        names = ("device_allocated", "device_peak", "device_reserved", "process_resident")
        values = {n: getattr(record, n) for n in names}
        self.memories.append(record.step, record.time, values)

    def _limits_scale(self, record: r.Numerics) -> bool:
        """A gradient that overflows at a large scale: not one of a float32 layer in a mixed job."""
        mixed = self.policy in ("mixed_float16", "float16")
        in_float16 = not (mixed and record.dtype == "float32")
        return record.tensor != "activation" and bool(record.largest) and in_float16

    def _limit(self, record: r.Numerics) -> None:
        """The largest scale that the tensors of one step bear is that of the one with the least."""
        limit = FLOAT16.max / record.largest if record.largest else math.inf
        known = self.limits
        if len(known) and known["step"][-1] == record.step:
            limit = min(limit, float(known["limit"][-1]))
        known.append(record.step, record.time, {"limit": limit})

    def _rewind(self, step: int) -> None:
        """The job was resumed from before ``step``: what came after is of lost work."""
        self.step = min(self.step, max(0, step - 1))
        for series in (self.series, self.scales, self.memories, self.limits, self.layer_shares):
            series.rewind(step)
        while self.overflows and self.overflows[-1].step >= step:
            self.overflows.pop()
            self.overflow_count -= 1
        self._unheard = (0, 0)
        if self.nan_step is not None and self.nan_step >= step:
            self.nan_step = None
