"""A probe of real models: right shares, nothing missed, nothing of the model changed."""

import math
import os
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import keras_mp
from keras_mp.numerics.histogram import exponent_histogram

pytestmark = pytest.mark.backend
# jax compiles each pass: seconds a test.
slow_on_jax = pytest.mark.slow if os.environ.get("KERAS_BACKEND") == "jax" else lambda test: test


@pytest.fixture
def keras():
    import keras

    return keras


def data(rows=32, features=16, targets=4):
    rng = np.random.default_rng(0)
    return (
        rng.normal(size=(rows, features)).astype("float32"),
        rng.normal(size=(rows, targets)).astype("float32"),
    )


def values(variables):
    import keras

    return [np.asarray(keras.ops.convert_to_numpy(v.value)).copy() for v in variables]


def linear_model(keras, policy, gradients, relu_bias=None):
    """A model whose loss gradient with respect to its Dense output is ``gradients``, as given.

    The loss is sum(y_pred * y): its gradient with respect to y_pred is y, whatever the weights.
    """
    keras.config.set_dtype_policy(policy)
    width = gradients.shape[1]
    layers = [keras.Input((8,)), keras.layers.Dense(width, name="head")]
    if relu_bias is not None:
        layers[1:1] = [
            keras.layers.Dense(
                24, "relu", bias_initializer=keras.initializers.Constant(relu_bias), name="dead"
            )
        ]
    model = keras.Sequential(layers)

    def loss(y, y_pred):
        return keras.ops.sum(keras.ops.cast(y_pred, "float32") * y)

    x = np.random.default_rng(1).normal(size=(len(gradients), 8)).astype("float32")
    return model, loss, x


def known_gradients(lost=300, kept=600, zero=100):
    rng = np.random.default_rng(2)
    values = np.concatenate(
        [
            np.exp2(rng.uniform(-40, -25.01, lost)) * rng.choice([-1, 1], lost),
            np.exp2(rng.uniform(-24.4, -5, kept)) * rng.choice([-1, 1], kept),
            np.zeros(zero),
        ]
    )
    return rng.permutation(values).astype("float32").reshape(50, -1)


@slow_on_jax
def test_a_known_share_of_synthetic_gradients_underflows(keras):
    y = known_gradients()
    model, loss, x = linear_model(keras, "mixed_float16", y)
    found = keras_mp.probe(model, (x, y), loss=loss)
    row = found.get("head")
    assert row.histogram == exponent_histogram(y)  # float32 sees the very gradients
    assert row.underflow == pytest.approx(0.3, abs=1e-9)  # what the model's own pass really lost
    told = row.shares()
    assert (told.zero, told.lost) == (0.1, 0.3)
    # Scaled by 2**16 none is lost; a zero that float32 has too never counts.
    scaled = keras_mp.probe(model, (x, y), loss=loss, scale=2.0**16)
    assert scaled.get("head").underflow == 0.0
    assert scaled.get("head").shares().zero == 0.1
    assert scaled.get("head").histogram == row.histogram  # gradients are told unscaled
    assert found.at(2.0**16).get("head").shares().lost == scaled.get("head").shares().lost == 0.0


@slow_on_jax
def test_a_dead_relu_is_no_underflow(keras):
    """All gradients behind dead units are zero, and none of them was lost."""
    y = np.full((50, 20), 2.0**-6, "float32")
    model, loss, x = linear_model(keras, "mixed_float16", y, relu_bias=-1e4)
    found = keras_mp.probe(model, (x, y), loss=loss)
    kernel = next(r for r in found.of("weight_gradient") if r.layer == "dead" and
                  r.name.endswith("kernel"))  # fmt: skip
    assert kernel.histogram.zeros == kernel.histogram.total > 0 and kernel.underflow == 0.0
    assert found.underflow == 0.0 and found.lost == 0.0
    # The same units alive, with gradients that float16 cannot hold: all of them are lost.
    tiny = np.full((50, 20), 2.0**-30, "float32")
    model, loss, x = linear_model(keras, "mixed_float16", tiny, relu_bias=1.0)
    found = keras_mp.probe(model, (x, tiny), loss=loss)
    assert found.underflow == 1.0
    kernel = next(r for r in found.of("weight_gradient") if r.layer == "dead")
    assert kernel.underflow == pytest.approx(1.0 - kernel.shares().zero)


