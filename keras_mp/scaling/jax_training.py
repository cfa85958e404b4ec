"""A train step for jax that leaves a model's state alone where the optimizer skips a step.

Keras' jax trainer computes BatchNorm statistics, the running mean of the loss and the optimizer's
update side by side: the optimizer never sees the others and cannot take them back. Only the train
step sees all of them, so it is the train step that must choose.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_mp import _keras_internals
from keras_mp.scaling.binding import protected_variables
from keras_mp.scaling.device_state import CONSECUTIVE_SKIPS
from keras_mp.scaling.optimizer import LossScaleOptimizer

# A look at the state waits for the device: this many train steps apart.
LOOK_EVERY = 256
COUNTERS_AT = 2  # in optimizer.variables: scale, good steps, counters, limits


class GuardedTrainStep:
    """Put before ``keras.Model`` or ``keras.Sequential`` in a class' bases, for training on jax.

    ```python
    class Net(keras_mp.GuardedTrainStep, keras.Model):
        ...
    model = Net(inputs, outputs)          # functional, sequential and subclassed models alike
    ```

    On a step that ``keras_mp.LossScaleOptimizer`` skips, the own non-trainable variables of
    trainable layers keep their values (BatchNorm statistics; not the states of random seeds). A
    loss that is not finite stays out of the epoch's mean. The optimizer gets to know the loss, so
    that an overflow's origin is known.

    On torch and tensorflow the optimizer does all this by itself, and this class changes nothing.
    So it does with another optimizer. A model with a ``train_step`` of its own must call this one,
    or use ``applied`` and ``keep``.
    """

    def make_train_function(self, force: bool = False) -> None:
        """Keras' own; on jax it also looks, now and then, for a run that trains nothing."""
        if self.train_function is not None and not force:  # type: ignore[has-type]
            return
        super().make_train_function(force=force)  # type: ignore[misc]
        if _guards(self):
            self.train_function = _looking(self.train_function, self.optimizer)  # type: ignore

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        if not _guards(self):
            return super().train_step(*args, **kwargs)  # type: ignore[misc]
        return _train_step(self, self.optimizer, *args, **kwargs)  # type: ignore[attr-defined]


def _guards(model: Any) -> bool:
    optimizer = getattr(model, "optimizer", None)
    return keras.backend.backend() == "jax" and isinstance(optimizer, LossScaleOptimizer)


def _looking(train_function: Callable[..., Any], optimizer: LossScaleOptimizer) -> Any:
    calls = itertools.count(1)

    def step(state: Any, iterator: Any) -> Any:
        logs, state = train_function(state, iterator)
        if next(calls) % LOOK_EVERY == 0:
            optimizer._kernel.look_at(state[2])
        return logs, state

    return step


def applied(optimizer: LossScaleOptimizer, optimizer_values: Sequence[Any]) -> Any:
    """Whether a step was applied, and not skipped: a bool tensor, shape ().

    Args:
        optimizer: The optimizer. optimizer_values: Its variables' values after the step, as
            ``stateless_apply`` returns them.
    """
    return ops.equal(optimizer_values[COUNTERS_AT][CONSECUTIVE_SKIPS], 0)


def keep(which: Any, new: Sequence[Any], old: Sequence[Any]) -> list[Any]:
    """``new`` where ``which`` (bool, shape ()) holds, else ``old``; what did not change is left."""
    return [n if n is o else ops.where(which, n, o) for n, o in zip(new, old, strict=True)]


def _train_step(model: Any, optimizer: LossScaleOptimizer, state: Any, data: Any) -> Any:
    """Keras' train step for jax on public names, with the choices added."""
    import jax

    trainable, non_trainable, optimizer_values, metrics = state
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    gradient = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)
    (_, (loss, y_pred, new_non_trainable, new_metrics)), grads = gradient(
        trainable,
        non_trainable,
        metrics,
        x,
        y,
        sample_weight,
        training=True,
        optimizer_variables=optimizer_values,
    )
    kernel = optimizer._kernel
    kernel.model_distances.trains(model, x)
    kernel.observe_loss(loss)
    try:
        trainable, optimizer_values = optimizer.stateless_apply(optimizer_values, grads, trainable)
    finally:
        kernel.observe_loss(None)  # a tracer, which must not outlive the trace
    ok = applied(optimizer, optimizer_values)
    protected = {id(v) for v in protected_variables(model)}
    non_trainable = [
        keep(ok, [new], [old])[0] if id(variable) in protected else new
        for variable, new, old in zip(
            model.non_trainable_variables, new_non_trainable, non_trainable, strict=True
        )
    ]
    # What the loss updated on its way: the mean loss of each output.
    parts = {
        id(variable): i
        for mean in _keras_internals.output_loss_trackers(model)
        for i, variable in enumerate(mean.variables)
    }
    samples = _samples(x)
    metrics = [
        _spared(ops.isfinite(loss), new, old, parts.get(id(variable)) == 1, samples)
        for variable, new, old in zip(model.metrics_variables, new_metrics, metrics, strict=True)
    ]
    logs, metrics = _update_metrics(model, loss, x, y, y_pred, sample_weight, metrics)
    return logs, (trainable, non_trainable, optimizer_values, metrics)


def _update_metrics(
    model: Any, loss: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any, values: Any
) -> tuple[dict[str, Any], list[Any]]:
    """(logs, the metrics' new values); the loss counts only where it is finite."""
    variables = model.metrics_variables
    tracker = _keras_internals.loss_tracker(model)
    mapping = list(zip(variables, values, strict=True))
    with keras.StatelessScope(state_mapping=mapping) as scope:
        if tracker is not None:
            samples, finite = _samples(x), ops.isfinite(loss)
            before = [v.value for v in tracker.variables]
            tracker.update_state(loss, sample_weight=samples)
            for i, variable in enumerate(tracker.variables):
                variable.assign(_spared(finite, variable.value, before[i], i == 1, samples))
        logs = model.compute_metrics(x, y, y_pred, sample_weight)
    new = [scope.get_current_value(v) for v in variables]
    return logs, [old if n is None else n for n, old in zip(new, values, strict=True)]


def _spared(finite: Any, new: Any, old: Any, is_count: bool, samples: int) -> Any:
    """A mean's sum or count after a loss that may not be finite. While no loss was, the count is
    NaN, so that an epoch without any shows NaN and not the 0 of an empty mean."""
    if new is old:
        return new
    if is_count:
        new = ops.where(ops.isnan(new), ops.cast(samples, new.dtype), new)
        old = ops.where(ops.equal(old, 0), float("nan"), old)
    return ops.where(finite, new, old)


def _samples(x: Any) -> int:
    return next(leaf for leaf in keras.tree.flatten(x) if leaf is not None).shape[0]
