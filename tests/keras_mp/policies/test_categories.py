"""Every layer of Keras has a category, and the float32 ones are float32 where we say so."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_mp.policies.categories import CATEGORIES, FLOAT32_INSIDE, category_of

pytestmark = pytest.mark.backend

ALL = sorted(
    {
        value
        for value in vars(layers).values()
        if isinstance(value, type) and issubclass(value, layers.Layer)
    },
    key=lambda value: value.__name__,
)


@pytest.mark.parametrize("layer_class", ALL, ids=lambda value: value.__name__)
def test_every_layer_of_keras_has_a_category(layer_class):
    """Fails when Keras adds a layer that inherits none: then say which it is."""
    if layer_class is layers.Layer:
        assert category_of(layer_class) == "custom"
    else:
        assert category_of(layer_class) in set(CATEGORIES.values())


@pytest.mark.parametrize(
    ("layer_class", "category"),
    [
        (layers.Conv3DTranspose, "product"),
        (layers.DepthwiseConv1D, "product"),
        (layers.AdditiveAttention, "product"),
        (layers.ConvLSTM2D, "product"),
        (layers.LSTM, "product"),
        (layers.RMSNormalization, "reduction"),
        (layers.GlobalAveragePooling1D, "reduction"),
        (layers.GlobalMaxPooling1D, "pointwise"),
        (layers.Concatenate, "pointwise"),
        (layers.SpatialDropout2D, "pointwise"),
        (layers.RandomHue, "input"),
        (layers.Normalization, "input"),
        (layers.SpectralNormalization, "container"),
        (keras.Sequential, "container"),
        (layers.TorchModuleWrapper, "foreign"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_category_is_the_nearest_ancestors(layer_class, category):
    assert category_of(layer_class) == category


def test_a_users_layer_inherits_keras_rule_and_not_its_name():
    class MyDense(layers.Dense):
        pass

    class Dense(layers.Layer):
        pass

    assert category_of(MyDense) == "product"
    assert category_of(Dense) == "custom"


# Inputs whose plain float16 statistics would overflow or vanish.
LOUD = np.random.default_rng(0).uniform(200, 400, (2, 32, 32, 8)).astype("float32")
MAKE = {
    "BatchNormalization": layers.BatchNormalization,
    "GroupNormalization": lambda: layers.GroupNormalization(4),
    "LayerNormalization": lambda: layers.LayerNormalization(epsilon=1e-12),
    "RMSNormalization": layers.RMSNormalization,
    "Softmax": layers.Softmax,
    "BaseAdaptiveAveragePooling": lambda: layers.AdaptiveAveragePooling2D(2),
    "GlobalAveragePooling2D": layers.GlobalAveragePooling2D,
    "GlobalAveragePooling3D": lambda: layers.GlobalAveragePooling3D(),
}


@pytest.mark.parametrize("name", sorted(FLOAT32_INSIDE))
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_what_keras_computes_in_float32_inside_loses_only_the_rounding(name, half):
    inputs = LOUD[:, None] if name.endswith("3D") else LOUD
    inputs = np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(inputs, half)), "float32")

    def output(policy):
        keras.config.set_dtype_policy(policy)
        kwargs = {"training": True} if name == "BatchNormalization" else {}
        result = MAKE[name]()(keras.ops.convert_to_tensor(inputs), **kwargs)
        return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(result, "float32")))

    exact, mixed = output("float32"), output(f"mixed_{half}")
    ulp = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[half]
    assert np.abs(mixed - exact).max() <= 2 * ulp * np.abs(exact).max()


def test_a_reduction_that_keras_does_in_float16_is_not_on_that_list():
    """The other sign: unit normalisation squares in float16, and 300 squared is too much."""
    assert "UnitNormalization" not in FLOAT32_INSIDE
    keras.config.set_dtype_policy("mixed_float16")
    result = layers.UnitNormalization()(keras.ops.full((1, 4), 300.0))
    assert float(keras.ops.convert_to_numpy(result)[0, 0]) != pytest.approx(0.5, abs=0.1)
