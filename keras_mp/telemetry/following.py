"""The optimizer of a Keras model in training, as Monitor follows it."""

import warnings
import weakref
from typing import Any

import keras

from keras_mp.scaling.binding import computes_in_float16
from keras_mp.scaling.optimizer import LossScaleOptimizer
from keras_mp.telemetry.ending import describe_error
from keras_mp.telemetry.sources import RingSource, Source, longest_gap, source_for


class Following:
    """Lets a model's optimizer remember its steps, from one training to the next.

    Args:
        every: Steps between two looks; None for "auto".

    Attributes:
        steps_per_execution: Of the model that was followed last.
    """

    def __init__(self, every: int | None):
        self._every = every
        self._warned = False
        self._ours: Any = None
        self._followed: Any = None
        self.steps_per_execution = 1
        self._source: Source | None = None
        self._longest = 1

    def begin(self, model: Any) -> tuple[Source, int]:
        """A training begins. Returns the way to look, and how many steps were done before."""
        optimizer = getattr(model, "optimizer", None)
        self._warn_of_float16(model, optimizer)
        self._ours = optimizer if isinstance(optimizer, LossScaleOptimizer) else None
        if self._ours is not None:
            # By its layers it is decided whether the loss is scaled, and its state (BatchNorm
            # statistics) stays as it was on skipped steps.
            self._ours.bind(model)
        self.steps_per_execution = int(getattr(model, "steps_per_execution", 1) or 1)
        self._source = source = source_for(optimizer)
        return source, self._start(source, model, optimizer)

    def done(self) -> int:
        """Steps done before the first one, once all callbacks have begun: one of them may have
        loaded the optimizer's state (BackupAndRestore)."""
        return 0 if self._source is None else self._source.start(self._longest)

    def refresh(self) -> None:
        """Weights may have been loaded since the last epoch."""
        if self._ours is not None:
            self._ours.refresh()

    def _start(self, source: Source, model: Any, optimizer: Any) -> int:
        self._longest = longest_gap(self._every, self.steps_per_execution)
        try:
            done = source.start(self._longest)
        except Exception as error:
            warnings.warn(
                "Monitor cannot follow this optimizer's steps one by one "
                f"({describe_error(error)}); the journal will hold totals only.",
                stacklevel=4,
            )
            return 0
        known = self._followed is not None and self._followed() is optimizer
        if isinstance(source, RingSource) and not known and keras.backend.backend() == "tensorflow":
            # A train function that was traced before does not know of the steps to remember. (One
            # that was only made, not traced, costs nothing to make again.)
            model.make_train_function(force=True)
        self._followed = weakref.ref(optimizer) if optimizer is not None else None
        return done

    def _warn_of_float16(self, model: Any, optimizer: Any) -> None:
        if self._warned or optimizer is None:
            return
        self._warned = True
        scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        if scaled or getattr(optimizer, "loss_scale_factor", None) is not None:
            return
        if computes_in_float16(model):
            warnings.warn(
                "The model computes in float16 and its optimizer does not scale the loss: small "
                "gradients become zero. Compile with keras_mp.LossScaleOptimizer(optimizer), or "
                "use mixed_bfloat16.",
                stacklevel=4,
            )
