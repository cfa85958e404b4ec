"""How long a Keras training waits for its batches, and how many samples and tokens they hold.

"Mixed precision is not faster" mostly means that the device waits for data. Keras tells nobody when
a batch is asked for and when it has come, so the model's train function is watched:

- torch: Keras fetches the batch and then calls the train function. From one call's end to the next
  call's beginning the host gets the next batch (and runs other callbacks' hooks at a batch's end).
- jax: the train function draws from an iterator, which is timed.
- tensorflow: the batch is drawn inside the compiled step, where nobody outside can see it (to draw
  each one before its step would cost the step more than it tells). So now and then one execution's
  batches are drawn before it, and its wait stands for those around it. Under a distribution
  strategy the time is not known.

Costs some microseconds a step and no look at a device.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras

from keras_mp._keras_internals import flatten_layers, watch_train_function
from keras_mp.telemetry import batches as tf_batches

# Between two executions whose batches are drawn before: a second, and so many times what it cost.
SAMPLE_SECONDS, SAMPLE_FACTOR = 1.0, 300.0


@dataclass(frozen=True)
class Fed:
    """What a window was fed with; None for what cannot be seen.

    Attributes:
        waited: Seconds that it waited for its batches.
        samples: First dimensions of the first inputs.
        tokens: Integers of the sequences, padding included; None for other inputs. Counted where
            the model has an Embedding and its first integer input is a matrix, (batch, length).
    """

    waited: float | None = None
    samples: int | None = None
    tokens: int | None = None


class Feed:
    """Watches what a model in training is fed with.

    Args:
        delay: Told the seconds by which a step begins later, because it was watched.
        training: An object of this training alone.
    """

    def __init__(self, model: Any, backend: str, delay: Callable[[float], None], training: Any):
        self._embeds = any(
            isinstance(layer, keras.layers.Embedding) for layer in flatten_layers(model)
        )
        self._delay = delay
        self._left: float | None = None
        self._waited = 0.0
        self._samples: int | None = 0
        self._tokens: int | None = None
        self._per_execution = int(getattr(model, "steps_per_execution", 1) or 1)
        self._tokens_per_sample: int | None = None
        self._sampled: float | None = None  # seconds a step, of this window's last sample
        self._sample_at: float | None = None
        self._fresh = True  # the next execution is the first of a training or an epoch
        self._sees_each = backend in ("torch", "jax")
        around = {
            "torch": self._around_torch,
            "jax": self._around_jax,
            "tensorflow": self._around_tensorflow,
        }.get(backend)
        self._undo = around and watch_train_function(model, around, training)

    def arrived(self, now: float) -> None:
        """A step is about to begin; on torch its batch has been fetched."""
        if self._left is not None:
            self._waited += now - self._left
            self._left = None

    def pause(self) -> None:
        """What comes now (an epoch's end, a look) is no waiting for a batch."""
        self._left, self._fresh = None, True

    def take(self, steps: int, samples: int | None) -> Fed:
        """Of the ``steps`` since the last call, in which Keras has counted so many samples."""
        if self._sees_each:
            told = Fed(self._waited, self._samples, self._tokens)
        else:
            waited = None if self._sampled is None else self._sampled * steps
            length = self._tokens_per_sample
            tokens = None if length is None or samples is None else samples * length
            told = Fed(waited, samples, tokens)
        self._waited, self._samples, self._tokens, self._sampled = 0.0, 0, None, None
        return told

    def stop(self) -> None:
        """Leave the model as it was."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _around_torch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.perf_counter

        def step(data: Any) -> Any:
            for batch in data:
                self._count(batch)
            out = function(data)
            self._left = clock()
            return out

        return step

    def _around_jax(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(state: Any, iterator: Any) -> Any:
            return function(state, self._timed(iterator))

        return step

    def _timed(self, iterator: Any) -> Iterator[Any]:
        clock = time.perf_counter
        while True:
            began = clock()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._waited += clock() - began
            self._count(batch)
            yield batch

    def _around_tensorflow(self, function: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.perf_counter

        def step(iterator: Any) -> Any:
            fresh, self._fresh = self._fresh, False  # compiles, or starts the pipeline
            if self._sample_at is None:
                # The shapes are those of the whole training.
                _, shape = _sequence(getattr(iterator, "element_spec", None))
                if self._embeds and shape is not None:
                    self._tokens_per_sample = shape[1]
                self._sample_at = clock() if tf_batches.is_plain(iterator) else float("inf")
            elif not fresh and clock() >= self._sample_at:
                return function(self._sample(iterator))
            return function(iterator)

        return step

    def _sample(self, iterator: Any) -> Any:
        """An iterator of the next execution's batches, which are waited for here."""
        clock = time.perf_counter
        began = clock()
        batches = tf_batches.drawn(iterator, self._per_execution)
        came = clock()
        self._sampled = (came - began) / len(batches)
        out = tf_batches.again(batches)
        cost = clock() - came
        self._delay(cost)
        self._sample_at = came + cost + max(SAMPLE_SECONDS, SAMPLE_FACTOR * cost)
        return out

    def _count(self, batch: Any) -> None:
        size, shape = _sequence(batch)
        if size is None:
            self._samples = None
        elif self._samples is not None:
            self._samples += size
        if self._embeds and shape is not None:
            self._tokens = (self._tokens or 0) + shape[0] * shape[1]


def _sequence(batch: Any) -> tuple[int | None, Any]:
    """Of the inputs of ``(x, y, ...)``: the first dimension of the first, and the shape (batch,
    length) of the first integer matrix."""
    inputs = batch[0] if isinstance(batch, tuple | list) and batch else batch
    leaves = keras.tree.flatten(inputs)
    shapes = [_shape(leaf) for leaf in leaves]
    size = shapes[0][0] if shapes and shapes[0] else None
    for leaf, shape in zip(leaves, shapes, strict=True):
        if len(shape) == 2 and "int" in str(getattr(leaf, "dtype", "")):
            return size, shape
    return size, None


def _shape(leaf: Any) -> tuple:
    """Empty for a scalar, and for what tells none."""
    try:
        return tuple(leaf.shape)
    except (AttributeError, TypeError, ValueError):  # TensorFlow's TensorShape of unknown rank
        return ()
