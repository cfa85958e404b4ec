"""Metrics and losses that are wrong for a model's outputs: found, so, and mended by the fix."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_mp

pytestmark = pytest.mark.backend
LIMIT = {"mixed_float16": 2048, "mixed_bfloat16": 256}


def classifier(policy, classes, metrics, **options):
    """The identity: what goes in are the scores of the classes."""
    head = layers.Dense(classes, kernel_initializer="identity", use_bias=False, dtype=policy)
    model = keras.Sequential([keras.Input((classes,)), head])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=metrics, auto_scale_loss=False, **options)
    return model


def found(model):
    return [f for f in keras_mp.audit(model) if f.code in ("stock-metric", "half-loss")]


def follow(finding, model):
    exec(finding.fix, {"model": model, "keras": keras, "keras_mp": keras_mp})


@pytest.mark.parametrize(
    "metric", ["accuracy", keras.metrics.SparseCategoricalAccuracy, keras.metrics.get]
)
@pytest.mark.parametrize("policy", LIMIT)
def test_class_ids_that_half_precision_rounds(policy, metric):
    if metric is keras.metrics.get:
        metric = keras.metrics.sparse_categorical_accuracy
    elif not isinstance(metric, str):
        metric = metric(name="right")
    classes = LIMIT[policy] + 2
    model = classifier(policy, classes, [metric, "sparse_categorical_crossentropy"])
    scores = np.zeros((1, classes), "float32")
    scores[0, LIMIT[policy]] = 1
    labels = np.array([LIMIT[policy] + 1])  # the prediction is wrong, by one class
    before = model.evaluate(scores, labels, verbose=0, return_dict=True)
    name = next(n for n in before if n in ("accuracy", "right", "sparse_categorical_accuracy"))
    assert before[name] == 1.0
    error = found(model)[0]
    assert (error.severity, error.code) == ("error", "stock-metric")
    assert "keras_mp.metrics.SparseCategoricalAccuracy(" in error.fix
    follow(error, model)
    after = model.evaluate(scores, labels, verbose=0, return_dict=True)
    assert (name in after, after[name]) == (True, 0.0)
    assert found(model) == []


def test_numbers_past_float16():
    head = layers.Dense(1, kernel_initializer="ones", dtype="mixed_float16")
    model = keras.Sequential([keras.Input((1,)), head])
    model.compile("sgd", "mae", metrics=["mse"], auto_scale_loss=False)
    x, y = np.array([[60_000.0]], "float32"), np.array([[90_000.0]], "float32")
    assert model.evaluate(x, y, verbose=0, return_dict=True)["mse"] == np.inf
    (finding,) = found(model)
    assert finding.severity == "error"
    assert "keras_mp.metrics.MeanSquaredError(name='mse')" in finding.fix
    follow(finding, model)
    mended = model.evaluate(x, y, verbose=0, return_dict=True)["mse"]
    assert mended == pytest.approx((90_000 - 60_000) ** 2, rel=2e-3)


@pytest.mark.parametrize("policy", ["float32", *LIMIT])
def test_nothing_is_found_where_they_are_right(policy):
    assert found(classifier(policy, 200, ["accuracy"])) == []
    assert found(classifier("float32", 5000, ["accuracy", "mse"])) == []
    binary = keras.Sequential([keras.Input((4,)), layers.Dense(1, dtype=policy)])
    binary.compile("sgd", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC()])
    assert found(binary) == []
    ours = [keras_mp.metrics.SparseCategoricalAccuracy(), keras_mp.metrics.MeanSquaredError()]
    assert found(classifier(policy, 3000, ours)) == []


def test_a_plan_cures_it_too():
    model = classifier("mixed_float16", 3000, ["accuracy"])
    assert len(found(model)) == 1
    keras_mp.plan(model, "mixed_float16").apply(model)
    assert found(model) == []


def test_a_float32_model_is_looked_at_as_if():
    model = classifier("float32", 3000, ["accuracy"])
    codes = {f.code for f in keras_mp.audit(model, "mixed_float16")}
    assert "stock-metric" in codes
    assert "stock-metric" not in {f.code for f in keras_mp.audit(model, "float32")}


def test_other_arguments_and_several_outputs_stay():
    inputs = keras.Input((4,))
    outputs = {
        name: layers.Dense(size, name=name, dtype="mixed_float16")(inputs)
        for name, size in (("ids", 3000), ("price", 1))
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        "sgd",
        {"ids": "sparse_categorical_crossentropy", "price": "mse"},
        loss_weights={"ids": 1.0, "price": 0.5},
        metrics={"ids": [keras.metrics.SparseCategoricalAccuracy()], "price": ["mae"]},
        weighted_metrics={"price": [keras.metrics.RootMeanSquaredError(name="rmse")]},
        auto_scale_loss=False,
    )
    first = found(model)[0]
    follow(first, model)
    assert found(model) == []
    config = model.get_compile_config()
    assert config["loss_weights"] == {"ids": 1.0, "price": 0.5}
    assert config["weighted_metrics"]["price"][0]["config"]["name"] == "rmse"
    assert config["metrics"]["price"][0]["config"]["name"] == "mae"


def test_a_loss_in_half_precision():
    model = classifier("mixed_float16", 10, None)
    loss = keras.losses.Huber(delta=2.0, dtype="float16")
    model.compile("sgd", loss, auto_scale_loss=False)
    (finding,) = found(model)
    assert finding.code == "half-loss"
    follow(finding, model)
    assert type(model.loss) is keras_mp.losses.Huber
    assert model.loss.get_config() == loss.get_config()
    assert found(model) == []
