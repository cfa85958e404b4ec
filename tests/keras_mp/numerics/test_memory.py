"""Bytes kept for the backward pass, against values worked out by hand."""

import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_mp.numerics.memory import saved_bytes

pytestmark = pytest.mark.backend

ROWS, IN, HIDDEN, OUT = 5, 8, 16, 4
X = np.ones((ROWS, IN), "float32")
countable = pytest.mark.skipif(
    keras.backend.backend() == "tensorflow", reason="tensorflow does not tell what it keeps"
)


def mlp():
    return keras.Sequential(
        [
            keras.Input((IN,)),
            keras.layers.Dense(HIDDEN, activation="relu", name="a"),
            keras.layers.Dense(OUT, name="b"),
        ]
    )


def test_it_is_found_by_its_name_alone():
    code = "import keras_mp; print(keras_mp.numerics.memory.saved_bytes.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "saved_bytes"


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="what tensorflow says")
def test_tensorflow_says_that_it_cannot_tell():
    with pytest.raises(NotImplementedError, match="torch or the jax backend"):
        saved_bytes(mlp(), X)


@countable
def test_float32_keeps_the_input_and_what_relu_gave(backend):
    kept = saved_bytes(mlp(), X)
    # Dense `a` keeps its input for its kernel's gradient, relu its result, which is `b`'s input
    # too. jax' relu keeps a mask of one byte a number beside.
    mask = ROWS * HIDDEN if backend == "jax" else 0
    assert kept.total == 4 * ROWS * IN + 4 * ROWS * HIDDEN + mask
    assert kept.by_dtype["float32"] == 4 * ROWS * (IN + HIDDEN)
    assert kept.weight_casts == 0 and kept.activations == kept.total


@countable
def test_half_precision_keeps_half_and_the_cast_of_a_weight(backend):
    keras.config.set_dtype_policy("mixed_bfloat16")
    kept = saved_bytes(mlp(), X)
    mask = ROWS * HIDDEN if backend == "jax" else 0
    # `b` hands the gradient on through its kernel; nobody asks `a` for its input's gradient.
    assert kept.weight_casts == 2 * HIDDEN * OUT
    assert kept.activations == 2 * ROWS * (IN + HIDDEN) + mask
    assert kept.by_dtype["bfloat16"] == 2 * ROWS * (IN + HIDDEN) + 2 * HIDDEN * OUT
    assert kept.total == sum(kept.by_dtype.values()) == sum(kept.by_layer.values())


@countable
def test_a_layer_that_keeps_nothing_adds_nothing(backend):
    model = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten(), mlp_head()])
    plain = keras.Sequential([keras.Input((16,)), mlp_head()])
    x = np.ones((3, 4, 4, 1), "float32")
    assert saved_bytes(model, x).total == saved_bytes(plain, x.reshape(3, 16)).total > 0


def mlp_head():
    return keras.layers.Dense(OUT)


@countable
def test_frozen_layers_keep_no_input_for_their_weights(backend):
    model = mlp()
    model.get_layer("a").trainable = False
    # Only `b`'s kernel wants a gradient: for it the input of `b`.
    assert saved_bytes(model, X).total == 4 * ROWS * HIDDEN


def test_it_is_exact_again_and_leaves_the_model_as_it_was(backend):
    if backend == "tensorflow":
        pytest.skip("tensorflow does not tell what it keeps")
    inputs = keras.Input(batch_shape=(ROWS, 6, IN))
    x = keras.layers.LSTM(3, stateful=True, return_sequences=True)(inputs)
    x = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(x))
    model = keras.Model(inputs, keras.layers.Dense(2)(x))
    data = np.random.default_rng(0).normal(size=(ROWS, 6, IN)).astype("float32")
    states = model.layers[1].states
    before = [keras.ops.convert_to_numpy(v).copy() for v in (*model.variables, *states)]
    first, second = saved_bytes(model, data), saved_bytes(model, data)
    assert first == second and first.total > 0
    for variable, old in zip((*model.variables, *states), before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), old)
    assert "call" not in vars(model.layers[1])  # nothing of ours is left on the layers


@countable
def test_inference_keeps_less_than_training(backend):
    model = keras.Sequential([keras.Input((IN,)), keras.layers.Dropout(0.5), mlp_head()])
    trained, told = saved_bytes(model, X), saved_bytes(model, X, training=False)
    # Inference keeps the dense layer's input; training what came through the dropout. Only where
    # the dropout's own input wants a gradient would its mask be kept.
    assert told.total == 4 * ROWS * IN
    assert trained.total >= told.total


@countable
def test_nested_shared_and_subclassed_models_are_told_by_layer(backend):
    shared = keras.layers.Dense(IN, activation="relu", name="shared")

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = keras.Sequential([keras.Input((IN,)), shared], name="inner")
            self.head = keras.layers.Dense(OUT, name="head")

        def call(self, x):
            return self.head(self.inner(self.inner(x)))

    net = Net()
    kept = saved_bytes(net, X)  # not built before: the batch builds it
    numbers = 3 * ROWS * IN  # the input, and what each of two calls of the shared layer gave
    assert kept.by_dtype["float32"] == 4 * numbers
    assert set(kept.by_layer) <= {"", "inner/shared", "head"}
    assert kept.by_layer["inner/shared"] >= 4 * 2 * ROWS * IN


@countable
def test_several_inputs_by_name(backend):
    a, b = keras.Input((IN,), name="p"), keras.Input((IN,), name="q")
    model = keras.Model({"p": a, "q": b}, keras.layers.Multiply()([mlp_head()(a), mlp_head()(b)]))
    kept = saved_bytes(model, {"p": X, "q": 2 * X})
    # Each dense layer its input, the product both factors.
    assert kept.total == 4 * ROWS * 2 * (IN + OUT)


@countable
def test_a_block_that_many_keep_counts_once(backend):
    inputs = keras.Input((IN,))
    model = keras.Model(inputs, [mlp_head()(inputs), mlp_head()(inputs), mlp_head()(inputs)])
    assert saved_bytes(model, X).total == 4 * ROWS * IN


@countable
def test_a_copy_of_a_weight_in_another_order_is_told_apart(backend):
    class Turned(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(OUT, shape[-1]), name="kernel")

        def call(self, x):
            turned = keras.ops.transpose(
                keras.ops.reshape(self.kernel, (2, OUT // 2, -1)), (1, 0, 2)
            )
            turned = keras.ops.reshape(turned, (OUT, -1))
            return keras.ops.matmul(x * 2.0, keras.ops.transpose(turned))

    model = keras.Sequential([keras.Input((IN,)), keras.layers.Dense(IN), Turned()])
    kept = saved_bytes(model, X)
    assert kept.weight_casts == 4 * OUT * IN
    assert kept.activations == 4 * ROWS * 2 * IN  # the input and the doubled value


def test_the_text_says_what_it_is(backend):
    if backend == "tensorflow":
        pytest.skip("tensorflow does not tell what it keeps")
    text = str(saved_bytes(mlp(), X))
    assert "bytes kept for the backward pass" in text and "float32" in text
