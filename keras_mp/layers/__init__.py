"""Keras' layers under Keras' names, right and small in half precision, where no policy can help.

Each is a subclass of Keras' class of that name: the same arguments, the same weights, files that
load into each other. Here are only those that measure better than Keras' own; `replacement` says
which of a model's layers have one, and a plan puts them in.
"""

from keras_mp.layers.batch_normalization import BatchNormalization
from keras_mp.layers.dense import Dense
from keras_mp.layers.recurrent import (
    GRU,
    LSTM,
    RNN,
    ConvLSTM1D,
    ConvLSTM2D,
    ConvLSTM3D,
    SimpleRNN,
)
from keras_mp.layers.replacing import replace_in_place, replacement

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BatchNormalization",
    "ConvLSTM1D",
    "ConvLSTM2D",
    "ConvLSTM3D",
    "Dense",
    "SimpleRNN",
    "replace_in_place",
    "replacement",
]
