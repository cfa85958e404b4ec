"""Which of a model's layers one of ours does better, and how it takes the layer's place."""

from collections.abc import Callable
from typing import Any

import keras

from keras_mp import _keras_internals
from keras_mp.layers import attention, normalizations, preprocessing, products, recurrent
from keras_mp.layers.batch_normalization import BatchNormalization
from keras_mp.layers.foreign import TorchModuleWrapper

# Keras' class -> ours, and for which layers of that class it measures better.
_Condition = Callable[[Any], bool]
_BETTER: dict[type, tuple[type, _Condition]] = {
    keras.layers.BatchNormalization: (
        BatchNormalization,
        lambda layer: not layer.renorm and not layer.synchronized,
    ),
    keras.layers.TorchModuleWrapper: (TorchModuleWrapper, lambda layer: True),
    keras.layers.LayerNormalization: (
        normalizations.LayerNormalization,
        lambda layer: not layer.rms_scaling,
    ),
    keras.layers.RMSNormalization: (normalizations.RMSNormalization, lambda layer: True),
    keras.layers.GroupNormalization: (normalizations.GroupNormalization, lambda layer: True),
    keras.layers.Attention: (attention.Attention, lambda layer: True),
    keras.layers.AdditiveAttention: (attention.AdditiveAttention, lambda layer: True),
    keras.layers.Normalization: (preprocessing.Normalization, lambda layer: True),
    keras.layers.Rescaling: (preprocessing.Rescaling, lambda layer: True),
    # On tensorflow products and recurrent layers of ours are Keras' own.
    **{
        getattr(keras.layers, name): (getattr(products, name), lambda layer: not _on_tensorflow())
        for name in products.NAMES
    },
    **{
        getattr(keras.layers, name): (getattr(recurrent, name), lambda layer: not _on_tensorflow())
        for name in ("RNN", "SimpleRNN", "LSTM", "GRU", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D")
    },
}


def _on_tensorflow() -> bool:
    return keras.backend.backend() == "tensorflow"


def replacement(layer: Any) -> type | None:
    """The class of ours that does better than this layer's own under a half-precision policy.

    Args:
        layer: A built layer.

    Returns:
        A subclass of the layer's class, of the same name, arguments and weights; None where Keras'
        own does as well, and for a class that is not Keras' own: its code cannot be known.
    """
    found = _BETTER.get(type(layer))
    if found is None or not found[1](layer):
        return None
    return found[0]


def replace_in_place(layer: Any) -> Any:
    """Make a layer the ``replacement`` of its own class. It stays the same object.

    So it works wherever the layer stands: in nested and subclassed models, and where it is shared.
    Its name, weights, policy and place in the graph are as they were. Functions that Keras compiled
    before still compute as before: compile the model again.

    Args:
        layer: A built layer.

    Returns:
        The layer.

    Raises:
        ValueError: There is no replacement for it.
    """
    made = replacement(layer)
    if made is None:
        raise ValueError(
            "No class of keras_mp.layers does better than this layer's own. Expected a built layer "
            f"for which `replacement` gives a class. Received: layer={layer!r}"
        )
    _keras_internals.become(layer, made)
    return layer
