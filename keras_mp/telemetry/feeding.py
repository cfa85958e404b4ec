"""How long a Keras training waits for its batches, and how many tokens they hold.

"Mixed precision is not faster" mostly means that the device waits for data. Keras tells nobody when
a batch is asked for and when it has come, so the model's train function is watched:

- torch: Keras fetches the batch and then calls the train function. From one call's end to the next
  call's beginning the host gets the next batch (and runs other callbacks' hooks at a batch's end).
- jax: the train function draws from an iterator, which is timed.
- tensorflow: the batch is drawn inside the compiled step, where nobody outside can see it; the time
  is not known there.

Costs two clock readings a step and no look at a device.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import keras

from keras_mp._keras_internals import flatten_layers, watch_train_function


class Feed:
    """Watches what a model in training is fed with.

    Attributes:
        waited: Seconds since the last ``take``; None where they cannot be seen.
        tokens: Integers of the sequences since the last ``take``, padding included; None for other
            inputs. Counted where the model has an Embedding and its first integer input is a
            matrix, (batch, length).
    """

    def __init__(self, model: Any, backend: str):
        self._embeds = any(
            isinstance(layer, keras.layers.Embedding) for layer in flatten_layers(model)
        )
        self._times = backend in ("torch", "jax")
        self._left: float | None = None
        self.waited: float | None = 0.0 if self._times else None
        self.tokens: int | None = None
        self.tokens_per_sample: int | None = None
        around = {"torch": self._around_torch, "jax": self._around_jax}.get(backend)
        if around is None and self._embeds:
            around = self._around_tensorflow
        self._undo = watch_train_function(model, around) if around is not None else None

    def arrived(self, now: float) -> None:
        """A step is about to begin; on torch its batch has been fetched."""
        if self._left is not None and self.waited is not None:
            self.waited += now - self._left
            self._left = None

    def pause(self) -> None:
        """What comes now (an epoch's end, a look) is no waiting for a batch."""
        self._left = None

    def take(self, samples: int | None) -> tuple[float | None, int | None]:
        """(seconds waited, tokens) since the last call, in which so many samples were seen."""
        if self.tokens_per_sample is not None and samples is not None:
            self.tokens = samples * self.tokens_per_sample
        told = self.waited, self.tokens
        self.waited = 0.0 if self._times else None
        self.tokens = None
        return told

    def stop(self) -> None:
        """Leave the model as it was."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _around_torch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.perf_counter

        def step(data: Any) -> Any:
            if self._embeds:
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
            self.waited = (self.waited or 0.0) + clock() - began
            if self._embeds:
                self._count(batch)
            yield batch

    def _around_tensorflow(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(iterator: Any) -> Any:
            # The shapes are those of the whole training: one look, and out of the way.
            self.stop()
            shape = _sequence(getattr(iterator, "element_spec", None))
            self.tokens_per_sample = None if shape is None else shape[1]
            return function(iterator)

        return step

    def _count(self, batch: Any) -> None:
        shape = _sequence(batch)
        if shape is not None:
            self.tokens = (self.tokens or 0) + shape[0] * shape[1]


def _sequence(batch: Any) -> Any:
    """Shape (batch, length) of the first integer matrix in the inputs of ``(x, y, ...)``."""
    inputs = batch[0] if isinstance(batch, tuple | list) and batch else batch
    for leaf in keras.tree.flatten(inputs):
        shape = getattr(leaf, "shape", None)
        if shape is not None and len(shape) == 2 and "int" in str(getattr(leaf, "dtype", "")):
            return shape
    return None
