"""The clock of a trial: whole steps in ``fit``, and the parts of a step by themselves."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import keras

from keras_mp.bench.batches import Batches, on_each
from keras_mp.bench.results import Split


def wait() -> None:
    """Until the device has done what it was told."""
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        where = keras.ops.zeros(()).device.type
        if where == "cuda":
            torch.cuda.synchronize()
        elif where == "mps":
            torch.mps.synchronize()
    elif backend == "tensorflow":
        import tensorflow as tf

        tf.test.experimental.sync_devices()


class Clock(keras.callbacks.Callback):
    """Seconds from the first batch's start to the epoch's end: without ``fit``'s own set-up.

    No hook at the end of a batch: one would keep Keras from dispatching ahead.
    """

    def __init__(self) -> None:
        super().__init__()
        self.began: float | None = None
        self.seconds = 0.0
        self.executions = 0  # of the train function: one a step, or one for several

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.began is None:
            self.began = time.perf_counter()
        self.executions += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # Keras has read the epoch's logs from the device: all its steps are done.
        if self.began is not None:
            self.seconds = time.perf_counter() - self.began


def fit_steps(model: Any, batches: Batches, steps: int) -> tuple[float, int]:
    """Train for so many steps; (seconds, steps done)."""
    clock = Clock()
    most = batches.most_steps()
    steps = steps if most is None else min(steps, most)
    model.fit(**batches.for_fit(steps), shuffle=False, verbose=0, callbacks=[clock])
    wait()
    return clock.seconds, min(steps, clock.executions * model.steps_per_execution)


def losses_of(model: Any, batches: Batches, steps: int) -> list[float]:
    """Train for so many steps, one batch each; the loss of each, none if no log is called so."""
    logs = [one_step(model, x, y) for x, y in batches.take(steps)]
    return [float(each["loss"]) for each in logs if "loss" in each]


def one_step(model: Any, x: Any, y: Any) -> dict[str, Any]:
    """Train on one batch; its logs. Without targets by ``fit``: ``train_on_batch`` would hand a
    ``train_step`` of the user's own a tuple where ``fit`` hands it x."""
    if y is not None:
        return model.train_on_batch(x, y, return_dict=True)
    count = len(keras.tree.flatten(x)[0])
    history = model.fit(x, batch_size=count, shuffle=False, verbose=0).history
    return {name: values[-1] for name, values in history.items()}


def split(model: Any, batches: Batches, step_seconds: float, repeats: int = 5) -> Split:
    """Where a step's time goes.

    Each part is timed by itself: fetching a batch and bringing it to the device; a step on a batch
    that is there already; the optimizer alone. What a step of ``fit`` takes beyond the second is
    input as far as fetching takes that long (the rest of it is hidden behind computing), and else
    ``fit``'s own.

    Args:
        step_seconds: Of a step in ``fit``.
    """
    fetch = _fetching(batches, repeats)
    x, y = on_each(keras.ops.convert_to_tensor, batches.take(1)[0])
    resident = _each(lambda: model.train_on_batch(x, y), repeats)
    optimizer = _each(_optimizer_step(model), repeats)
    step = min(resident, step_seconds)
    optimizer = min(optimizer, step)
    rest = step_seconds - step
    waits = min(fetch, rest)
    return Split(waits, step - optimizer, optimizer, rest - waits)


def _each(call: Callable[[], Any], repeats: int) -> float:
    """Seconds of one call: the median; the first two are for compilers."""
    took = []
    for _ in range(repeats + 2):
        wait()
        began = time.perf_counter()
        call()
        wait()
        took.append(time.perf_counter() - began)
    return median(took[2:])


def _fetching(batches: Batches, repeats: int) -> float:
    took = []
    source = batches.iterate()
    for _ in range(repeats + 1):
        began = time.perf_counter()
        item = next(source, None)
        if item is None:
            break
        on_each(keras.ops.convert_to_tensor, item)
        wait()
        took.append(time.perf_counter() - began)
    return median(took[1:] or took)


def _optimizer_step(model: Any) -> Callable[[], Any]:
    """One update as the backend's trainer makes it, with gradients of zero."""
    optimizer, variables = model.optimizer, model.trainable_variables
    gradients = [keras.ops.zeros(v.shape, dtype=v.dtype) for v in variables]
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        def on_torch() -> None:
            with torch.no_grad():
                # A loss was scaled since the last step: else the optimizer warns, and rightly.
                _scale_once(optimizer)
                optimizer.apply(gradients, variables)

        return on_torch
    if backend == "tensorflow":
        import tensorflow as tf

        @tf.function(jit_compile=bool(model.jit_compile))
        def on_tensorflow() -> None:
            _scale_once(optimizer)
            optimizer.apply(gradients, variables)

        return on_tensorflow
    import jax

    trainable = [v.value for v in variables]
    state = [v.value for v in optimizer.variables]

    @jax.jit
    def update(state: Any, trainable: Any) -> Any:
        with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, state, strict=True))):
            _scale_once(optimizer)
        return optimizer.stateless_apply(state, gradients, trainable)

    return lambda: jax.block_until_ready(update(state, trainable))


def _scale_once(optimizer: Any) -> None:
    scale_loss = getattr(optimizer, "scale_loss", None)
    if scale_loss is not None:
        scale_loss(keras.ops.zeros((), "float32"))
