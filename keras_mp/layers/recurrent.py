"""Recurrent layers that cast each weight once a call and sum its gradient in float32.

On torch, Keras casts every weight again at each step where it has a mask, recurrent dropout,
``use_cudnn=False``, ``reset_after=False``, a ``SimpleRNN`` or a cell of one's own, and keeps all of
the casts; elsewhere it casts once, and sums the gradients of the steps in half precision. Here, in
half precision on torch:

- each weight is cast once, at any length, and the cast is not kept for the backward pass;
- the steps' gradients are summed in float32;
- a mask takes no memory to speak of.

It is the layer that does so, for any cell: Keras' own, stacked ones, and a user's. Where cuDNN does
the work, on other backends, and in float32, they compute as Keras does.
"""

from typing import Any

import keras

from keras_mp._precision import HALF
from keras_mp.layers.registering import registered


class _CastOnce:
    """The part that is ours, mixed into a Keras RNN class."""

    def inner_loop(
        self, sequences: Any, initial_state: Any, mask: Any, training: bool = False
    ) -> Any:
        only = mask[0] if isinstance(mask, (list, tuple)) else mask
        layer: Any = self
        if keras.backend.backend() == "jax" and layer.cell.compute_dtype in HALF:
            from keras_mp.layers.casting_jax import copies_not_kept

            keras_own = super().inner_loop  # type: ignore[misc]

            def computed(sequences: Any, initial_state: Any) -> Any:
                return keras_own(sequences, initial_state, mask, training=training)

            return copies_not_kept(self, computed, sequences, initial_state)
        if keras.backend.backend() == "torch" and not self._left_to_cudnn(sequences, only):
            from keras_mp.layers.recurrent_torch import loop

            states = initial_state if isinstance(initial_state, (list, tuple)) else [initial_state]
            found = loop(self, sequences, states, only, training)
            if found is not None:
                return found
        # What mixes this in stands before a Keras RNN class.
        return super().inner_loop(  # type: ignore[misc]
            sequences, initial_state, mask, training=training
        )

    def _left_to_cudnn(self, sequences: Any, mask: Any) -> bool:
        """Whether Keras would run the whole sequence in one cuDNN kernel, or says that it cannot.

        Keras' conditions on torch, by the layer's public attributes.
        """
        wanted = getattr(self, "use_cudnn", False)
        if wanted is True:
            return True
        layer: Any = self
        return (
            wanted == "auto"
            and sequences.device.type == "cuda"
            and mask is None
            and not layer.unroll
            and not layer.recurrent_dropout
            and layer.use_bias
            and getattr(layer.activation, "__name__", "") == "tanh"
            and getattr(layer.recurrent_activation, "__name__", "") == "sigmoid"
            and getattr(layer, "reset_after", True)
        )


@registered
class RNN(_CastOnce, keras.layers.RNN):
    """Keras' RNN around any cell, with each weight of the cell cast once a call on torch."""


@registered
class SimpleRNN(_CastOnce, keras.layers.SimpleRNN):
    """Keras' SimpleRNN with each weight cast once a call on torch."""


@registered
class LSTM(_CastOnce, keras.layers.LSTM):
    """Keras' LSTM with each weight cast once a call on torch."""


@registered
class GRU(_CastOnce, keras.layers.GRU):
    """Keras' GRU with each weight cast once a call on torch."""


@registered
class ConvLSTM1D(_CastOnce, keras.layers.ConvLSTM1D):
    """Keras' ConvLSTM1D with each weight cast once a call on torch."""


@registered
class ConvLSTM2D(_CastOnce, keras.layers.ConvLSTM2D):
    """Keras' ConvLSTM2D with each weight cast once a call on torch."""


@registered
class ConvLSTM3D(_CastOnce, keras.layers.ConvLSTM3D):
    """Keras' ConvLSTM3D with each weight cast once a call on torch."""
