"""One forward and backward pass of a model outside its training, every layer's values kept.

Nothing of the model changes: state that a pass would write (BatchNorm statistics, random seeds,
metrics) goes to a ``keras.StatelessScope`` and is dropped, so two passes draw the same dropout
masks, and the training goes on as if nobody had looked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_mp import _keras_internals
from keras_mp.numerics.watched import Outputs

State = Sequence[tuple[Any, Any]]


@dataclass
class Pass:
    """Values of one pass; gradients are of ``scale`` times the loss.

    Attributes:
        loss: Unscaled, a scalar tensor; None for inputs without targets.
        paths: Of the activations, in the order of the calls.
        activations: Outputs. gradients: The loss' with respect to them; None where there is none.
        weight_gradients: One a variable; None where there is none.
        unseen: Paths of layers whose values could not be read.
    """

    loss: Any = None
    paths: list[str] = field(default_factory=list)
    activations: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    weight_gradients: list[Any] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


@dataclass
class Task:
    """What a pass runs: a model, a batch as ``fit`` takes it, and how its loss is made.

    Attributes:
        things: What is watched -> its path (``watched.watched``).
        x, y, sample_weight: Backend tensors in any structure; y None: no gradients.
        loss: ``(y, y_pred) -> scalar``, instead of the compiled one.
        scale: What the loss is multiplied by before the backward pass.
        state: (variable, value) pairs that take the place of the variables' own values.
        compiled: What jax has compiled for this model; hand it from one task to the next.
    """

    model: Any
    things: dict[Any, str]
    x: Any
    y: Any = None
    sample_weight: Any = None
    loss: Callable[[Any, Any], Any] | None = None
    scale: float = 1.0
    state: State = ()
    compiled: dict[Any, Any] = field(default_factory=dict)

    def forward(self, outputs: Outputs, state: State | None = None) -> Any:
        """The loss of a forward pass in training mode, or None without targets."""
        outputs.ignore((self.x, self.y))
        mapping = list(self.state if state is None else state)
        given = {id(variable) for variable, _ in mapping}
        # Keras hands the scope's value to a regularizer, which has none where nothing was mapped.
        mapping += [
            (v, v.value)
            for v in self.model.trainable_variables
            if getattr(v, "regularizer", None) is not None and id(v) not in given
        ]
        with (
            # The scope collects what activity regularizers and add_loss bring; the model adds it.
            keras.StatelessScope(state_mapping=mapping or None, collect_losses=True),
            _keras_internals.observed_calls([key.it for key in self.things], outputs),
        ):
            y_pred = self.model(self.x, training=True)
            return None if self.y is None else self._loss(y_pred)

    def _loss(self, y_pred: Any) -> Any:
        if self.loss is not None:
            return ops.mean(self.loss(self.y, y_pred))
        return self.model.compute_loss(
            x=self.x, y=self.y, y_pred=y_pred, sample_weight=self.sample_weight, training=True
        )


def run(task: Task) -> Pass:
    """One pass on the backend that is loaded.

    Raises:
        ValueError: The backend has no way to do it.
    """
    backend = keras.backend.backend()
    if backend not in _BACKENDS:
        raise ValueError(f"A probe needs one of {sorted(_BACKENDS)}. Received: backend={backend!r}")
    return _BACKENDS[backend](task)


def _torch(task: Task) -> Pass:
    import torch

    outputs = Outputs(task.things, lambda value: True)
    # Dropout draws from torch's own generator there: each pass starts from the same state, and the
    # training goes on from it.
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices), torch.enable_grad():
        loss = task.forward(outputs)
        found = _pass(loss, outputs)
        if loss is None:
            return found
        variables = [v.value for v in task.model.trainable_variables]
        sources = [*outputs.tensors, *variables]
        wanted = [i for i, source in enumerate(sources) if source.requires_grad]
        gradients: list[Any] = [None] * len(sources)
        if loss.requires_grad and wanted:
            some = torch.autograd.grad(
                loss * task.scale, [sources[i] for i in wanted], allow_unused=True
            )
            for i, gradient in zip(wanted, some, strict=True):
                gradients[i] = gradient
    found.activations = [a.detach() for a in found.activations]
    return _with(found, gradients)


def _tensorflow(task: Task) -> Pass:
    import tensorflow as tf

    # Inside a loop that TensorFlow traces, tensors have no values.
    outputs = Outputs(task.things, lambda value: hasattr(value, "numpy"))
    with tf.GradientTape() as tape:
        loss = task.forward(outputs)
        scaled = None if loss is None else loss * tf.cast(task.scale, loss.dtype)
    found = _pass(loss, outputs)
    if loss is None:
        return found
    gradients = tape.gradient(scaled, [*outputs.tensors, *task.model.trainable_variables])
    return _with(found, [None if g is None else tf.convert_to_tensor(g) for g in gradients])


def _jax(task: Task) -> Pass:
    import jax

    first = _jax_outputs(task)
    if task.y is None:
        return first
    things = {key: path for key, path in task.things.items() if path not in set(first.unseen)}
    trainable = list(task.model.trainable_variables)
    known = {id(v): value for v, value in task.state}
    values = [_value(v, known) for v in trainable]
    # All that the pass reads is an argument: as a constant it would be compiled in, and stay.
    trained = {id(v) for v in trainable}
    rest = [v for v in _variables(task.model) if id(v) not in trained]
    pairs = [(v, _value(v, known)) for v in rest]
    key = (tuple(layer.dtype_policy.name for layer in _layers(things)), len(pairs))
    if key not in task.compiled:
        task.compiled[key] = jax.jit(_jax_gradients(replace(task, things=things), trainable, pairs))
    deltas = [ops.zeros(shape.shape, shape.dtype) for shape in first.activations]
    gradients, (first.loss, seen) = task.compiled[key](
        deltas,
        values,
        [value for _, value in pairs],
        (task.x, task.y, task.sample_weight),
        task.scale,
    )
    first.activations = list(seen)
    return _with(first, [*gradients[0], *gradients[1]])


def _variables(model: Any) -> list[Any]:
    return [*model.non_trainable_variables, *model.metrics_variables]


def _value(variable: Any, known: dict[int, Any]) -> Any:
    """While jax trains, variables are empty: their values are handed over as state."""
    if id(variable) in known:
        return known[id(variable)]
    return variable.value


def _layers(things: dict[Any, str]) -> list[Any]:
    return [key.it for key in things if isinstance(key.it, keras.layers.Layer)]


def _jax_gradients(task: Task, trainable: list[Any], pairs: list[Any]) -> Callable:
    """jax differentiates by a function's arguments: what is added to an output is one."""
    import jax

    variables = [v for v, _ in pairs]

    def scaled(
        deltas: list[Any], weights: list[Any], state: list[Any], data: tuple, scale: Any
    ) -> tuple[Any, Any]:
        outputs = _Shifted(task.things, lambda value: True, deltas)
        mapping = [*zip(variables, state, strict=True), *zip(trainable, weights, strict=True)]
        x, y, sample_weight = data
        one = replace(task, x=x, y=y, sample_weight=sample_weight)
        loss = one.forward(outputs, mapping)
        return loss * ops.cast(scale, loss.dtype), (loss, outputs.seen)

    return jax.grad(scaled, argnums=(0, 1), has_aux=True)


