"""A model in another precision: what is kept, what is not, and the way back."""

import os

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_mp
from keras_mp.cli import main

pytestmark = pytest.mark.backend
X = np.random.default_rng(0).normal(size=(16, 8)).astype("float32")
Y = np.random.default_rng(1).normal(size=(16, 1)).astype("float32")


def numbers(tensor):
    return np.asarray(ops.convert_to_numpy(ops.cast(tensor, "float32")))


class Scale(layers.Layer):
    """A layer of the user's, not registered with Keras."""

    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, inputs):
        return inputs * self.factor


class Net(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.body = layers.Dense(32, "relu")
        self.end = layers.Dense(1)

    def call(self, inputs):
        return self.end(self.body(inputs))

    def get_config(self):
        return {"name": self.name}


def nested():
    inputs = keras.Input((8,))
    shared = layers.Dense(32, "relu", name="shared")
    inner = keras.Sequential([keras.Input((32,)), layers.Dense(8), Scale()], name="inner")
    end = layers.Dense(1, name="end")(shared(inner(shared(inputs))))
    return keras.Model(inputs, end)


def subclassed():
    model = Net()
    model(X)
    return model


def convolutional():
    """In the way of Keras Applications: convolutions, batch norms, a residual, pooling, a head."""
    inputs = keras.Input((8, 8, 3))
    first = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(inputs)))
    second = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(first))
    pooled = layers.GlobalAveragePooling2D()(layers.Add()([first, second]))
    return keras.Model(inputs, layers.Dense(4, "softmax")(pooled))


def recurrent():
    """Its initializers have no half precision; its Lambda is code."""
    inputs = keras.Input((4, 4))
    states = layers.Bidirectional(layers.GRU(8, return_sequences=True))(
        layers.LSTM(8)(inputs)[:, None]
    )
    last = layers.Lambda(lambda x: 2.0 * x, output_shape=(1, 16))(states)
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(last)))


