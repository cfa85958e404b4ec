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
