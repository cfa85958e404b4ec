"""A look into a training: the next batch that ``fit`` trains on is probed before its step.

No hook of Keras shows a callback a batch. So the train function of the user's model is wrapped for
one call: it takes the batch, looks, and trains on that same batch as it would have. Between looks
nothing of it is left on the model, and nothing is asked of the device.
"""

import logging
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import keras

from keras_mp import _keras_internals
from keras_mp.numerics.probe import look
from keras_mp.numerics.rows import Probe
from keras_mp.numerics.schedule import Options, Schedule
from keras_mp.policies.structure import Structure, structure_of
from keras_mp.telemetry import batches as tf_batches

log = logging.getLogger("keras_mp")


class Inside:
    """Looks into one training, on schedule.

    Args:
        options: See Options.
        tell: Called with each Probe and the step that it belongs to.
        guard: ``guard(call)`` runs ``call`` and returns whether it went well; it says what did not.
    """

    def __init__(
        self,
        options: Options,
        tell: Callable[[Probe, int], None],
        guard: Callable[[Callable[[], Any]], bool],
    ):
        self._options = options
        self._tell, self._guard = tell, guard
        self._backend = keras.backend.backend()
        self.schedule = Schedule(options, self._backend)
        self._compiled: dict[Any, Any] = {}
        self._structure: Structure | None = None
        self._undo: Callable[[], None] | None = None
        self._off = self._said = False

    def begin(self, step: int) -> None:
        """A training begins after ``step`` steps."""
        self.schedule.begin(step)
        self._compiled, self._structure = {}, None

    def due(self, now: float, step: int) -> bool:
        """Whether the next batch is to be looked at. Asked at each step; no read, no operator."""
        return not self._off and self.schedule.due(now, step)

    def arm(
        self, model: Any, step: int, scale: float | None, took: Callable[[float], None]
    ) -> None:
        """The next call of the train function is looked into.

        Args:
            step: Steps done so far.
            scale: The loss scale of the step to come; None without one.
            took: Told how many seconds the look took.
        """
        self.disarm()

        def at(batch: Any, state: Any = ()) -> None:
            began = time.perf_counter()
            well = self._guard(lambda: self._look(model, batch, step, scale, state))
            seconds = time.perf_counter() - began
            self._off = self._off or not well
            self.schedule.looked(began + seconds, step, seconds)
            took(seconds)

        around = {"torch": _torch, "jax": _jax, "tensorflow": _tensorflow}[self._backend]
        self._undo = _keras_internals.around_next_call(
            model, lambda function: around(model, function, at)
        )

    def end(self) -> None:
        """The training is over; where that was before its first look, it is said once."""
        if self._options.every == "auto" and not self.schedule.spent and not self._said:
            self._said = True
            log.warning(
                "numerics=True: the training was over before its first look, because all looks "
                "together may take 5 % of the time trained. "
                "numerics={'every': 100} looks every 100 steps, whatever it takes."
            )

    def disarm(self) -> None:
        """Leave the model as it was."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _look(self, model: Any, batch: Any, step: int, scale: float | None, state: Any) -> None:
        if isinstance(batch, _Unreadable):
            raise ValueError(batch.why)
        if self._structure is None:
            self._structure = structure_of(model, ends=False)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        found = look(
            model,
            x,
            y,
            sample_weight,
            scale=scale if scale else 1.0,
            format=self._options.format,
            state=state,
            structure=self._structure,
            compiled=self._compiled,
        )
        self._tell(found, step + 1)


class _Unreadable:
    def __init__(self, why: str):
        self.why = why


def _torch(model: Any, function: Callable, at: Callable) -> Callable:
    def step(data: Any) -> Any:
        at(data[0])
        return function(data)

    return step


def _jax(model: Any, function: Callable, at: Callable) -> Callable:
    def step(state: Any, iterator: Iterator) -> Any:
        batch = next(iterator)
        # While jax trains, the variables are empty: their values travel in the state.
        kinds = (model.trainable_variables, model.non_trainable_variables)
        values = (state[0], state[1])
        pairs = [p for ks, vs in zip(kinds, values, strict=True) for p in zip(ks, vs, strict=True)]
        pairs += list(zip(model.metrics_variables, state[3], strict=True))
        at(batch, pairs)
        return function(state, chain([batch], iterator))

    return step


def _tensorflow(model: Any, function: Callable, at: Callable) -> Callable:
    import tensorflow as tf

    present = tf.experimental.Optional

    def of_first_replica(part: Any) -> Any:
        part = model.distribute_strategy.experimental_local_results(part)[0]
        return None if isinstance(part, present) else part

    def step(iterator: Any) -> Any:
        plain = tf_batches.is_plain(iterator)
        # (Where other processes have replicas, state that is read here alone would wait for them.)
        if not plain and not isinstance(model.distribute_strategy, tf.distribute.MirroredStrategy):
            why = f"a batch of {type(iterator).__name__} (a distribution strategy) cannot be taken"
            at(_Unreadable(why))
            return function(iterator)
        batches = tf_batches.drawn(iterator, model.steps_per_execution)
        at(keras.tree.map_structure(of_first_replica, batches[0]))
        # Keras takes batches of replicas in any iterator, and traces its step for them once more.
        return function(tf_batches.again(batches) if plain else iter(batches))

    return step
