"""Where a trial's batches come from: arrays, what ``fit`` takes, or made-up numbers.

Runs in the trial's child processes; the backend is loaded there.
"""

import inspect
import os
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from keras_mp import _keras_internals
from keras_mp.bench.handover import made_by
from keras_mp.policies.categories import is_a

# Made-up data: so many different batches, within so many bytes.
SYNTHETIC_BATCHES, SYNTHETIC_BYTES = 16, 64_000_000
# Arrays are cut to a turn's length, which may be a copy, and `fit` makes another: within so many.
TURN_BYTES = 2_000_000_000


class Batches:
    """Where batches come from: arrays that are cut up, or an object that ``fit`` takes.

    Attributes:
        what: In words.
        batch: Samples a batch.
        first: One batch, or a part of it. A source that is shuffled gives another the next time.
    """

    def __init__(self, source: Any, batch: int, what: str, again: Callable[[], Any] | None = None):
        """``again`` makes the source anew: a generator can be gone through but once."""
        self.what, self._source, self._arrays = what, source, None
        self._again = again if inspect.isgenerator(source) else None
        if isinstance(source, tuple | list | dict | np.ndarray):
            self._arrays = _checked(source)
            self._count = len(keras.tree.flatten(self._arrays)[0])
            self.batch, self.first = batch, self._cut(0, 1)
            return
        first = next(self.iterate(), None)
        if first is None:
            raise ValueError("The data is empty. Expected at least one batch")
        self.batch, self.first = len(keras.tree.flatten(first)[0]), first

    def iterate(self) -> Iterator[tuple[Any, Any]]:
        """Batches (x, y) as the source gives them; arrays for ever, others until they end."""
        if self._arrays is not None:
            start = 0
            while True:
                yield self._cut(start, self.batch)
                start = (start + self.batch) % self._count
        elif hasattr(self._source, "__getitem__") and hasattr(self._source, "__len__"):
            for index in range(len(self._source)):
                yield _pair(self._source[index])
        else:
            for item in self._fresh():
                yield _pair(item)

    def _fresh(self) -> Any:
        return self._source if self._again is None else self._again()

    def take(self, count: int) -> list[tuple[Any, Any]]:
        """So many batches, from the beginning again where the source ends."""
        taken: list[tuple[Any, Any]] = []
        while len(taken) < count:
            before = len(taken)
            for item in self.iterate():
                taken.append(item)
                if len(taken) == count:
                    break
            if len(taken) == before:
                raise ValueError("The data gave no batch when asked again. Expected as at first")
        return taken

    def sized(self, batch: int) -> tuple[Any, Any]:
        """One batch of any size, made of the samples that there are."""
        if self._arrays is not None:
            return self._cut(0, batch)
        first = on_each(_numpy, self.first)
        return on_each(lambda a: np.resize(a, (batch, *a.shape[1:])), first)

    def for_fit(self, steps: int) -> dict[str, Any]:
        """Arguments of ``fit`` for so many steps."""
        if self._arrays is not None:
            x, y = self._cut(0, steps * self.batch)
            return {"x": x, "y": y, "batch_size": self.batch, "epochs": 1}
        return {"x": self._fresh(), "steps_per_epoch": steps, "epochs": 1}

    def most_steps(self) -> int | None:
        """How many steps one ``fit`` can have; None without end."""
        if self._arrays is not None:
            batch = sum(a.nbytes for a in keras.tree.flatten(self.first) if a is not None)
            return max(2, TURN_BYTES // max(1, batch * self.batch))
        try:
            return len(self._source)
        except TypeError:
            return None

    def _cut(self, start: int, count: int) -> tuple[Any, Any]:
        rows = np.arange(start, start + count) % self._count
        whole = start + count <= self._count
        return on_each(lambda a: a[start : start + count] if whole else a[rows], self._arrays)


def on_each(do: Callable[[Any], Any], batch: Any) -> Any:
    """A batch with ``do`` done to each array; where there are no targets, None stays."""
    return keras.tree.map_structure(lambda a: None if a is None else do(a), batch)


def _checked(source: Any) -> tuple[Any, Any]:
    """(x, y) as arrays of as many samples; y may be None. Raises ValueError for anything else."""
    if isinstance(source, tuple | list) and len(source) != 2:
        raise ValueError(
            "Expected data as (x, y), or an object that `fit` takes. "
            f"Received: {type(source).__name__} of {len(source)}"
        )
    pair = tuple(source) if isinstance(source, tuple | list) else (source, None)
    x, y = arrays = on_each(np.asarray, pair)
    flat = [array for array in keras.tree.flatten(arrays) if array is not None]
    if not flat or any(array.ndim == 0 or array.dtype.kind in "OSU" for array in flat):
        raise ValueError(
            "Expected x and y as arrays, or lists or dicts of arrays, of numbers (text in a "
            f"tf.data.Dataset). Received: x={type(pair[0]).__name__}, y={type(pair[1]).__name__} "
            "of something else"
        )
    counts = [[len(a) for a in keras.tree.flatten(side) if a is not None] for side in (x, y)]
    if len({*counts[0], *counts[1]}) != 1:
        raise ValueError(
            "Expected as many samples in each array of x and y. "
            f"Received: x of {counts[0]}, y of {counts[1]}"
        )
    if counts[0][0] == 0:
        raise ValueError("The data is empty. Expected at least one sample")
    return x, y


def _pair(item: Any) -> tuple[Any, Any]:
    """x and y of a batch, as ``fit`` reads it; sample weights are left to ``fit``."""
    if not isinstance(item, tuple | list):
        return item, None
    return item[0], item[1] if len(item) > 1 else None


def load_batches(data: str | None, model: Any, batch: int) -> Batches:
    """Batches for a model.

    Args:
        data: A ``.npz`` file with x and y (or x0, x1, ... and y0, ...; or the names of the model's
            inputs and outputs); ``package.module:function`` that returns (x, y) or what ``fit``
            takes; None for made-up numbers of the model's shapes, by which time and memory can be
            judged and losses only compared. A model without a loss of ``compile`` needs no y.
        batch: Samples a batch, where the data does not decide it.

    Raises:
        ValueError: The file or the function is not there, there are no targets for the model's
            loss, or numbers cannot be made up.
    """
    if data is None:
        x, y = synthetic(model, 2)
        sample = sum(a.nbytes for a in keras.tree.flatten((x, y))) // 2
        count = max(batch, min(SYNTHETIC_BATCHES * batch, SYNTHETIC_BYTES // sample))
        return Batches(synthetic(model, count), batch, "synthetic")
    if data.endswith(".npz"):
        return Batches(_from_file(data, model), batch, os.path.basename(data))
    made = made_by(data)
    batches = Batches(made, batch, data, lambda: made_by(data))
    if _needs_targets(model) and batches.first[1] is None:
        raise ValueError(
            "Expected data as (x, y), or batches (x, y): the model has a loss that compares them. "
            f"Received: x alone, in {type(made).__name__}"
        )
    return batches


def _needs_targets(model: Any) -> bool:
    """Whether a loss of ``compile`` takes them; a model that is not compiled gets one."""
    return not getattr(model, "compiled", False) or getattr(model, "loss", None) is not None


def _from_file(path: str, model: Any) -> tuple[Any, Any]:
    if not os.path.isfile(path):
        raise ValueError(f"Expected a .npz file. Received: {path!r}, which is no file")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"Expected a .npz file. Received: {path!r}, which is none inside")
    with np.load(path) as archive:
        found = {name: archive[name] for name in archive.files}
    inputs = [tensor.name for tensor in getattr(model, "inputs", None) or ()]
    outputs = getattr(model, "output_names", None) or []
    if inputs and outputs and set(found) >= {*inputs, *outputs}:
        x, y = ({name: found[name] for name in side} for side in (inputs, outputs))
        return _as_in(model.input, x), _as_in(model.output, y)
    sides: list[Any] = []
    for side in ("x", "y"):
        keyed = {n.partition("/")[2]: a for n, a in found.items() if n.startswith(f"{side}/")}
        if keyed:  # a dict, as a pair of arrays in Python may be
            sides.append(keyed)
            continue
        parts = [found[n] for n in sorted(found, key=_natural) if n.startswith(side)]
        if not parts and side == "y" and not _needs_targets(model):
            sides.append(None)
            continue
        if not parts:
            raise ValueError(
                "Expected arrays x and y in the .npz file (or x0, x1, ... and y0, ...; or names of "
                f"the model's inputs and outputs). Received: {sorted(found)}"
            )
        sides.append(parts[0] if len(parts) == 1 else parts)
    return sides[0], sides[1]


def _as_in(structure: Any, arrays: dict[str, np.ndarray]) -> Any:
    """A dict where the model has one, else a list, else the only one."""
    if isinstance(structure, dict):
        return arrays
    return next(iter(arrays.values())) if len(arrays) == 1 else list(arrays.values())


def _natural(name: str) -> tuple[int, str]:
    return len(name), name  # x2 before x10


def synthetic(model: Any, count: int) -> tuple[Any, Any]:
    """Made-up inputs and targets in a model's shapes; token ids within the embeddings' range.

    Raises:
        ValueError: The model's shapes are not known, or have unknown lengths.
    """
    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise ValueError(
            "Numbers can be made up only for a model whose inputs are known (functional or "
            "sequential). Expected --data for this one. Received: data=None"
        )
    rng = np.random.default_rng(0)
    x = [_numbers(tensor, count, rng, _vocabulary(model, tensor)) for tensor in inputs]
    y = []
    for number, tensor in enumerate(model.outputs):
        shape = _shape(tensor, count)
        if "sparse" in _loss_name(model, number):
            y.append(rng.integers(shape[-1], size=shape[:-1]).astype("int32"))
        else:
            chances = rng.random(shape)
            y.append((chances / chances.sum(axis=-1, keepdims=True)).astype("float32"))
    named_inputs = getattr(model, "input", None)  # a sequential model has none
    made: Any = x[0] if len(x) == 1 else x
    if isinstance(named_inputs, dict):
        made = dict(zip(named_inputs, x, strict=True))
    return made, y[0] if len(y) == 1 else y


def _loss_name(model: Any, output: int) -> str:
    """Of the loss of one output, in lower case; "" where nothing says it."""
    loss = getattr(model, "loss", None)
    if isinstance(loss, dict):
        loss = loss.get(model.output_names[output])
    elif isinstance(loss, list | tuple):
        loss = loss[output]
    return f"{type(loss).__name__} {loss}".lower()


def _shape(tensor: Any, count: int) -> tuple[int, ...]:
    if None in tensor.shape[1:]:
        raise ValueError(
            "Numbers cannot be made up for a length that is not known. Expected --data, or a model "
            f"with fixed shapes. Received: shape={tuple(tensor.shape)}"
        )
    return (count, *tensor.shape[1:])


def _vocabulary(model: Any, tensor: Any) -> int | None:
    """How many ids an input may hold; None if no embedding takes it. Its dtype does not say it."""
    sizes = [
        operation.input_dim
        for operation, takes, _ in _keras_internals.graph_calls(model)
        if is_a(operation, "Embedding") and any(taken is tensor for taken in takes)
    ]
    return min(sizes, default=None)


def _numbers(tensor: Any, count: int, rng: Any, vocabulary: int | None) -> np.ndarray:
    shape, dtype = _shape(tensor, count), keras.backend.standardize_dtype(tensor.dtype)
    if dtype == "string":
        raise ValueError("Text cannot be made up. Expected --data. Received: data=None")
    if vocabulary is not None or "int" in dtype:
        # From 1 on: id 0 is masked in many models.
        return rng.integers(1, max(vocabulary or 2, 2), size=shape).astype(dtype)
    return rng.normal(size=shape).astype("float32")


def _numpy(tensor: Any) -> np.ndarray:
    """An array of what a source gives: arrays, or tensors of any framework."""
    if hasattr(tensor, "detach"):  # torch's, also where another backend trains
        tensor = tensor.detach().cpu()
    return np.asarray(tensor)
