"""Keras' layers under Keras' names, right and small in half precision, where no policy can help.

Each is a subclass of Keras' class of that name: the same arguments, the same weights, files that
load into each other. Here are only those that measure better than Keras' own; `replacement` says
which of a model's layers have one, and a plan puts them in.
"""

from keras_mp.layers import heads
from keras_mp.layers.attention import (
    AdditiveAttention,
    Attention,
    GroupQueryAttention,
    MultiHeadAttention,
)
from keras_mp.layers.batch_normalization import BatchNormalization
from keras_mp.layers.foreign import TorchModuleWrapper
from keras_mp.layers.normalizations import (
    GroupNormalization,
    LayerNormalization,
    RMSNormalization,
)
from keras_mp.layers.preprocessing import Normalization, Rescaling
from keras_mp.layers.products import (
    Conv1D,
    Conv1DTranspose,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    Conv3DTranspose,
    Dense,
    DepthwiseConv1D,
    DepthwiseConv2D,
    EinsumDense,
    SeparableConv1D,
    SeparableConv2D,
)
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
    "AdditiveAttention",
    "Attention",
    "BatchNormalization",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "ConvLSTM1D",
    "ConvLSTM2D",
    "ConvLSTM3D",
    "Dense",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "EinsumDense",
    "GroupNormalization",
    "GroupQueryAttention",
    "LayerNormalization",
    "MultiHeadAttention",
    "Normalization",
    "RMSNormalization",
    "Rescaling",
    "SeparableConv1D",
    "SeparableConv2D",
    "SimpleRNN",
    "TorchModuleWrapper",
    "heads",
    "replace_in_place",
    "replacement",
]