@slow_on_jax
def test_prediction_from_float32_agrees_with_the_own_pass(keras):
    """The float32 histogram of a float32 model says what float16 will lose."""
    y = known_gradients(lost=450, kept=450)
    model, loss, x = linear_model(keras, "float32", y)
    found = keras_mp.probe(model, (x, y), loss=loss)
    assert found.get("head").underflow is None and found.own_loss is None
    assert found.get("head").shares().lost == 0.45


def build_functional(keras):
    ops, layers = keras.ops, keras.layers
    inputs = keras.Input((16,))
    h = layers.Dense(32, "relu", name="first")(inputs)
    h = ops.sigmoid(h) * 2.0
    h = layers.BatchNormalization(name="norm")(h)
    h = layers.Dropout(0.3, name="drop")(h)
    shared = layers.Dense(32, name="shared")
    h = shared(shared(h))
    inner = keras.Sequential(
        [keras.Input((32,)), layers.Dense(8, name="in1"), layers.Dense(8, name="in2")], name="inner"
    )
    return keras.Model(inputs, layers.Dense(4, name="head")(inner(h)))


@slow_on_jax
def test_functional_nested_shared_and_functions_between_layers(keras):
    keras.config.set_dtype_policy("mixed_float16")
    model = build_functional(keras)
    model.compile("sgd", loss="mse", auto_scale_loss=False)
    found = keras_mp.probe(model, data())
    layers = [row.layer for row in found.of("activation")]
    functions = [name for name in layers if name.startswith(("sigmoid", "multiply"))]
    assert len(functions) == 2 and all(found.get(name) for name in functions)
    expected = ["first", *functions, "norm", "drop", "shared", "inner/in1", "inner/in2", "head"]
    assert layers == expected == [row.layer for row in found.of("gradient")]
    assert found.get("shared").histogram.total == 2 * 32 * 32  # both calls
    assert {row.name.split("/")[-1] for row in found.of("weight_gradient")} >= {"kernel", "gamma"}
    assert len(found.of("weight_gradient")) == len(model.trainable_variables)
    owner = {row.name: row.layer for row in found.of("weight_gradient")}
    assert "inner/in1" in owner.values() and "shared" in owner.values()
    assert found.loss == pytest.approx(found.own_loss, rel=0.02) and found.loss != found.own_loss


@slow_on_jax
def test_subclassed_models_and_what_they_compute_at_their_end(keras):
    @keras.saving.register_keras_serializable("test_probe")
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.late = keras.layers.Dense(4, name="late")
            self.early = keras.layers.Dense(8, "relu", name="early")
            self.blocks = [keras.layers.Dense(8, name=f"block{i}") for i in range(2)]

        def call(self, x, training=None):
            h = self.early(x)
            for block in self.blocks:
                h = h + block(h)
            return self.late(h) * 3.0

    keras.config.set_dtype_policy("mixed_float16")
    model = Net()
    model.compile("sgd", loss="mse", auto_scale_loss=False)
    found = keras_mp.probe(model, data())  # not built before
    assert [r.layer for r in found.of("gradient")] == [
        *("early", "block0", "block1", "late", "(outputs)")
    ]
    late, end = found.get("late"), found.get("(outputs)")
    assert late.norm == pytest.approx(3 * end.norm, rel=1e-5)  # y = 3 * late


@slow_on_jax
def test_recurrent_layers_are_seen_from_outside(keras):
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential(
        [
            keras.Input((5, 3)),
            keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True), name="both"),
            keras.layers.TimeDistributed(keras.layers.Dense(2), name="each"),
        ]
    )
    model.compile("sgd", loss="mse", auto_scale_loss=False)
    x, y = np.ones((6, 5, 3), "float32"), np.ones((6, 5, 2), "float32")
    found = keras_mp.probe(model, (x, y))
    names = [row.layer for row in found.of("gradient")]
    assert "both" in names and "each" in names
    assert not any("cell" in name for name in names) and not found.unseen
    assert len(found.of("weight_gradient")) == len(model.trainable_variables)


