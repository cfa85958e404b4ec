"""Losses of ours: right values on half-precision predictions, whole numbers as ids, Keras' configs.

``tests/sweep/test_losses.py`` tries every one of them on every kind of data.
"""

import keras
import numpy as np
import pytest
from helpers.gradients import gradients
from helpers.stepping import host
from keras import ops

import keras_mp

pytestmark = pytest.mark.backend
HALF = ("float16", "bfloat16")


@pytest.mark.parametrize("dtype", HALF)
def test_a_sure_and_wrong_prediction_costs_what_it_costs_in_float32(dtype):
    wrong = ops.cast([[1.0], [0.0]], dtype)
    truth = np.array([[0.0], [1.0]], "float32")
    cost = host(keras_mp.losses.binary_crossentropy(truth, wrong))
    exact = -np.log(1e-7)  # Keras' epsilon, to float32's rounding of 1 - 1e-7
    np.testing.assert_allclose(cost, [exact, exact], rtol=0.02)


# Labels against logits of 30 and -30: in half precision the wrong class has a probability of 0.
SURE_AND_WRONG = {
    "sparse_categorical_crossentropy": ("softmax", [1]),
    "categorical_crossentropy": ("softmax", [[0.0, 1.0]]),
    "binary_crossentropy": ("sigmoid", [[0.0, 1.0]]),
}


@pytest.mark.parametrize("kind", ["function", "class"])
@pytest.mark.parametrize("name", SURE_AND_WRONG)
def test_a_sure_and_wrong_prediction_has_the_gradient_that_it_has_in_float32(name, kind):
    # On tensorflow Keras takes the logits of the softmax; elsewhere there is none to be had.
    activation, labels = SURE_AND_WRONG[name]
    if kind == "class":
        name = "".join(word.capitalize() for word in name.split("_"))

    def found(module, dtype):
        loss = getattr(module.losses, name)
        loss = loss(reduction="sum") if kind == "class" else loss

        class Cost(keras.layers.Layer):
            def call(self, logits):
                predictions = keras.activations.get(activation)(ops.cast(logits, dtype))
                return ops.sum(loss(np.array(labels), predictions))

        cost, (gradient,) = gradients(Cost(), np.array([[30.0, -30.0]], "f"), np.ones((), "f"))
        return cost, gradient

    exact = found(keras, "float32")
    if keras.backend.backend() == "tensorflow":
        assert np.abs(exact[1]).min() >= 0.5  # there is something to lose
    for dtype in HALF:
        for ours, theirs in zip(found(keras_mp, dtype), exact, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3)


