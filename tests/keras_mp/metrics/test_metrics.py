"""Metrics that leave out what is not finite and never round a label."""

import keras
import numpy as np
import pytest
from helpers.stepping import host
from keras import ops

import keras_mp

pytestmark = pytest.mark.backend

# Arguments that a metric cannot do without, and data that fits it.
NEEDS = {
    "Mean": ((), "values"),
    "Sum": ((), "values"),
    "IoU": ({"num_classes": 2, "target_class_ids": [1]}, "classes"),
    "MeanIoU": ({"num_classes": 2}, "classes"),
    "OneHotIoU": ({"num_classes": 2, "target_class_ids": [1]}, "onehot"),
    "OneHotMeanIoU": ({"num_classes": 2}, "onehot"),
    "BinaryIoU": ({}, "binary"),
    "SensitivityAtSpecificity": ({"specificity": 0.5}, "binary"),
    "SpecificityAtSensitivity": ({"sensitivity": 0.5}, "binary"),
    "PrecisionAtRecall": ({"recall": 0.5}, "binary"),
    "RecallAtPrecision": ({"precision": 0.5}, "binary"),
    "FBetaScore": ({}, "onehot"),
    "F1Score": ({}, "onehot"),
    "ConcordanceCorrelation": ({}, "regression"),
    "PearsonCorrelation": ({}, "regression"),
    "CategoricalCrossentropy": ({}, "onehot"),
    "CategoricalAccuracy": ({}, "onehot"),
    "TopKCategoricalAccuracy": ({"k": 1}, "onehot"),
    "CategoricalHinge": ({}, "onehot"),
    "KLDivergence": ({}, "onehot"),
    "SparseCategoricalAccuracy": ({}, "sparse"),
    "SparseCategoricalCrossentropy": ({}, "sparse"),
    "SparseTopKCategoricalAccuracy": ({"k": 1}, "sparse"),
    "Accuracy": ({}, "classes"),
}
ABSTRACT = ("Metric", "MeanMetricWrapper", "MeanRelativeError")


def data(kind):
    rng = np.random.default_rng(0)
    scores = rng.dirichlet([1.0, 1.0], size=16).astype("float32")
    classes = rng.integers(0, 2, 16)
    return {
        "values": (scores[:, 0],),
        "regression": (rng.normal(size=(16, 3)).astype("f"), rng.normal(size=(16, 3)).astype("f")),
        "binary": (classes.astype("f")[:, None], scores[:, :1]),
        "onehot": (np.eye(2, dtype="f")[classes], scores),
        "sparse": (classes, scores),
        "classes": (classes.astype("f"), (scores[:, 0] > 0.5).astype("f")),
    }[kind]


def make(module, name):
    arguments, _ = NEEDS.get(name, ({}, "binary"))
    cls = getattr(module, name)
    return cls(**arguments) if isinstance(arguments, dict) else cls(*arguments)


def names():
    return [n for n in keras_mp.metrics.__all__ if n[0].isupper() and n not in ABSTRACT]


EACH_KIND = ("Mean", "MeanAbsoluteError", "BinaryCrossentropy", "AUC", "IoU", "F1Score", "Accuracy")


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")  # Keras' own, on jax
@pytest.mark.parametrize(
    "name", [n if n in EACH_KIND else pytest.param(n, marks=pytest.mark.slow) for n in names()]
)
def test_a_finite_batch_counts_as_in_keras_and_another_does_not_count(name):
    batch = data(NEEDS.get(name, ({}, "binary"))[1])
    ours, theirs = make(keras_mp.metrics, name), make(keras.metrics, name)
    ours.update_state(*batch)
    theirs.update_state(*batch)
    np.testing.assert_allclose(host(ours.result()), host(theirs.result()), rtol=1e-6)
    before = host(ours.result())
    bad = batch[-1].copy()
    bad[3] = np.nan
    ours.update_state(*batch[:-1], bad)
    np.testing.assert_array_equal(host(ours.result()), before)
    assert ours.nonfinite_batches == 1
    ours.reset_state()
    assert ours.nonfinite_batches == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("classes", [300, 5000])
def test_labels_are_not_rounded_to_the_precision_of_the_predictions(dtype, classes):
    # The class after the label's: rounded to 11 or 8 bits, the two are one.
    scores = np.zeros((1, classes), "float32")
    scores[0, classes - 2] = 1
    metric = keras_mp.metrics.SparseCategoricalAccuracy()
    metric.update_state(np.array([[classes - 1]]), ops.cast(scores, dtype))
    assert float(metric.result()) == 0.0
    metric.update_state(np.array([[classes - 2]]), ops.cast(scores, dtype))
    assert float(metric.result()) == 0.5


def test_in_fit_a_skipped_batch_stays_out_and_a_saved_model_keeps_the_metric(tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, kernel_initializer="ones"),
            keras.layers.Dense(1),
        ]
    )
    metric = keras_mp.metrics.MeanAbsoluteError(name="mae")
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(1e-3), initial_scale=8.0)
    model.compile(optimizer=optimizer, loss="mse", metrics=[metric])
    x = np.random.default_rng(0).random((64, 8)).astype("float32") * 0.1
    x[0] = 6e4
    history = model.fit(x, x[:, :1], batch_size=8, shuffle=False, verbose=0).history
    assert optimizer.skipped_steps == 1
    assert np.isfinite(history["mae"][0])
    assert metric.nonfinite_batches == 1
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    again.evaluate(x[8:], x[8:, :1], verbose=0)
    assert "mae" in again.get_metrics_result()