def test_numbers_are_those_of_a_hand_made_pass(keras):
    """A linear regression's gradients, worked out in NumPy."""
    x, y = data(rows=64)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(4, name="d")])
    model.compile("sgd", loss="mse")
    found = keras_mp.probe(model, (x, y), scale=8.0)
    kernel, bias = values(model.trainable_variables)
    out = x.astype(np.float64) @ kernel + bias
    upstream = 2 * (out - y) / out.size
    assert found.loss == pytest.approx(float(np.mean((out - y) ** 2)), rel=1e-5)
    assert found.get("d", "activation").norm == pytest.approx(np.linalg.norm(out), rel=1e-5)
    assert found.get("d").norm == pytest.approx(np.linalg.norm(upstream), rel=1e-5)
    rows = {row.name.split("/")[-1]: row for row in found.of("weight_gradient")}
    assert rows["kernel"].norm == pytest.approx(np.linalg.norm(x.T @ upstream), rel=1e-5)
    assert rows["bias"].norm == pytest.approx(np.linalg.norm(upstream.sum(0)), rel=1e-5)
    largest = np.abs(x.T @ upstream).max()
    assert rows["kernel"].headroom() == pytest.approx(math.log2(65504 / largest / 8), abs=1e-4)
    limit = max(np.abs(upstream).max(), largest, np.abs(upstream.sum(0)).max())
    assert found.largest_scale == pytest.approx(65504 / limit, rel=1e-5)


@slow_on_jax
def test_nothing_of_the_model_changes_and_the_training_goes_on_as_if_nobody_had_looked(keras):
    def trained(looks):
        keras.utils.clear_session()
        keras.utils.set_random_seed(7)
        keras.config.set_dtype_policy("mixed_float16")
        model = build_functional(keras)
        model.compile(
            keras_mp.LossScaleOptimizer(keras.optimizers.Adam(1e-2)), loss="mse", metrics=["mae"]
        )
        x, y = data()
        logs = []
        for _ in range(2):
            logs.append(model.train_on_batch(x, y, return_dict=True))
            if looks:
                before = values(model.variables)
                policies = [layer.dtype_policy.name for layer in model.layers]
                keras_mp.probe(model, (x, y))
                for a, b in zip(before, values(model.variables), strict=True):
                    np.testing.assert_array_equal(a, b)
                assert [layer.dtype_policy.name for layer in model.layers] == policies
                assert not any("call" in vars(layer) for layer in model.layers)
        return logs, values(model.variables)

    logs, weights = trained(looks=False)
    looked_logs, looked_weights = trained(looks=True)
    assert logs == looked_logs
    for a, b in zip(weights, looked_weights, strict=True):
        np.testing.assert_array_equal(a, b)


@slow_on_jax
def test_both_passes_drop_the_same_units(keras):
    """With other masks a tenth of all gradients would be zero in one pass alone."""
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(64, name="a"), keras.layers.Dropout(0.1),
         keras.layers.Dense(4, name="b")]
    )  # fmt: skip
    model.compile("sgd", loss="mse", auto_scale_loss=False)
    found = keras_mp.probe(model, data())
    zero = found.get("a").shares().zero
    assert 0.05 < zero < 0.2 and found.get("a").underflow == 0.0


@slow_on_jax
def test_recurrent_dropout_is_not_compared(keras):
    """Its masks cannot be made to agree: the measured share is unknown, not wrong."""
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential(
        [keras.Input((4, 3)), keras.layers.SimpleRNN(4, dropout=0.5), keras.layers.Dense(4)]
    )
    model.compile("sgd", loss="mse", auto_scale_loss=False)
    found = keras_mp.probe(model, (np.ones((8, 4, 3), "float32"), np.ones((8, 4), "float32")))
    assert found.underflow is None and found.lost is not None


def test_activations_alone_and_what_overflows_in_them(keras):
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Rescaling(1e6, name="huge"),
         keras.layers.Rescaling(1e-6, name="small")]
    )  # fmt: skip
    found = keras_mp.probe(model, np.array([[0.01, 0.1, 0.5, 1.0]], "float32"))
    assert not found.of("gradient") and found.loss is None and found.lost is None
    assert found.get("huge", "activation").shares().overflow == 0.75
    assert "activations overflow float16 in huge" in str(found)
    assert found.get("huge", "activation").shares("bfloat16").overflow == 0.0