@keras.saving.register_keras_serializable("test_convert")
class Looks(keras.Model):
    """Its end is attention in float32, whose weights a half-size file has in half precision."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.body, self.end = layers.Dense(16), layers.MultiHeadAttention(2, 4)

    def call(self, inputs):
        tokens = self.body(inputs)
        return self.end(tokens, tokens)


def attending():
    model = Looks()
    model(np.ones((1, 4, 4), "float32"))
    return model


MODELS = {
    "nested": (nested, X),
    "subclassed": (subclassed, X),
    "convolutional": (convolutional, np.ones((2, 8, 8, 3), "float32")),
    "recurrent": (recurrent, np.ones((2, 4, 4), "float32")),
    "attending": (attending, np.ones((2, 4, 4), "float32")),
}


@pytest.mark.parametrize(("build", "data"), MODELS.values(), ids=MODELS)
class TestModels:
    def test_the_copy_is_mixed_and_the_original_as_it_was(self, build, data):
        model = build()
        before = numbers(model(data))
        mixed = keras_mp.convert(model, "mixed_bfloat16")
        assert np.array_equal(numbers(model(data)), before)
        after = numbers(mixed(data))
        assert after == pytest.approx(before, abs=0.05)
        assert not np.array_equal(after, before)
        assert all(
            np.array_equal(a, b)
            for a, b in zip(mixed.get_weights(), model.get_weights(), strict=True)
        )

    def test_back_to_float32_bit_for_bit(self, build, data):
        model = build()
        back = keras_mp.convert(keras_mp.convert(model, "mixed_float16"), "float32")
        assert np.array_equal(numbers(back(data)), numbers(model(data)))

    def test_half_the_size(self, build, data, tmp_path):
        model = build()
        halved = keras_mp.convert(model, "mixed_float16", half=True)
        by_dtype = {}
        for variable in halved.weights:
            kind = keras.backend.standardize_dtype(variable.dtype)
            by_dtype[kind] = by_dtype.get(kind, 0) + int(np.prod(variable.shape))
        assert by_dtype["float16"] > 0.5 * model.count_params()
        assert numbers(halved(data)) == pytest.approx(numbers(model(data)), abs=0.05)
        keras_mp.save_model(halved, tmp_path / "half.keras")
        again = keras_mp.load_model(
            tmp_path / "half.keras",
            custom_objects={"Scale": Scale, "Net": Net},
            safe_mode=False,
        )
        assert np.array_equal(numbers(again(data)), numbers(halved(data)))
        assert [v.dtype for v in again.weights] == [v.dtype for v in halved.weights]
        assert keras.config.dtype_policy().name == "float32"


def test_the_optimizers_state_is_kept_and_training_goes_on():
    model = nested()
    model.compile(keras_mp.LossScaleOptimizer("adam"), "mse")
    model.fit(X, Y, epochs=3, verbose=0)
    mixed = keras_mp.convert(model, "mixed_bfloat16")
    assert int(ops.convert_to_numpy(mixed.optimizer.iterations)) == 3
    kept, original = (m.optimizer.inner_optimizer.variables for m in (mixed, model))
    assert len(kept) > 10
    assert all(np.array_equal(numbers(a), numbers(b)) for a, b in zip(kept, original, strict=True))
    losses = mixed.fit(X, Y, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert int(ops.convert_to_numpy(model.optimizer.iterations)) == 3


def test_a_plan_of_ones_own():
    model = nested()
    planned = keras_mp.plan(model, "mixed_float16", rules={"shared": "float32"})
    mixed = keras_mp.convert(model, planned)
    assert mixed.get_layer("shared").compute_dtype == "float32"
    assert mixed.get_layer("inner").layers[0].compute_dtype == "float16"


@pytest.mark.filterwarnings("ignore:Model .* had a build config", "ignore:Layer .* looks like it")
@pytest.mark.filterwarnings("ignore:A total of 1 objects could not be loaded")
def test_a_copy_that_keras_cannot_build_is_a_sentence():
    """It calls a copy with float32 numbers of the first input's shape."""

    class Picks(keras.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.body, self.end = layers.Dense(4, name="body"), layers.Dense(1, name="end")

        def call(self, ids):
            if not keras.backend.is_int_dtype(ids.dtype):
                raise TypeError("ids are integers")
            return self.end(self.body(ops.one_hot(ids, 8)))

        def get_config(self):
            return {"name": self.name}

    model = Picks()
    model(np.array([1, 2]))
    with pytest.raises(ValueError, match=r"could not build.*`build\(input_shape\)`.*body, end not"):
        keras_mp.convert(model, "mixed_bfloat16")


def test_half_needs_half_precision():
    with pytest.raises(ValueError, match="half=True with policy='float32'"):
        keras_mp.convert(nested(), "float32", half=True)


def test_a_model_that_keras_cannot_copy_is_a_sentence():
    class Opaque(keras.Model):
        def __init__(self, size):
            super().__init__()
            self.end = layers.Dense(size)

        def call(self, inputs):
            return self.end(inputs)

        def get_config(self):
            raise NotImplementedError("mine")

    model = Opaque(1)
    model(X)
    with pytest.raises(ValueError, match=r"Keras cannot write and read.*plan\.apply"):
        keras_mp.convert(model, "mixed_float16")


class TestCommand:
    @pytest.fixture
    def saved(self, tmp_path):
        model = keras.Sequential(
            [
                keras.Input((64,)),
                layers.Dense(256, "relu", name="body"),
                layers.Dense(1, name="end"),
            ]
        )
        model.compile("adam", "mse")
        model.train_on_batch(np.ones((2, 64)), np.ones((2, 1)))
        model.save(tmp_path / "in.keras")
        return tmp_path / "in.keras"

    def test_there_and_back(self, saved, tmp_path, capsys):
        out, back = tmp_path / "out.keras", tmp_path / "back.keras"
        assert main(["convert", str(saved), str(out), "--policy", "bf16"]) == 0
        assert "mixed_bfloat16, 1 of 3 layers in float32" in capsys.readouterr().out
        assert keras_mp.load_model(out).get_layer("body").compute_dtype == "bfloat16"
        assert main(["convert", str(out), str(back), "--policy", "float32"]) == 0
        data = np.ones((2, 64), "float32")
        first, last = keras_mp.load_model(saved), keras_mp.load_model(back)
        assert np.array_equal(numbers(first(data)), numbers(last(data)))

    def test_half(self, saved, tmp_path):
        plain, half = tmp_path / "plain.keras", tmp_path / "half.keras"
        keras.saving.load_model(saved, compile=False).save(plain)
        command = ["convert", str(saved), str(half), "--policy", "mixed_float16", "--half"]
        assert main(command) == 0
        loaded = keras_mp.load_model(half)
        assert loaded.get_layer("body").kernel.dtype == "float16"
        assert loaded.get_layer("end").kernel.dtype == "float32"
        saved_bytes = os.path.getsize(plain) - os.path.getsize(half)
        assert saved_bytes > 0.4 * 4 * loaded.count_params()

    def test_bad_input_is_a_sentence(self, saved, tmp_path, capsys):
        assert main(["convert", str(saved), str(tmp_path / "x.h5"), "--policy", "fp16"]) == 2
        assert "ends in .keras" in capsys.readouterr().err
        assert main(["convert", str(saved), str(tmp_path / "x.keras"), "--policy", "half"]) == 2
        assert "no policy of that name" in capsys.readouterr().err
        missing = str(tmp_path / "no/folder/x.keras")
        assert main(["convert", str(saved), missing, "--policy", "fp16"]) == 2
        assert "keras-mp convert: " in capsys.readouterr().err
