"""What a loss scale optimizer tells the host: the scale, the steps, who overflowed.

All of it reads the device, so none of it belongs into a step.
"""

import weakref
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp.scaling.attribution import Attribution, attribute
from keras_mp.scaling.masters import HALF
from keras_mp.scaling.report import OverflowReport, overflow_report
from keras_mp.scaling.ring import StepRow, decode

FLOAT16_MAX = 65504.0


class TellsTheHost:
    """Mixed into LossScaleOptimizer, whose state and kernel it reads."""

    _state: Any
    _kernel: Any
    _ring_rows: int
    _headroom_every: int
    _distances: dict[int, int]
    _trainable_variables: list[Any]
    _first_scale: Any
    config: Any

    @property
    def loss_scale(self) -> Any:
        """The loss scale of the next step, a float. Reads the device.

        In a ``tf.function`` or a ``jax.jit`` that is being traced a tensor of float32, shape ().
        """
        object.__setattr__(self, "_scaled", True)  # whoever asks may scale by hand
        return self._first_scale() if self._kernel is None else self._kernel.current_scale()

    @property
    def skipped_steps(self) -> Any:
        """Steps skipped so far, an int. Reads the device. In a trace a tensor of int32."""
        return 0 if self._kernel is None else self._kernel.current_state().skipped

    @property
    def applied_steps(self) -> Any:
        """Steps whose gradients were used so far, an int. Reads the device. In a trace a tensor of
        int32."""
        return 0 if self._kernel is None else self._kernel.current_state().applied

    @property
    def last_step_finite(self) -> Any:
        """Whether the last step was applied, a bool; None before the first. Reads the device. In a
        trace a tensor of bool, True before the first."""
        if self._kernel is None:
            return None
        state = self._kernel.current_state()
        if self._kernel.is_tracing():
            return ops.equal(state.consecutive_skips, 0)
        return None if state.step == 0 else state.consecutive_skips == 0

    def watch(self, rows: int) -> None:
        """Keep the last ``rows`` steps on the device, for ``recent_steps``. Never shrinks.

        On TensorFlow a train function that was traced before needs
        ``model.make_train_function(force=True)``.
        """
        object.__setattr__(self, "_ring_rows", max(_count("rows", rows), self._ring_rows))
        if self._kernel is not None:
            self._kernel.allocate_ring(self._ring_rows)

    def recent_steps(self, since: int = 0) -> list[StepRow]:
        """The steps after ``since`` that the ring still holds, in order. Reads the device once."""
        ring = None if self._kernel is None else self._kernel.read_ring()
        return [] if ring is None else decode(ring, since)

    @property
    def variable_paths(self) -> list[str]:
        """Paths of the trainable variables, in the order that ``StepRow.nonfinite`` indexes."""
        return [getattr(v, "path", v.name) for v in self._trainable_variables]

    def describe(self, row: StepRow) -> Attribution:
        """Which variables made a step overflow, the layer to blame, and the origin."""
        if self._kernel is None:
            return attribute(row, self.variable_paths)
        distances = self._distances or self._kernel.distances()
        return attribute(row, self.variable_paths, distances, self._kernel.places)

    def measure_headroom(self, every: int = 100) -> None:
        """Measure, every so many steps, how far each variable's scaled gradient is from 65504.

        Costs one pass over the gradients at those steps and nothing at the others. On TensorFlow a
        train function that was traced before needs ``model.make_train_function(force=True)``.

        Args:
            every: Steps between two measurements. Defaults to 100.
        """
        object.__setattr__(self, "_headroom_every", _count("every", every))
        if self._kernel is not None:
            self._kernel.measure_headroom(self._headroom_every)

    def headroom(self) -> dict[str, float]:
        """float16's largest number (65504) over the largest scaled gradient, for each variable.

        By path, as last measured (``measure_headroom``): 4.0 means that the scale could double
        twice; below 1 a gradient of that size would not fit into float16; infinity, that all of the
        gradient was zero. Empty before the first measurement. Reads the device.
        """
        largest = None if self._kernel is None else self._kernel.largest_gradients()
        if largest is None:
            return {}
        with np.errstate(divide="ignore"):
            room = np.float64(FLOAT16_MAX) / largest.astype(np.float64)
        return {
            path: float(r)
            for path, r in zip(self.variable_paths, room, strict=True)
            if not np.isnan(r)
        }

    def overflow_report(self) -> OverflowReport:
        """Which variables were not finite, how often, since when; the layer to blame. Printable."""
        if self._kernel is None:
            return overflow_report(0, np.zeros((3, 0), int), [], None)
        counts = self._kernel.overflow_counts()
        row = self._kernel.last_overflow
        last = None if row is None else self.describe(row)
        return overflow_report(self.skipped_steps, counts, self.variable_paths, last)