@slow_on_jax
def test_layers_kept_in_float32_lose_nothing(keras):
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(8, name="half"),
            keras.layers.Dense(4, name="head", dtype="float32"),
            keras.layers.Rescaling(1e6, name="huge", dtype="float32"),
        ]
    )
    x, y = data()

    def loss(y, y_pred):  # the gradient of huge's output is 2**-30, of head's 1e6 * 2**-30
        return keras.ops.sum(y_pred) * 2.0**-30

    found = keras_mp.probe(model, (x, y), loss=loss)
    assert {row.layer: row.dtype for row in found.of("activation")} == {
        "half": "float16", "head": "float32", "huge": "float32"}  # fmt: skip
    huge = found.get("huge")
    assert huge.shares().lost == 1.0 and huge.underflow == 0.0
    assert found.lost == 0.0  # what a float16 layer sees
    assert "overflow float16" not in str(found)  # though huge's outputs would
    assert found.get("huge", "activation").shares().overflow > 0
    assert "dtype" in str(found)


@slow_on_jax
def test_the_scale_is_that_of_the_optimizer(keras):
    x, y = data()
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)])
    for optimizer, scale in (
        (keras_mp.LossScaleOptimizer("sgd", scale=128.0), 128.0),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=64.0), 64.0),
        (keras.optimizers.SGD(loss_scale_factor=8.0), 8.0),
        (keras.optimizers.SGD(), 1.0),
    ):
        model.compile(optimizer, loss="mse", auto_scale_loss=False)
        found = keras_mp.probe(model, (x, y))
        assert found.scale == scale and found.of("gradient")[0].scale == scale
        assert found.of("activation")[0].scale == 1.0


@slow_on_jax
def test_regularizers_and_sample_weights_are_in_the_loss(keras):
    x, y = data()
    model = keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l2"),
        ]
    )
    model.compile("sgd", loss="mse")
    weights = np.linspace(0, 1, len(x)).astype("float32")
    found = keras_mp.probe(model, (x, y, weights))
    assert found.loss == pytest.approx(
        model.evaluate(x, y, sample_weight=weights, batch_size=len(x), verbose=0), rel=1e-4
    )


def test_what_is_wrong_is_said(keras):
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)])
    x, y = data()
    with pytest.raises(ValueError, match="needs a loss"):
        keras_mp.probe(model, (x, y))
    assert keras_mp.probe(model, (x, y), loss="mse").of("gradient")
    with pytest.raises(ValueError, match="Received: scale="):
        keras_mp.probe(model, (x, y), loss="mse", scale=0.0)
    with pytest.raises(ValueError, match="Received: fmt='float12'"):
        keras_mp.probe(model, (x, y), loss="mse", format="float12")
    found = keras_mp.probe(model, (x, y), loss="mse")
    with pytest.raises(KeyError, match="was not seen"):
        found.get("nowhere")


@slow_on_jax
def test_the_table_and_the_picture_show_every_layer(keras):
    keras.config.set_dtype_policy("mixed_float16")
    model = build_functional(keras)
    model.compile("sgd", loss="mse", auto_scale_loss=False)
    found = keras_mp.probe(model, data(), scale=1024.0)
    table, picture = str(found), found.svg()
    for row in found.of("gradient"):
        assert row.layer in table and row.layer in picture
    for row in found.of("weight_gradient"):
        assert row.name in table
    assert "2¹⁰" in table and "gradients × 2¹⁰" in picture
    root = ET.fromstring(picture)
    strips = root.findall(".//{http://www.w3.org/2000/svg}g")
    assert len(strips) == len(found.of("activation")) + len(found.of("gradient"))
    assert found._repr_svg_() == picture


def test_a_list_is_of_inputs_and_no_batch_of_inputs_and_targets(keras):
    inputs = [keras.Input((3,), name="a"), keras.Input((3,), name="b")]
    hidden = keras.layers.Dense(2, name="hidden")(keras.layers.Add(name="sum")(inputs))
    model = keras.Model(inputs, hidden)
    ones = np.ones((4, 3), "float32")
    assert "hidden" in str(keras_mp.probe(model, [ones, ones]))
