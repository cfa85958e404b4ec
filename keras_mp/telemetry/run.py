"""Run: the journal of a custom training loop, Monitor's twin."""

import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from keras_mp.telemetry import about
from keras_mp.telemetry.alerts import OnAlert
from keras_mp.telemetry.ending import describe_error
from keras_mp.telemetry.fetch import detached, fetch, numbers_of
from keras_mp.telemetry.recorder import Recorder
from keras_mp.telemetry.settings import check_loop, checked
from keras_mp.telemetry.sources import PlainSource, Reading, Source, longest_gap, source_for
from keras_mp.telemetry.telling import Numbers

T = TypeVar("T")


@dataclass
class _Waiting:
    """What the loop said since the last look; values may still be on the device."""

    losses: list[Any] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    samples: list[Any] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    input_wait: float | None = None
    scale: Any = None
    skipped: Any = None


class Run:
    """Writes a journal of a training loop of your own, for ``keras-mp monitor``.

    ```python
    with keras_mp.Run("runs", name="gan", optimizer=optimizer) as run:
        for x in batches:
            loss = train_step(x)
            run.step(loss=loss, samples=len(x))
        run.result(fid=12.3)
    ```

    ``step`` converts nothing: a loss or metric that is still on the device stays there until the
    next look, every quarter of a second or so. Leaving the block with an exception ends the job as
    "failed" (Ctrl-C: "stopped"), otherwise as "done". One thread calls it: that of the loop.

    Args:
        runs: Folder of runs. Defaults to "runs".
        name: Name of the job and of its folder. A job that is started again under the same name
            goes on in the same journal. Defaults to "run" and the time.
        optimizer: A Keras optimizer whose loss scale is to be followed; with
            ``keras_mp.LossScaleOptimizer`` each skipped step is in the journal. Several, by name
            (``{"generator": ..., "discriminator": ...}``): the first one's scale is the job's.
        model: The model, for its name, size and policy.
        policy: Name of the dtype policy where there is no Keras model that tells.
        planned_steps: Steps that the job means to do, for progress and ETA.
        initial_step: Steps that were done before, for resumed jobs whose optimizer does not count.
        every: Steps between two looks, or "auto" (see Monitor).
        on_alert: Called when something begins to go wrong, or is over (see Monitor).
        rank: Which process of a job with several this is. Defaults to the environment's RANK.
        buffer: Seconds that records may be held back. Defaults to 0.
        tensorboard: Folder for TensorBoard event files beside the journal, a folder for each run.
            Defaults to None: none.

    Raises:
        ValueError: For an argument out of range. Trouble with the disk or the device while training
            is said once in the log "keras_mp", and training goes on.
    """

    def __init__(
        self,
        runs: str | os.PathLike[str] = "runs",
        name: str | None = None,
        *,
        optimizer: Any = None,
        model: Any = None,
        policy: str | None = None,
        planned_steps: int | None = None,
        initial_step: int = 0,
        every: int | str = "auto",
        on_alert: OnAlert | None = None,
        rank: int | None = None,
        buffer: float = 0.0,
        tensorboard: str | os.PathLike[str] | None = None,
    ):
        self._settings = checked(runs, name, every, on_alert, rank, buffer, tensorboard)
        check_loop(optimizer, policy, planned_steps, initial_step)
        self._source: Source = source_for(optimizer) if optimizer is not None else PlainSource()
        self._recorder = Recorder(self._settings, getattr(model, "name", None) or "run", self)
        self._about = {
            "model": model,
            "optimizer": optimizer,
            "policy": policy or _global_policy(model),
            "backend": _backend(),
            "rank": self._settings.rank,
            "world_size": self._settings.world,
            "planned_steps": planned_steps,
        }
        self._initial_step = initial_step
        self._running = False
        self._begun = 0.0
        self._epoch: Any = None
        self._waiting = _Waiting()

    @property
    def folder(self) -> str:
        """The run's folder."""
        return str(self._recorder.folder)

    def __enter__(self) -> "Run":
        self.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.end("done")
        elif isinstance(error, KeyboardInterrupt):
            self.end("stopped", "interrupted")
        else:
            self.end("failed", describe_error(error))

    def start(self) -> None:
        """Begin, without a ``with`` block."""
        if self._running:
            return
        longest = longest_gap(self._settings.every, 1)
        base = self._recorder.guard("optimizer", lambda: self._source.start(longest), 0)
        # (Begun again after its end, it goes on from there.)
        base = max(base, self._initial_step, self._recorder.step)
        meta = about.describe(
            self._recorder.folder.name, self._settings.name, source=self._source, **self._about
        )
        self._recorder.begin(meta, self._source, base)
        self._recorder.start()
        self._running = True
        self._begun = time.perf_counter()

    def step(
        self,
        loss: Any = None,
        samples: Any = None,
        tokens: Any = None,
        epoch: int | None = None,
        metrics: Mapping[str, Any] | None = None,
        scale: Any = None,
        skipped: Any = None,
    ) -> None:
        """One step is done. Costs no host read; values on the device are read at the next look.

        Args:
            loss: The step's loss, a number or a scalar tensor. (Whatever is neither, here and
                below, is left out, which the log "keras_mp" says once.)
            samples, tokens: How many the step has seen.
            epoch: Which epoch, from 0.
            metrics: Further values, name to number or scalar tensor; the last ones are written.
            scale, skipped: Loss scale and skipped steps so far, where an optimizer that this
                library does not know has them (``torch.amp.GradScaler``).

        Raises:
            ValueError: ``metrics`` is no dict.
        """
        if metrics is not None and not isinstance(metrics, Mapping):
            raise ValueError(
                f"`metrics` must be a dict of name to number. Received: metrics={metrics!r}"
            )
        if not self._running:
            self.start()
        self._epoch = epoch if epoch is not None else self._epoch
        waiting = self._waiting
        if loss is not None:
            waiting.losses.append(detached(loss))
        if metrics:
            waiting.metrics.update({k: detached(v) for k, v in metrics.items()})
        if samples is not None:
            waiting.samples.append(detached(samples))
        if tokens is not None:
            waiting.tokens.append(detached(tokens))
        waiting.scale = detached(scale) if scale is not None else waiting.scale
        waiting.skipped = detached(skipped) if skipped is not None else waiting.skipped
        pace = self._recorder.pace
        pace.mark(1, at=self._begun)
        now = time.perf_counter()
        if self._recorder.due(now):
            self._look()
            now = time.perf_counter()
        self._begun = now

    def batches(self, source: Iterable[T]) -> Iterator[T]:
        """The batches of ``source``, with the time that the loop waits for each.

        ```python
        for x, y in run.batches(dataset):
            run.step(loss=train_step(x, y), samples=len(x))
        ```

        So the wait for input is told apart from the work; without it, it is not known.
        """
        clock, iterator = time.perf_counter, iter(source)
        while True:
            began = clock()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._waiting.input_wait = (self._waiting.input_wait or 0.0) + clock() - began
            yield batch

    def result(self, **values: float) -> None:
        """A measure of the job in your own terms, such as ``hits=0.703``."""
        self._recorder.result(values)

    def numerics(self, found: Any) -> None:
        """Add what ``keras_mp.probe(model, batch)`` found, as of the step that comes next.

        A loop of your own knows its batches, so it decides when to look: a probe costs some steps.
        """
        step, now = self._recorder.counted + 1, time.time()
        self._recorder.tell(row.to_record(step, now, found.format) for row in found)

    def end(self, status: Any = "done", reason: str | None = None) -> None:
        """The job is over, without a ``with`` block: "done", "failed" or "stopped"."""
        if status not in ("done", "failed", "stopped"):
            raise ValueError(
                f'`status` must be "done", "failed" or "stopped". Received: status={status!r}'
            )
        if self._running:
            self._running = False
            if self._recorder.pace.pending:
                self._look()
            self._recorder.end(status, reason)

    def _look(self) -> None:
        epoch = self._fetched("epoch", [] if self._epoch is None else [self._epoch])
        self._recorder.look(self._numbers, _total(epoch))

    def _numbers(self, _reading: Reading, _steps: int) -> Numbers:
        told, self._waiting = self._waiting, _Waiting()
        values = self._fetched("loss", told.losses)
        finite = [x for x in values if math.isfinite(x)]
        loss = sum(finite) / len(finite) if finite else (values[-1] if values else None)
        metrics = numbers_of(told.metrics)
        odd = [(k, v) for k, v in told.metrics.items() if k not in metrics and v is not None]
        if odd:
            self._recorder.guard("metrics", lambda: _refuse("{}={!r}".format(*odd[0])), None)
        scale, skipped = (
            self._fetched(name, [] if value is None else [value])
            for name, value in (("scale", told.scale), ("skipped", told.skipped))
        )
        return Numbers(
            loss=loss,
            metrics=metrics,
            samples=_total(self._fetched("samples", told.samples)),
            tokens=_total(self._fetched("tokens", told.tokens)),
            input_wait=told.input_wait,
            scale=scale[0] if scale else None,
            skipped=_total(skipped),
        )

    def _fetched(self, name: str, values: list[Any]) -> list[float]:
        """The values that are numbers; of others it is said once that they are not."""
        found = fetch(values)
        odd = [value for value, x in zip(values, found, strict=True) if x is None]
        if odd:
            self._recorder.guard(name, lambda: _refuse(f"{name}={odd[0]!r}"), None)
        return [x for x in found if x is not None]


def _refuse(what: str) -> None:
    raise ValueError(f"expected a number or a scalar tensor. Received: {what:.200}")


def _total(values: list[float]) -> int | None:
    total = sum(values)
    return round(total) if values and math.isfinite(total) else None


def _backend() -> str | None:
    """The framework of this process: Keras' backend if Keras is there, else what is loaded."""
    if "keras" in sys.modules:
        return str(sys.modules["keras"].backend.backend())
    return next((name for name in ("torch", "tensorflow", "jax") if name in sys.modules), None)


def _global_policy(model: Any) -> str | None:
    if model is not None or "keras" not in sys.modules:
        return None
    return str(sys.modules["keras"].config.dtype_policy().name)