def _jax_outputs(task: Task) -> Pass:
    """The outputs of a forward pass: their shapes, or without targets their values."""
    import jax

    traced: list[Outputs] = []

    def trace() -> list[Any]:
        traced.append(Outputs(task.things, lambda value: True))
        task.forward(traced[-1])
        return traced[-1].tensors

    try:
        tensors = (jax.jit(trace) if task.y is None else partial(jax.eval_shape, trace))()
        found = _pass(None, traced[-1])
        found.activations = list(tensors)
        return found
    except jax.errors.UnexpectedTracerError:
        # Some layer is called inside a loop that jax traces: only a pass without tracing tells
        # which, by what has no value even then.
        outputs = Outputs(task.things, lambda value: not isinstance(value, jax.core.Tracer))
        task.forward(outputs)
        return _pass(None, outputs)


class _Shifted(Outputs):
    """Adds to each output the argument that stands for it."""

    def __init__(self, things: dict[Any, str], readable: Callable, deltas: list[Any]):
        super().__init__(things, readable)
        self._deltas = iter(deltas)
        self.seen: list[Any] = []

    def replaced(self, value: Any) -> Any:
        shifted = value + next(self._deltas)
        self.seen.append(shifted)
        return shifted


def _pass(loss: Any, outputs: Outputs) -> Pass:
    return Pass(
        loss=loss,
        paths=outputs.paths,
        activations=outputs.tensors,
        gradients=[None] * len(outputs.tensors),
        unseen=outputs.unseen,
    )


def _with(found: Pass, gradients: Sequence[Any]) -> Pass:
    count = len(found.paths)
    found.gradients, found.weight_gradients = list(gradients[:count]), list(gradients[count:])
    return found


_BACKENDS: dict[str, Callable[[Task], Pass]] = {
    "torch": _torch,
    "tensorflow": _tensorflow,
    "jax": _jax,
}
