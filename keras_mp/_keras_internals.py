"""The few private reads of Keras, one function each: why, and what happens when Keras changes it.

Each has a test in ``tests/keras_mp/test_keras_internals.py`` that fails when Keras does.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any


def adam_slots(optimizer: Any) -> tuple[list[Any], list[Any]]:
    """Adam's momentums and velocities, one variable each a trainable variable.

    Public is only the flat ``optimizer.variables``. Without it the fused update cannot be built,
    and the general kernel takes its place.
    """
    return optimizer._momentums, optimizer._velocities


def sgd_slots(optimizer: Any) -> list[Any]:
    """SGD's velocities (an empty list without momentum). As ``adam_slots``."""
    return optimizer.momentums


def uses_weight_decay(optimizer: Any, variable: Any) -> bool:
    """Whether ``exclude_from_weight_decay`` spares a variable; Keras keeps the answer private.

    Without it the fused update cannot be built, and the general kernel takes its place.
    """
    return optimizer._use_weight_decay(variable)


def raw_iterations(optimizer: Any) -> Any:
    """The variable that counts applied micro-batches.

    The public ``iterations`` is divided by ``gradient_accumulation_steps`` and no variable then.
    """
    return optimizer._iterations


@contextmanager
def watched_updates(optimizer: Any, see: Callable[[Any, Any], None]) -> Iterator[None]:
    """Show ``see(gradient, variable)`` what each variable is updated with, while the block lasts.

    Under a tf.distribute strategy ``apply`` adds the gradients up over the replicas and hands the
    sums to the public ``update_step``; nobody else sees them. A subclass cannot watch a user's
    instance, so it is set on that. Where Keras does not call it, nothing is seen, and the norm of
    the gradients is unknown.
    """
    own = vars(optimizer).get("update_step")
    update_step = optimizer.update_step

    def watched(gradient: Any, variable: Any, learning_rate: Any) -> Any:
        see(gradient, variable)
        return update_step(gradient, variable, learning_rate)

    object.__setattr__(optimizer, "update_step", watched)  # past what Keras tracks
    try:
        yield
    finally:
        object.__delattr__(optimizer, "update_step")
        if own is not None:
            object.__setattr__(optimizer, "update_step", own)


def flatten_layers(model: Any) -> list[Any]:
    """Every layer under a model, the model itself included, however they are nested.

    The public ``layers`` holds only the direct ones of functional models. Without it layers inside
    layers would be overlooked.
    """
    return list(model._flatten_layers(include_self=True, recursive=True))


def share_weight_decay(optimizer: Any, variable: Any, master: Any) -> None:
    """Spare a master from weight decay where its variable is spared.

    ``exclude_from_weight_decay`` notes variables by identity, in a private set, before the masters
    exist. Without it the masters of excluded variables would decay.
    """
    for one in [optimizer, *getattr(optimizer, "optimizers", [])]:
        spared = getattr(one, "_exclude_from_weight_decay", None)
        if spared and one._var_key(variable) in spared:
            spared.add(one._var_key(master))


def own_state(layer: Any) -> list[Any]:
    """A layer's own non-trainable variables, without its sublayers' and its random seeds'.

    The public ``non_trainable_variables`` mixes all of these, and frozen weights. Without it
    BatchNorm statistics could not be protected on a skipped step.
    """
    return list(getattr(layer, "_non_trainable_variables", ()))


def functional_class() -> type:
    """The class of models made by ``keras.Model(inputs, outputs)``; public only by making one."""
    from keras.src.models.functional import Functional

    return Functional


def loss_tracker(model: Any) -> Any:
    """The mean of the loss that ``compile`` made; None without one, or where nobody asks for it.

    The public ``metrics`` lists it first, but a model may list metrics of its own, a "loss" among
    them, that its own code updates. Without it the loss would be missing from jax' logs.
    """
    tracker = getattr(model, "_loss_tracker", None)
    return tracker if any(metric is tracker for metric in model.metrics) else None


def output_loss_trackers(model: Any) -> list[Any]:
    """The means of each output's own loss, which ``compile`` made for a model with several.

    The public ``metrics`` has them behind the compiled metrics, with a model's own among them.
    Without it a loss that is not finite would enter the means of the outputs.
    """
    return list(getattr(getattr(model, "_compile_loss", None), "metrics", ()))


def watch_evaluations(model: Any) -> Callable[[], bool]:
    """Returns a function that says whether ``evaluate`` has run since.

    No hook tells a callback of an ``evaluate`` that somebody calls inside an epoch, and it sets the
    metrics back that the training's loss is read from. It sets the model's public
    ``stop_evaluating`` to False as it begins; a zero of our own that stands there is gone then.
    Without it the loss of such a window would be that of other data.
    """
    mark = getattr(model, "stop_evaluating", None)
    if not isinstance(mark, float):  # several watch by one
        mark = model.stop_evaluating = float("0")  # an object of its own, and as false
    return lambda: model.stop_evaluating is not mark


