"""Monitor: a Keras callback that lets a job speak about itself, at no cost to the job."""

import os
import time
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import keras

from keras_mp.numerics.schedule import options_of
from keras_mp.scaling.binding import computes_in_float16
from keras_mp.scaling.optimizer import LossScaleOptimizer
from keras_mp.telemetry import about
from keras_mp.telemetry.alerts import OnAlert
from keras_mp.telemetry.ending import describe_error
from keras_mp.telemetry.feeding import Feed
from keras_mp.telemetry.model_metrics import ModelMetrics
from keras_mp.telemetry.recorder import Recorder, check_every
from keras_mp.telemetry.sources import Source, longest_gap, scale_of, source_for
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
    one (``CSVLogger``, ``TensorBoard``, those of W&B and MLflow) has them.

    Args:
        runs: Folder of runs. Defaults to "runs".
        name: Name of the job and of its folder. A job that is started again under the same name
            goes on in the same journal. Defaults to the model's name and the time.
        every: Steps between two looks at the device, or "auto": about every quarter of a second,
            and less often where a look would cost more than 1 % of the training.
        numerics: Look into the layers' numbers while the model trains: exponents of activations
            and gradients, and what float16 loses of them, from passes of their own on the batch
            that is trained on next. True looks as often as costs no more than 5 % of the time (the
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
        self._inside: Any = None
        if on_alert is not None and not callable(on_alert):
            raise ValueError(
                f"`on_alert` must be a function of one alert. Received: on_alert={on_alert!r}"
            )
        self._on_alert = on_alert
        self._every = check_every(every)
        self._runs, self._name, self._buffer = runs, name, buffer
        self._tensorboard = tensorboard
        self._rank, self._world = about.rank_and_world()
        self._rank = self._rank if rank is None else rank
        self._recorder: Recorder | None = None
        self._training = False
        self._bound = False
        self._warned = False
        self._base = 0
        self._epoch: int | None = None
        self._first_epoch: int | None = None
        self._epoch_began = 0.0
        self._last_begin: int | None = None
        self._steps_per_execution = 1
        self._metrics: ModelMetrics | None = None
        self._feed: Feed | None = None
        self._backend = keras.backend.backend()
        self._followed: Any = None
        self._trained: Any = None  # the train function of the last fit

    @property
    def folder(self) -> str | None:
        """The run's folder; None before training began."""
        return None if self._recorder is None else str(self._recorder.folder)

    def result(self, **values: float) -> None:
        """Add measures of the finished job, such as ``hits=0.703``, to its journal."""
        if self._recorder is None:
            raise ValueError("`result` needs a job: call it after `fit`. Received: no training yet")
        self._recorder.result({name: float(value) for name, value in values.items()})

    # Keras' hooks.

    def on_train_begin(self, logs: Any = None) -> None:
        model = self.model
        optimizer = getattr(model, "optimizer", None)
        self._warn_of_float16(optimizer)
        self._bound = isinstance(optimizer, LossScaleOptimizer)
        if isinstance(optimizer, LossScaleOptimizer):
            # By its layers it is decided whether the loss is scaled, and its state (BatchNorm
            # statistics) stays as it was on skipped steps.
            optimizer.bind(model)
        source = source_for(optimizer)
        self._steps_per_execution = int(getattr(model, "steps_per_execution", 1) or 1)
        self._base = self._start_source(source)
        if self._recorder is None:
            self._recorder = Recorder(
                self._runs,
                self._name,
                default=model.name,
                every=self._every,
                rank=self._rank,
                buffer=self._buffer,
                on_alert=self._on_alert,
                tensorboard=self._tensorboard,
            )
        params = self.params or {}
        meta = about.describe(
            self._recorder.folder.name,
            self._name,
            source=source,
            model=model,
            optimizer=optimizer,
            backend=self._backend,
            rank=self._rank,
            world_size=self._world,
            planned_epochs=params.get("epochs"),
            steps_per_epoch=params.get("steps"),
        )
        compiled = self._trained is not None and self._trained() is model.train_function
        self._recorder.begin(meta, source, self._base, self._steps_per_execution, compiled)
        # After whatever makes the train function anew.
        self._feed = self._recorder.guard("input", lambda: Feed(model, self._backend), None)
        self._begin_numerics(self._recorder)
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
        self._plan()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        recorder = self._recorder
        if recorder is None or not self._training:
            return
        now = time.perf_counter()
        feed, last, steps = self._feed, self._last_begin, self._steps_per_execution
        if feed is not None:
            feed.arrived(now)
        if last is None:
            if self._bound:
                self.model.optimizer.refresh()  # weights may have been loaded since the last epoch
        elif batch - last != steps:
            recorder.pace.correct_last(batch - last)
        inside = self._inside
        look_inside = inside is not None and inside.due(now, recorder.counted)
        if look_inside or recorder.due(now):
            self._look()
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
        self._end_of_steps()
        if logs is not None:
            logs.update(recorder.log_keys())
        recorder.epoch_end(epoch, time.perf_counter() - self._epoch_began, logs or {})
        self._plan()

    def on_train_end(self, logs: Any = None) -> None:
        if self._recorder is not None and self._training:
            self._end_of_steps()
            self._training = False
            if self._inside is not None:
                self._inside.disarm()
            if self._feed is not None:
                self._feed.stop()
            function = self.model.train_function
            self._trained = None if function is None else weakref.ref(function)
            self._recorder.end("done")

    # Behind them.

    def _start_source(self, source: Source) -> int:
        """Let the optimizer remember its steps; returns how many it has done."""
        try:
            done = source.start(longest_gap(self._every, self._steps_per_execution))
        except Exception as error:
            warnings.warn(
                "Monitor cannot follow this optimizer's steps one by one "
                f"({describe_error(error)}); the journal will hold totals only.",
                stacklevel=2,
            )
            return 0
        known = self._followed is not None and self._followed() is self.model.optimizer
        if source.settings and not known and self._backend == "tensorflow":
            # A train function that was traced before does not know of the steps to remember. (One
            # that was only made, not traced, costs nothing to make again.)
            self.model.make_train_function(force=True)
        self._followed = weakref.ref(self.model.optimizer) if source.settings else None
        return done

    def _look(self) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        # On jax the variables are behind until a callback is asked for its model: that property
        # brings them up to date. So it is asked for here, and nowhere at each step.
        _ = self.model
        recorder.look(self._numbers, self._epoch)

    def _begin_numerics(self, recorder: Recorder) -> None:
        if self._numerics is None or self._rank > 0:
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
        self._inside.begin(self._base)

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
        self._look()

    def _plan(self) -> None:
        """How many steps are meant, as soon as an epoch's number of steps is known."""
        params, recorder = self.params or {}, self._recorder
        steps, epochs, first = params.get("steps"), params.get("epochs"), self._first_epoch
        if recorder is None or not steps or epochs is None or first is None:
            return
        planned = self._base + max(0, epochs - first) * steps
        recorder.replan(planned_steps=planned, planned_epochs=epochs, steps_per_epoch=steps)

    def _numbers(self) -> Numbers:
        """What Keras knows of the window: a few host reads."""
        if self._metrics is None:
            return Numbers()
        loss, samples = self._metrics.loss_and_samples()
        waited, tokens = (None, None) if self._feed is None else self._feed.take(samples)
        return Numbers(
            loss=loss,
            metrics=self._metrics.others(),
            samples=samples,
            tokens=tokens,
            input_wait=waited,
        )

    def _warn_of_float16(self, optimizer: Any) -> None:
        if self._warned or optimizer is None:
            return
        self._warned = True
        scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        if scaled or getattr(optimizer, "loss_scale_factor", None) is not None:
            return
        if computes_in_float16(self.model):
            warnings.warn(
                "The model computes in float16 and its optimizer does not scale the loss: small "
                "gradients become zero. Compile with keras_mp.LossScaleOptimizer(optimizer), or "
                "use mixed_bfloat16.",
                stacklevel=2,
            )
