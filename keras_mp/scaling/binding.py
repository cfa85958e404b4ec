"""What a model tells its optimizer: does it need scaling, and what must a skipped step spare?"""

import weakref
from typing import Any

import keras

from keras_mp import _keras_internals


def computes_in_float16(model: Any) -> bool:
    """Whether any trainable layer of a model computes in float16, however that was said.

    Containers of layers (Sequential and Functional models) compute nothing themselves.
    """
    containers = (keras.Sequential, _keras_internals.functional_class(), keras.layers.InputLayer)
    return any(
        layer.trainable
        and getattr(layer, "compute_dtype", None) == "float16"
        and not isinstance(layer, containers)
        for layer in _keras_internals.flatten_layers(model)
    )


def protected_variables(model: Any) -> list[Any]:
    """The own non-trainable variables of a model's trainable layers, such as BatchNorm statistics.

    Not those of frozen layers, which do not change, nor the states of random seeds: the same
    dropout mask need not return.
    """
    found: dict[int, Any] = {}
    for layer in _keras_internals.flatten_layers(model):
        if layer.trainable:
            for variable in _keras_internals.own_state(layer):
                found.setdefault(id(variable), variable)
    return list(found.values())


class Binding:
    """A model that an optimizer trains; held weakly, because the model holds the optimizer."""

    def __init__(self, model: Any):
        if not isinstance(model, keras.Model):
            raise TypeError(
                f"`model` must be a keras.Model. Received: model={model!r} (of type {type(model)})"
            )
        self._model = weakref.ref(model)

    @property
    def model(self) -> Any:
        return self._model()

    def loss_trackers(self) -> list[tuple[Any, Any]]:
        """(total, count) of the running means of the loss that ``compile`` made: the loss' first,
        then each output's; [] without them."""
        model = self.model
        if model is None or not getattr(model, "compiled", False):
            return []
        first = model.metrics[:1]
        if not first or first[0].name != "loss" or not isinstance(first[0], keras.metrics.Mean):
            return []
        means = [first[0], *_keras_internals.output_loss_trackers(model)]
        return [tuple(mean.variables) for mean in means if isinstance(mean, keras.metrics.Mean)]


class BindsAModel:
    """Mixed into LossScaleOptimizer: what a model, or the graph of its loss, tells it."""

    _state: Any
    _kernel: Any
    _binding: Binding | None
    _in_flight: bool  # a loss was scaled, and its gradients have not come back yet
    _bind_later: bool
    built: bool
    config: Any

    def bind(self, model: Any) -> None:
        """Decide by this model's layers, and spare its state on skipped steps.

        The loss is scaled if any trainable layer computes in float16. On a skipped step the own
        non-trainable variables of trainable layers (BatchNorm statistics) stay as they were, and a
        loss that is not finite stays out of the epoch's mean. ``keras_mp.Monitor`` binds the model
        it is given to; binding again is harmless.

        Args:
            model: The ``keras.Model`` that is trained. Held weakly. It may be built later, but
                before the first step.
        """
        if self._binding is not None and self._binding.model is model:
            self.refresh()  # compiled again, perhaps: its loss tracker is another one then
            return
        object.__setattr__(self, "_binding", Binding(model))
        if self._in_flight:
            # Gradients of a loss that was scaled before are on their way here: the scale must stay
            # what it was for them.
            object.__setattr__(self, "_bind_later", True)
        elif self.built:
            self._take_binding()

    def _take_binding(self) -> None:
        model = None if self._binding is None else self._binding.model
        if model is not None and self._kernel.can_bind():
            self._state.switch(computes_in_float16(model))
            self._kernel.bind(self._binding, protected_variables(model))

    def refresh(self) -> None:
        """Take what the bound model's state is now as what a skipped step goes back to.

        On tensorflow, call it after weights were changed from outside between two steps without
        ``keras_mp.Monitor``, which does it at the first batch of an epoch. Elsewhere it is noticed.
        """
        if self._kernel is not None:
            self._kernel.refresh()

    def _first_scale(self) -> float:
        """The scale before the optimizer is built: the one that it will have when it is."""
        model = None if self._binding is None or self._bind_later else self._binding.model
        return self.config.initial_scale if model is None or computes_in_float16(model) else 1.0

    def _saw_graph(self, half: bool | None, distances: dict[int, int]) -> None:
        """What a kernel learnt from the loss' graph.

        Args:
            half: Whether it computes in float16; None where it cannot be told.
            distances: Operations between each variable (by index) and the loss.
        """
        object.__setattr__(self, "_distances", distances)
        if half is not None and self._binding is None:
            self._state.switch(half)