def raw_tensor(variable: Any) -> Any:
    """The tensor that a variable stores, not the half-precision copy that ``value`` gives a layer.

    Forward hooks run inside Keras' autocast scope, where the public ``value`` of a float32 variable
    is a cast copy. Without it a hook could not look after a variable.
    """
    return variable._value


def child_layers(layer: Any) -> list[Any]:
    """The layers directly inside a layer, in the order in which it got them.

    The public ``layers`` is a model's only: an attention layer's or a wrapper's parts would be
    overlooked.
    """
    return list(layer._flatten_layers(include_self=False, recursive=False))


def producer(tensor: Any) -> tuple[Any, list[Any]]:
    """The operation that made a symbolic tensor, and the tensors it was made from.

    The public ``layer.input`` and ``layer.output`` raise for a layer that is used twice. Without it
    the layers that end in a model's outputs would not be known.
    """
    history = tensor._keras_history
    node = history.operation._inbound_nodes[history.node_index]
    return history.operation, list(node.input_tensors)


def graph_calls(model: Any) -> list[tuple[Any, list[Any], list[Any]]]:
    """Each call of a functional model's graph: the operation, the tensors it takes and gives.

    Nested models are one operation each. The public ``layers`` has no edges. Without it nothing
    would be known of who feeds whom, and no layer found too small to gain.
    """
    calls: dict[tuple[int, int], tuple[Any, list[Any], list[Any]]] = {}
    waiting = list(model.outputs)
    inputs = {id(tensor) for tensor in model.inputs}
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in inputs:
            continue
        history = tensor._keras_history
        if (key := (id(history.operation), history.node_index)) in calls:
            continue
        node = history.operation._inbound_nodes[history.node_index]
        calls[key] = history.operation, list(node.input_tensors), list(node.output_tensors)
        waiting += node.input_tensors
    return list(calls.values())


def put_policy(layer: Any, policy: Any) -> None:
    """Give a layer a policy of its own, where it shared a ``DTypePolicyMap``.

    The public setter then writes into the map, under the layer's path: the user's object changes,
    and another layer of that path with it. Without it a model that was built with a map could not
    be planned.
    """
    if hasattr(layer.dtype_policy, "default_policy"):
        layer._dtype_policy = policy
    else:
        layer.dtype_policy = policy


@contextmanager
def observed_calls(layers: list[Any], see: Callable[[Any, Any, Any], Any]) -> Iterator[None]:
    """Show ``see(layer, inputs, outputs)`` each call of these layers, while the block lasts.

    What ``see`` returns takes the place of the outputs, unless it is None. Operations of a
    functional model (``keras.ops`` between its layers) may be among the layers.

    Sets the attribute ``call`` on the *instances* and takes it off again. Public hooks exist on
    torch alone; a policy's ``convert_input`` is passed over on Keras' fast path. Without it no
    layer would be seen, and nothing measured.
    """

    def observed(layer: Any) -> Callable[..., Any]:
        original = layer.call

        # Keras binds arguments by the signature of ``call``: it must stay the same.
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            outputs = original(*args, **kwargs)
            others = see(layer, (args, kwargs), outputs)
            return outputs if others is None else others

        return call

    replaced = []
    try:
        for layer in layers:
            object.__setattr__(layer, "call", observed(layer))
            replaced.append(layer)
        yield
    finally:
        for layer in replaced:
            object.__delattr__(layer, "call")


@contextmanager
def wrapped_calls(
    layers: list[Any], around: Callable[[Any], AbstractContextManager]
) -> Iterator[None]:
    """Enter ``around(layer)`` for each call of these layers, while the block lasts.

    As ``observed_calls``, for what must be known during a call and not after it.
    """

    def wrapped(layer: Any) -> Callable[..., Any]:
        original = layer.call

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            with around(layer):
                return original(*args, **kwargs)

        return call

    replaced = []
    try:
        for layer in layers:
            object.__setattr__(layer, "call", wrapped(layer))
            replaced.append(layer)
        yield
    finally:
        for layer in replaced:
            object.__delattr__(layer, "call")


def become(layer: Any, made: type) -> None:
    """Make a user's layer an instance of ``made``, a subclass of its class.

    Keras offers no way to put another layer into the graph of a model that exists, let alone a
    subclassed one. What Keras noted of the old class on the instance, the signature of ``call``,
    must be that of the new one. Without it layers of ours would have to be written by hand.
    """
    layer.__class__ = made
    getattr(layer, "on_become", lambda: None)()