def test_a_logit_that_overflowed_costs_what_its_finite_prediction_costs():
    predictions = keras.activations.sigmoid(ops.cast([[np.inf, -np.inf]], "float16"))
    right = keras_mp.losses.BinaryCrossentropy()(np.array([[1.0, 0.0]], "f"), predictions)
    assert float(host(right)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("dtype", HALF)
def test_labels_are_not_rounded(dtype):
    prices = np.array([[100_001.0, 90_001.0]], "float32")
    error = host(keras_mp.losses.mean_absolute_error(prices, ops.cast([[64.0, 64.0]], dtype)))
    assert error[0] == 94_937.0


@pytest.mark.parametrize("dtype", HALF)
def test_a_mean_over_many_positions_is_a_sum_in_float32(dtype):
    overlap = keras_mp.losses.dice(np.ones((1, 90_000), "f"), ops.ones((1, 90_000), dtype))
    assert float(host(overlap)) == pytest.approx(0, abs=1e-6)


def test_ids_past_16_777_216_stay_apart():
    ids = np.array([16_777_216, 16_777_217, 16_777_216, 16_777_217], "int32")
    small = np.array([0, 1, 0, 1], "int32")
    points = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    exact = float(host(keras.losses.Circle()(small, points)))
    assert float(host(keras_mp.losses.Circle()(ids, points))) == pytest.approx(exact, rel=1e-6)
    assert float(host(keras.losses.Circle()(ids, points))) != pytest.approx(exact, rel=1e-2)


def test_half_floatx_does_not_make_a_loss_half():
    before = keras.config.floatx()
    keras.config.set_floatx("float16")
    try:
        assert keras_mp.losses.MeanSquaredError().dtype == "float32"
        assert keras_mp.losses.SparseCategoricalCrossentropy(dtype="bfloat16").dtype == "float32"
        assert keras_mp.metrics.MeanSquaredError().dtype == "float32"
        assert keras_mp.losses.Huber(dtype="float64").dtype == "float64"
        assert keras.losses.MeanSquaredError().dtype == "float16"
    finally:
        keras.config.set_floatx(before)


@pytest.mark.parametrize("from_logits", [False, True])
def test_sparse_labels_with_an_ignored_class_as_in_keras(from_logits):
    labels = np.array([0, 255, 2, 1], "uint8" if keras.backend.backend() != "jax" else "int32")
    scores = np.random.default_rng(0).dirichlet(np.ones(3), size=4).astype("float32")
    arguments = {"ignore_class": 255, "from_logits": from_logits}
    ours = keras_mp.losses.SparseCategoricalCrossentropy(**arguments)(labels, scores)
    theirs = keras.losses.SparseCategoricalCrossentropy(**arguments)(labels, scores)
    assert float(host(ours)) == pytest.approx(float(host(theirs)), rel=1e-6)


def test_a_mask_reaches_our_losses_and_metrics():
    tokens = np.array([[1, 2, 0, 0], [3, 0, 0, 0]])
    labels = np.random.default_rng(0).normal(size=(2, 4, 1)).astype("float32")

    def results(module):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(5, 3, mask_zero=True),
                keras.layers.Dense(1, dtype="mixed_float16"),
            ]
        )
        model.compile(
            loss=module.losses.MeanSquaredError(),
            metrics=[module.metrics.MeanAbsoluteError(name="mae")],
        )
        found = model.evaluate(tokens, labels, verbose=0, return_dict=True)
        padded = np.abs(labels - host(ops.cast(model(tokens), "float32")))
        return found, padded[tokens[..., None] != 0].mean()

    ours, exact = results(keras_mp)
    theirs, _ = results(keras)
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
    assert ours["mae"] == pytest.approx(exact, rel=1e-3)
    assert ours["mae"] == pytest.approx(theirs["mae"], rel=1e-3)


def test_it_trains_under_loss_scaling_and_a_saved_model_keeps_it(tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])
    loss = keras_mp.losses.CategoricalCrossentropy(label_smoothing=0.1)
    model.compile(keras_mp.LossScaleOptimizer("adam"), loss)
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    y = np.eye(3, dtype="float32")[np.argmax(x[:, :3], 1)]
    history = model.fit(x, y, epochs=5, verbose=0).history["loss"]
    assert history[-1] < history[0]
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again.loss) is keras_mp.losses.CategoricalCrossentropy
    assert again.loss.get_config() == loss.get_config()


def test_several_outputs_with_losses_and_metrics_of_ours():
    inputs = keras.Input((3,))
    outputs = {name: keras.layers.Dense(2, name=name)(inputs) for name in ("a", "b")}
    model = keras.Model(inputs, outputs)
    model.compile(
        "sgd",
        {"a": keras_mp.losses.Huber(), "b": keras_mp.losses.huber},
        weighted_metrics={
            "a": [keras_mp.metrics.MeanSquaredError(name="mse")],
            "b": [keras_mp.metrics.RootMeanSquaredError(name="rmse")],
        },
    )
    x, y = np.ones((4, 3), "f"), np.full((4, 2), 2.0, "f")
    weights = np.array([1.0, 0.0, 2.0, 1.0], "f")
    found = model.evaluate(
        x, {"a": y, "b": y}, sample_weight={"a": weights, "b": weights}, verbose=0, return_dict=True
    )
    predicted = {name: host(value) for name, value in model(x).items()}
    assert found["a_mse"] == pytest.approx(np.mean((predicted["a"] - y) ** 2), rel=1e-5)
    assert found["b_rmse"] == pytest.approx(np.sqrt(np.mean((predicted["b"] - y) ** 2)), rel=1e-5)