class KerasNames:
    """The names that Keras' and tf.keras' wrappers have for the same things."""

    _state: Any
    config: Any
    built: bool
    loss_scale: Any
    scale_loss: Any
    _unscaled_from: Sequence[Any] = ()  # weakly, the scaled gradients that were unscaled by hand

    @property
    def dynamic_scale(self) -> Any:
        """The loss scale's variable (float32, shape ()), under Keras' name."""
        if self._state is None:
            raise AttributeError("`dynamic_scale` exists once the optimizer is built.")
        object.__setattr__(self, "_scaled", True)  # whoever asks may scale by hand
        return self._state.scale

    @property
    def step_counter(self) -> Any:
        """Clean updates towards growth (int32 variable, shape ()), under Keras' name."""
        if self._state is None:
            raise AttributeError("`step_counter` exists once the optimizer is built.")
        return self._state.good_steps

    @property
    def dynamic(self) -> bool:
        """Whether the scale moves (tf.keras' name)."""
        return self.config.dynamic

    @property
    def dynamic_counter(self) -> Any:
        """tf.keras' name for ``step_counter``; None for a static scale."""
        return self.step_counter if self.config.dynamic and self.built else None

    def get_scaled_loss(self, loss: Any) -> Any:
        """tf.keras' name for ``scale_loss``."""
        return self.scale_loss(loss)

    def get_unscaled_gradients(self, grads: Any) -> list[Any]:
        """tf.keras' name: the gradients divided by the scale; None stays None.

        ``apply`` unscales by itself what it is given, but not what comes from here (as it is,
        clipped, summed over micro-batches ...), so that tf.keras' three calls, with
        ``apply_gradients`` as the last, do what they did there. Half-precision gradients come back
        in float32.
        """
        grads, scale = list(grads), self.loss_scale
        given = [weakref.ref(g) for g in grads if g is not None]
        object.__setattr__(self, "_unscaled_from", given)
        return [None if g is None else ops.divide(_wide(g), scale) for g in grads]

    def _scaled_again(self, grads: list[Any], scale: Any) -> list[Any]:
        """What ``apply`` was given as gradients of the scaled loss, which kernels want: multiplied
        by the scale if they were unscaled, and are not those that were then only looked at."""
        if not self._unscaled_from:
            return grads
        scaled = {id(ref()) for ref in self._unscaled_from} - {id(None)}
        unscaled = scaled.isdisjoint(map(id, grads))
        object.__setattr__(self, "_unscaled_from", ())
        if not unscaled:
            return grads
        return [None if g is None else ops.multiply(_wide(g), scale) for g in grads]


def _wide(gradient: Any) -> Any:
    """A half-precision gradient in float32; others as they are."""
    half = keras.backend.standardize_dtype(gradient.dtype) in HALF
    return ops.cast(gradient, "float32") if half else gradient


def _count(name: str, value: Any) -> int:
    """The argument, a number of steps."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"`{name}` must be an integer from 1 on. Received: {name}={value!r}")
    return int(value)