def called_with_mask(layer: Any) -> bool:
    """Whether a functional model calls a layer with a mask as an argument.

    Masks that layers hand on are public knowledge; those given by hand are noted in the node alone.
    Without it a sum over masked positions would not be found.
    """
    return any(
        given is not None
        for node in getattr(layer, "_inbound_nodes", ())
        for given in (node.arguments.kwargs.get("mask"), *node.arguments.args[1:2])
    )


def stored_value(variable: Any) -> Any:
    """A variable's tensor in the variable's own dtype, inside a layer's call too.

    There the public ``value`` is a cast copy. Unlike ``raw_tensor`` it respects a stateless scope.
    Without it a cast could not be made from the weight itself.
    """
    from keras.src.backend.common.variables import AutocastScope

    with AutocastScope(None):
        return variable.value


def autocast_dtype() -> str | None:
    """What variables are cast to here, inside a layer's call; None where they are not.

    Without it a layer whose ``call`` is called directly would compute in another dtype than Keras'.
    """
    from keras.src.backend.common.variables import get_autocast_scope

    scope = get_autocast_scope()
    return None if scope is None else scope.dtype


class _Watched:
    """A train function with something around it; whatever else is asked of it, it has."""

    def __init__(self, function: Any, around: Callable[[Any], Any], training: Any):
        self._function = function
        self._call = around(function)
        self._training = training

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_function" not in self.__dict__:  # copying, unpickling
            raise AttributeError(name)
        return getattr(self._function, name)


def watch_train_function(
    model: Any, around: Callable[[Any], Any], training: Any
) -> Callable[[], None]:
    """Put something around the function that ``fit`` calls for each execution.

    Sets ``train_function``, the public attribute, on the user's *instance*; the returned function
    takes it off again, unless somebody has made another since. No hook tells when a batch is asked
    for and when it has come. Without it the wait for input and the tokens would not be known.
    ``training`` is an object of this training alone: what stands there of another one was left
    behind when that was interrupted.
    """
    function = model.train_function
    while isinstance(function, _Watched) and function._training is not training:
        function = function._function
    if function is None:
        return lambda: None
    watched = model.train_function = _Watched(function, around, training)

    def undo() -> None:
        watched._call = function  # where it stands below that of another watcher
        top = model.train_function
        while isinstance(top, _Watched) and top._call is top._function:
            top = model.train_function = top._function

    return undo


def follows_autocast(variable: Any) -> bool:
    """Whether a layer that computes in half precision sees a half-precision copy of a variable.

    ``add_weight(autocast=False)`` says no, and is not public afterwards. Without it BatchNorm's
    statistics, which are safe, could not be told from a state that torch loses.
    """
    return bool(getattr(variable, "_autocast", True))


def around_next_call(model: Any, around: Callable[[Any], Any]) -> Callable[[], None]:
    """Put something around the next call alone of the function that ``fit`` calls.

    As ``watch_train_function``, whatever was put there by others stays: it is the function that is
    called. A callback is never shown a batch; without it nobody could look at the one that is
    trained on.
    """
    function = model.train_function
    if function is None:
        return lambda: None

    def once(*args: Any) -> Any:
        undo()
        return around(function)(*args)

    def undo() -> None:
        if model.train_function is once:
            model.train_function = function

    model.train_function = once
    return undo


def carry_notes(source: Any, tensor: Any) -> Any:
    """Give a tensor made from another what Keras noted beside that one; returns it.

    No public function tells it. The mask of a layer's output is where losses and metrics look for
    it: without it masked positions would count. The logits of a softmax or sigmoid are what Keras'
    cross-entropies compute from on tensorflow: without them a sure and wrong prediction costs
    -log(1e-7) and has no gradient.
    """
    from keras.src import backend

    mask = backend.get_keras_mask(source)
    if mask is not None:
        backend.set_keras_mask(tensor, mask)
    logits = getattr(source, "_keras_logits", None)
    if logits is not None and backend.backend() == "tensorflow":
        if backend.standardize_dtype(logits.dtype) in ("float16", "bfloat16"):
            # One that overflowed is float16's largest: the prediction made of it is finite.
            largest = 65504.0
            logits = backend.numpy.clip(backend.cast(logits, "float32"), -largest, largest)
        tensor._keras_logits = logits
    return tensor


def track_state(layer: Any, variables: list[Any]) -> None:
    """Make variables non-trainable ones of a layer that is built.

    Keras locks a layer's list of variables once it is built, and ``add_weight`` makes new memory.
    Without it the statistics of a torch module would be lost to a skipped step.
    """
    locked = layer._tracker.locked
    layer._tracker.unlock()
    try:
        for variable in variables:
            layer._track_variable(variable)
    finally:
        if locked:
            layer._tracker.lock()
