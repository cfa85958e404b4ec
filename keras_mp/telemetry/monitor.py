"""Monitor: a Keras callback that lets a job speak about itself, at no cost to the job."""

import os
import time
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any

import keras

from keras_mp.numerics.schedule import options_of
from keras_mp.telemetry import about
from keras_mp.telemetry.alerts import OnAlert
from keras_mp.telemetry.feeding import Fed, Feed
from keras_mp.telemetry.following import Following
from keras_mp.telemetry.model_metrics import ModelMetrics
from keras_mp.telemetry.recorder import Recorder
from keras_mp.telemetry.settings import checked
from keras_mp.telemetry.sources import Reading, scale_of
from keras_mp.telemetry.telling import Numbers


class Monitor(keras.callbacks.Callback):
    """Writes a journal of the training below ``runs``, for ``keras-mp monitor``.

    ```python
    model.fit(x, y, epochs=12, callbacks=[keras_mp.Monitor("runs", name="digits")])
    ```

    The device is read in ``on_train_batch_begin`` every now and then and at the ends of epochs,
    never at each step. With ``keras_mp.LossScaleOptimizer`` every skipped step lands in the journal
    all the same: the device remembers the last steps until they are read. Other optimizers work
    too; what they do not know is left out.

    The logs of ``on_epoch_end`` get ``loss_scale``, ``skipped_steps`` (so far), ``grad_norm`` and
    the epoch's ``samples_per_second``, so that ``History`` and every callback that comes after this
    one (``CSVLogger``, ``TensorBoard``, W&B's ``WandbMetricsLogger``, MLflow's ``MlflowCallback``)
    has them; a metric of your own of such a name is left alone.

    A Monitor is one job: models that train one after the other, such as the folds of a cross
    validation, each have one of their own. Copied or unpickled it is a new one.

    Args:
        runs: Folder of runs. Defaults to "runs".
        name: Name of the job and of its folder. A job that is started again under the same name
            goes on in the same journal. Defaults to the model's name and the time.
        every: Steps between two looks at the device, or "auto": about every quarter of a second,
            and less often where a look would cost more than 1 % of the training.
        numerics: Look into the layers' numbers while the model trains: exponents of activations
            and gradients, and what float16 loses of them, from passes of their own on the batch
            that is trained on next (under TensorFlow's MirroredStrategy on the first replica's part
            of it). True looks as often as costs no more than 5 % of the time (the
            first time after some steps); a dict may say ``{"every": 500}`` (steps) and
            ``{"format": "float8_e5m2"}``. Defaults to False, which costs nothing.
        on_alert: Called with a ``records.Alert`` (severity, code, message, step) when something
            begins to go wrong: "nan", "collapsing", "exhausted", "thrashing", "static", "unscaled",
            "lost", "outputs", "slow"; and, with the severity "info", when it is over. An exception
            in it is said once and stops nothing.
        rank: Which process of a job with several this is. Defaults to the environment's RANK.
        buffer: Seconds that records may be held back to be written together, for slow file
            systems. Defaults to 0: each record is written at once.
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
        every: int | str = "auto",
        numerics: bool | Mapping[str, Any] = False,
        *,
        on_alert: OnAlert | None = None,
        rank: int | None = None,
        buffer: float = 0.0,
        tensorboard: str | os.PathLike[str] | None = None,
    ):
        super().__init__()
        self._numerics = options_of(numerics)
        self._settings = checked(runs, name, every, on_alert, rank, buffer, tensorboard)
        self._backend = keras.backend.backend()
        self._begin()

    def _begin(self) -> None:
        """As before any training."""
        self._following = Following(self._settings.every)
        self._recorder: Recorder | None = None
        self._inside: Any = None
        self._training = False
        self._base = 0
        self._epoch: int | None = None
        self._first_epoch: int | None = None
        self._epoch_began = 0.0
        self._last_begin: int | None = None
        self._metrics: ModelMetrics | None = None
        self._feed: Feed | None = None
        self._trained: Any = None  # the train function of the last fit

    def __getstate__(self) -> dict[str, Any]:
        fresh = object.__new__(type(self))
        fresh.__dict__.update(self.__dict__, _model=None, params=None)
        fresh._begin()
        return fresh.__dict__

    @property
    def folder(self) -> str | None:
        """The run's folder; None before training began."""
        return None if self._recorder is None else str(self._recorder.folder)

    def result(self, **values: float) -> None:
        """Add measures of the finished job, such as ``hits=0.703``, to its journal."""
        if self._recorder is None:
            raise ValueError("`result` needs a job: call it after `fit`. Received: no training yet")
        self._recorder.result(values)

    # Keras' hooks.

    def on_train_begin(self, logs: Any = None) -> None:
        model, settings = self.model, self._settings
        if self._recorder is not None:
            self._recorder.left()
        self._stop_watching()
        source, self._base = self._following.begin(model)
        if self._recorder is None:
            self._recorder = Recorder(settings, model.name, self)
        recorder = self._recorder
        params = self.params or {}
        meta = about.describe(
            recorder.folder.name,
            settings.name,
            source=source,
            model=model,
            optimizer=getattr(model, "optimizer", None),
            backend=self._backend,
            rank=settings.rank,
            world_size=settings.world,
            planned_epochs=params.get("epochs"),
            steps_per_epoch=params.get("steps"),
        )
        compiled = self._trained is not None and self._trained() is model.train_function
        recorder.begin(
            meta,
            source,
            self._base,
            self._following.steps_per_execution,
            compiled,
            getattr(model, "jax_state_sync", None),
        )
        # After whatever makes the train function anew.
        training = self if self.params is None else self.params
        watch = partial(Feed, model, self._backend, recorder.pace.delay, training)
        self._feed = recorder.guard("input", watch, None)
        self._begin_numerics(recorder)
        self._metrics = ModelMetrics(model)
        self._first_epoch = self._last_begin = None
        self._training = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._last_begin = epoch, None
        self._epoch_began = time.perf_counter()
        if self._metrics is not None:
            self._metrics.reset()  # as Keras has
        if self._recorder is not None:
            self._recorder.compiles.forget()  # a validation compiles too
        if self._first_epoch is None:
            self._first_epoch = epoch
            self._start()
        self._plan()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        recorder = self._recorder
        if recorder is None or not self._training:
            return
        now = time.perf_counter()
        feed, last, steps = self._feed, self._last_begin, self._following.steps_per_execution
        if feed is not None:
            feed.arrived(now)
        if self._metrics is not None:
            self._metrics.notice()
        if last is None:
            self._following.refresh()
        elif batch - last != steps:
            recorder.pace.correct_last(batch - last)
        inside = self._inside
        look_inside = inside is not None and inside.due(now, recorder.counted)
        if look_inside or recorder.due(now):
            recorder.look(self._numbers, self._epoch)
        if look_inside:
            self._look_inside(recorder)
        recorder.pace.mark(steps, time.perf_counter())
        self._last_begin = batch

    def on_test_begin(self, logs: Any = None) -> None:
        # The validation at an epoch's end: the training part is over, and Keras is about to reset
        # the metrics. (On its own, evaluate() is none of our business.)
        if self._training:
            self._end_of_steps()

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._training and self._recorder is not None:
            self._recorder.heartbeat()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        recorder = self._recorder
        if recorder is None or not self._training:
            return
        if self._metrics is not None:
            self._metrics.notice()  # (a validation has had its own look at its beginning)
        self._end_of_steps()
        if logs is not None:
            for name, value in recorder.log_keys().items():
                logs.setdefault(name, value)
        recorder.epoch_end(epoch, time.perf_counter() - self._epoch_began, logs or {})
        self._plan()

    def on_train_end(self, logs: Any = None) -> None:
        if self._recorder is not None and self._training:
            self._end_of_steps()
            self._training = False
            if self._inside is not None:
                self._inside.end()
            self._stop_watching()
            function = self.model.train_function
            self._trained = None if function is None else weakref.ref(function)
            self._recorder.end("done", self._why_early(self._recorder))

    # Behind them.

    def _why_early(self, recorder: Recorder) -> str | None:
        """Why a training has ended before it did what it meant to; None where it has not."""
        if recorder.meta is None or not getattr(self.model, "stop_training", False):
            return None
        planned = recorder.meta.planned_steps
        all_done = planned is not None and recorder.step >= planned
        return None if all_done else "ended early, a callback set stop_training"

    def _stop_watching(self) -> None:
        """Leave the model's train function as it was."""
        if self._inside is not None:
            self._inside.disarm()
        if self._feed is not None:
            self._feed.stop()

    def _start(self) -> None:
        """All callbacks have begun, and one of them may have loaded the state of a training that
        was interrupted: now it is known how many steps were done before."""
        recorder = self._recorder
        if recorder is None or not self._training:
            return
        self._base = recorder.guard("optimizer", self._following.done, self._base)
        recorder.start(self._base)
        if self._inside is not None:
            self._inside.begin(self._base)

    def _begin_numerics(self, recorder: Recorder) -> None:
        if self._numerics is None or self._settings.rank > 0:
            return
        if self._inside is None:
            from keras_mp.numerics.inside import Inside

            options = self._numerics

            def tell(found: Any, step: int) -> None:
                now = time.time()
                recorder.tell(row.to_record(step, now, options.format) for row in found)

            def guard(call: Any) -> bool:
                return recorder.guard("numerics", lambda: (call(), True)[1], False)

            self._inside = Inside(options, tell, guard)

    def _look_inside(self, recorder: Recorder) -> None:
        """The batch that is trained on next is probed first; its step begins after that."""
        optimizer = getattr(self.model, "optimizer", None)
        scale = recorder.guard("loss scale", lambda: scale_of(optimizer), None)
        self._inside.arm(self.model, recorder.counted, scale, recorder.pace.delay)

    def _end_of_steps(self) -> None:
        """The training part of an epoch is over: its last steps are timed and written."""
        recorder = self._recorder
        if recorder is None or self._last_begin is None:
            return
        steps = (self.params or {}).get("steps")
        if steps is not None and not getattr(self.model, "stop_training", False):
            recorder.pace.correct_last(max(1, steps - self._last_begin))
        self._last_begin = None
        if self._feed is not None:
            self._feed.pause()
        recorder.look(self._numbers, self._epoch)

    def _plan(self) -> None:
        """How many steps are meant, as soon as an epoch's number of steps is known."""
        params, recorder = self.params or {}, self._recorder
        steps, epochs, first = params.get("steps"), params.get("epochs"), self._first_epoch
        if recorder is None or not steps or epochs is None or first is None:
            return
        planned = self._base + max(0, epochs - first) * steps
        recorder.replan(planned_steps=planned, planned_epochs=epochs, steps_per_epoch=steps)

    def _numbers(self, reading: Reading, steps: int) -> Numbers:
        """What Keras knows of the window: a few host reads."""
        if self._metrics is None:
            return Numbers()
        loss, samples = self._metrics.loss_and_samples(steps, reading.spoilt)
        fed = Fed() if self._feed is None else self._feed.take(steps, samples)
        return Numbers(
            loss=loss,
            metrics=self._metrics.others(),
            samples=samples if fed.samples is None else fed.samples,
            tokens=fed.tokens,
            input_wait=fed.waited,
        )
