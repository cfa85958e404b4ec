"""What ``paper.py`` measures of memory: bytes kept for the backward pass, exactly; torch and jax.

float16 on a CPU is computed in float32 by Keras' torch backend, so bfloat16 stands in for it: the
bytes are the same on a device that computes float16 itself.
"""

import keras
import numpy as np
from keras import layers

import keras_mp
from keras_mp.numerics.memory import saved_bytes

HALF = "mixed_bfloat16"
VARIANTS = ("float32", "Keras' policy", "our plan")


def resnet(rng):
    """A residual convnet with batch normalization, 32x32 images."""
    inputs = keras.Input((32, 32, 3))
    h = layers.Conv2D(32, 3, padding="same", use_bias=False)(inputs)
    h = layers.ReLU()(layers.BatchNormalization()(h))
    for filters, stride in ((32, 1), (64, 2), (128, 2)):
        side = layers.Conv2D(filters, 1, strides=stride, use_bias=False)(h)
        h = layers.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False)(h)
        h = layers.ReLU()(layers.BatchNormalization()(h))
        h = layers.Conv2D(filters, 3, padding="same", use_bias=False)(h)
        h = layers.Add()([layers.BatchNormalization()(h), layers.BatchNormalization()(side)])
        h = layers.ReLU()(h)
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(h)))
    return model, rng.normal(size=(16, 32, 32, 3)).astype("float32")


def transformer(rng):
    """Four blocks of width 128, 128 positions."""
    inputs = keras.Input((128,), dtype="int32")
    h = layers.Embedding(1000, 128)(inputs)
    for _ in range(4):
        a = layers.LayerNormalization()(h)
        h = layers.Add()([h, layers.MultiHeadAttention(4, 32)(a, a)])
        a = layers.LayerNormalization()(h)
        h = layers.Add()([h, layers.Dense(128)(layers.Dense(512, "gelu")(a))])
    model = keras.Model(inputs, layers.Dense(1000)(h))
    return model, rng.integers(1000, size=(8, 128)).astype("int32")


def lstm(rng):
    """Two LSTMs on masked text, as word models have them."""
    inputs = keras.Input((64,), dtype="int32")
    h = layers.Embedding(1000, 64, mask_zero=True)(inputs)
    h = layers.LSTM(96)(layers.LSTM(96, return_sequences=True)(h))
    ids = rng.integers(1, 1000, size=(32, 64)).astype("int32")
    ids[::2, 40:] = 0
    return keras.Model(inputs, layers.Dense(10)(h)), ids


def mlp(rng):
    hidden = [layers.Dense(512, "gelu") for _ in range(4)]
    model = keras.Sequential([keras.Input((256,)), *hidden, layers.Dense(10)])
    return model, rng.normal(size=(4096, 256)).astype("float32")


FAMILIES = {"resnet": resnet, "transformer": transformer, "lstm": lstm, "mlp": mlp}


def measure(family, variant):
    """MiB kept for the backward pass, and with weights, gradients and Adam's slots in float32."""
    keras_mp.set_policy(HALF if variant == "Keras' policy" else "float32")
    keras.utils.set_random_seed(0)
    model, batch = FAMILIES[family](np.random.default_rng(0))
    if variant == "our plan":
        keras_mp.plan(model, HALF).apply(model)
    kept = saved_bytes(model, batch).total
    fixed = 16 * sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    return {"kept_MiB": kept / 2**20, "with_state_MiB": (kept + fixed) / 2**20}


def masters():
    """Bytes of the weights and of the masters, against weights in float32 alone."""
    sizes = {}
    for policy, kept in (("float32", False), ("float16", False), ("float16", True)):
        keras_mp.set_policy(policy)
        model = keras.Sequential([keras.Input((64,)), layers.Dense(64), layers.Dense(64)])
        optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(), master_weights=kept)
        optimizer.build(model.trainable_variables)
        # SGD without momentum has no slots: what is left is the scaler's few numbers.
        sizes[policy, kept] = _size(model.trainable_variables) + _size(optimizer.variables)
        sizes["scaler"] = min(sizes.get("scaler", 1e9), _size(optimizer.variables))
    scaler = sizes["scaler"]
    wide = sizes["float32", False] - scaler
    return {"ratio": (sizes["float16", True] - scaler) / wide}


def _size(variables):
    return sum(int(np.prod(v.shape)) * np.dtype(_bits(v.dtype)).itemsize for v in variables)


def _bits(dtype):
    return "float16" if dtype == "bfloat16" else dtype
