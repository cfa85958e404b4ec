"""The op categories of the 2018 paper, and which Keras layers fall in which. Data; no backend.

Micikevicius et al., "Mixed Precision Training" (ICLR 2018), section 3.3: vector dot products in
half precision with float32 accumulation; large reductions (sums over a vector: statistics of
normalisations, softmax) in float32; pointwise operations in either, as memory bounds them.
To these come layers that the paper has no word for: those that take raw input data, those that only
hold other layers, and those that run another framework's code.
"""

from typing import Literal

Category = Literal["product", "reduction", "pointwise", "input", "container", "foreign", "custom"]

_NAMES: dict[Category, str] = {
    "product": """
        Dense EinsumDense BaseConv BaseConvTranspose BaseDepthwiseConv BaseSeparableConv
        MultiHeadAttention GroupedQueryAttention Attention Dot
        RNN LSTMCell GRUCell SimpleRNNCell ConvLSTMCell StackedRNNCells
    """,
    "reduction": """
        BatchNormalization GroupNormalization LayerNormalization RMSNormalization UnitNormalization
        Softmax ActivityRegularization
        BaseAdaptiveAveragePooling
        GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
        AveragePooling1D AveragePooling2D AveragePooling3D
    """,
    "pointwise": """
        Activation ELU LeakyReLU PReLU ReLU Embedding Identity Lambda Masking
        Merge AlphaDropout Dropout GaussianDropout GaussianNoise
        Cropping1D Cropping2D Cropping3D Flatten Permute RepeatVector Reshape
        UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
        BaseAdaptiveMaxPooling GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D
        MaxPooling1D MaxPooling2D MaxPooling3D
    """,
    "input": """
        DataLayer IndexLookup TextVectorization Hashing HashedCrossing STFTSpectrogram
    """,
    "container": "InputLayer Wrapper Bidirectional Pipeline Model",
    "foreign": "TorchModuleWrapper JaxLayer TFSMLayer",
}
# The name of a Keras class -> its category. Subclasses inherit the nearest one's.
CATEGORIES: dict[str, Category] = {
    name: category for category, names in _NAMES.items() for name in names.split()
}

# Reductions that Keras 3.15 or its backends compute in float32 whatever the policy: they lose
# nothing in a half policy but the rounding of their output. Measured on torch, tensorflow and jax;
# a test repeats it.
FLOAT32_INSIDE = frozenset(
    {
        "BatchNormalization",
        "GroupNormalization",
        "LayerNormalization",
        "RMSNormalization",
        "Softmax",
        "BaseAdaptiveAveragePooling",
        "GlobalAveragePooling2D",
        "GlobalAveragePooling3D",
    }
)


def keras_names(layer_class: type) -> list[str]:
    """The names of Keras' own classes that a layer is, the nearest first.

    A user's class is not taken for Keras' one of the same name, nor is what a backend mixes into
    every layer (jax' is called JaxLayer, as the layer that runs jax code is).
    """
    return [
        c.__name__
        for c in layer_class.__mro__
        if c.__module__.startswith("keras.") and not c.__module__.startswith("keras.src.backend.")
    ]


def category_of(layer_class: type) -> Category:
    """The category of a layer's class: its own, or that of the nearest Keras class above it.

    "custom" for a layer that inherits from nothing but Keras' base class: what it computes is not
    known.
    """
    for name in keras_names(layer_class):
        if name in CATEGORIES:
            return CATEGORIES[name]
    return "custom"


def is_a(layer: object, *names: str) -> bool:
    """Whether a layer is of one of Keras' classes, by name."""
    return not set(keras_names(type(layer))).isdisjoint(names)
