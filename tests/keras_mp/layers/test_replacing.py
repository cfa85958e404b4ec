"""Layers of ours in the place of Keras' own, in models that exist."""

import keras
import numpy as np
import pytest

import keras_mp
from keras_mp import _keras_internals as internals

pytestmark = pytest.mark.backend

X = np.random.default_rng(0).normal(2.0, 3.0, (6, 8, 8, 3)).astype("float32")


def replace_all(model):
    replaced = 0
    for layer in internals.flatten_layers(model):
        if keras_mp.layers.replacement(layer) is not None:
            keras_mp.layers.replace_in_place(layer)
            replaced += 1
    return replaced


def functional():
    """Nested, with a layer that is used twice."""
    shared = keras.layers.BatchNormalization()
    inner_in = keras.Input((8, 8, 3))
    inner = keras.Model(inner_in, shared(keras.layers.Conv2D(3, 3, padding="same")(inner_in)))
    inputs = keras.Input((8, 8, 3))
    x = shared(inner(inputs))
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(x)))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [functional(), keras.layers.BatchNormalization()]

    def call(self, x, training=False):
        for block in self.blocks:
            x = block(x, training=training)
        return x


def sequential():
    layers = [keras.Input((8, 8, 3)), keras.layers.BatchNormalization(), keras.layers.Flatten()]
    return keras.Sequential([*layers, keras.layers.Dense(2)])


@pytest.mark.parametrize("make", [functional, Subclassed, sequential])
def test_a_model_computes_and_trains_on_as_before(make, tmp_path):
    model, twin = make(), make()
    model(X), twin(X)
    twin.set_weights(model.get_weights())
    before = list(internals.flatten_layers(model))
    variables = list(model.variables)
    assert replace_all(model) >= 1
    after = internals.flatten_layers(model)
    assert all(a is b for a, b in zip(before, after, strict=True))
    assert all(a is b for a, b in zip(variables, model.variables, strict=True))
    for one in (model, twin):
        one.compile(keras.optimizers.SGD(0.01), "mse")
        one.fit(X, np.ones((6, 2)), batch_size=6, epochs=2, verbose=0)
    for a, b in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    model.save_weights(tmp_path / "m.weights.h5")
    twin.load_weights(tmp_path / "m.weights.h5")
    for a, b in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_users_own_class_is_left_alone():
    class Mine(keras.layers.BatchNormalization):
        pass

    layer = Mine()
    layer.build((2, 3))
    assert keras_mp.layers.replacement(layer) is None
    with pytest.raises(ValueError, match=r"No class of keras_mp\.layers.*Received: layer="):
        keras_mp.layers.replace_in_place(layer)


def test_what_is_ours_already_needs_no_replacement():
    layer = keras_mp.layers.BatchNormalization()
    layer.build((2, 3))
    assert keras_mp.layers.replacement(layer) is None


def test_every_replacement_is_a_subclass_of_keras_class_of_the_same_name():
    names = [name for name in keras_mp.layers.__all__ if name[0].isupper()]
    assert "BatchNormalization" in names
    for name in names:
        ours, theirs = getattr(keras_mp.layers, name), getattr(keras.layers, name)
        assert issubclass(ours, theirs) and ours.__name__ == theirs.__name__
