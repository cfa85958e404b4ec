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


@pytest.mark.parametrize("name", ["F1Score", "R2Score", "AUC"])
def test_a_first_batch_that_is_not_finite_does_not_count_either(name):
    # These make their variables at the first update.
    arguments = {"multi_label": True} if name == "AUC" else {}
    truth, scores = data("onehot")
    ours, theirs = (getattr(m.metrics, name)(**arguments) for m in (keras_mp, keras))
    ours.update_state(truth, np.full_like(scores, np.nan))
    for metric in (ours, theirs):
        metric.update_state(truth, scores)
    assert ours.nonfinite_batches == 1
    state = [host(v) for v in ours.variables if v is not ours.nonfinite]
    for found, exact in zip(state, theirs.variables, strict=True):
        np.testing.assert_array_equal(found, host(exact))


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_cross_entropy_in_evaluate_is_keras_own_for_a_sure_and_wrong_prediction(dtype):
    # On tensorflow Keras computes it from the logits of the softmax; elsewhere from its result.
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(2, "softmax", kernel_initializer="identity", dtype=dtype),
        ]
    )
    x, y = np.array([[30.0, -30.0]], "f"), np.array([[0.0, 1.0]], "f")

    def found(module, policy):
        model.layers[0].dtype_policy = policy
        model.compile(loss="mse", metrics=[module.metrics.CategoricalCrossentropy(name="ce")])
        return model.evaluate(x, y, verbose=0, return_dict=True)["ce"]

    exact = found(keras, "float32")
    assert exact == pytest.approx(
        60.0 if keras.backend.backend() == "tensorflow" else 16.118, rel=1e-4
    )
    assert found(keras_mp, dtype) == pytest.approx(exact, rel=1e-3)


def test_a_mixin_sums_a_users_metric_in_float32():
    class Error(keras.metrics.Metric):
        def __init__(self, **options):
            super().__init__(**options)
            self.total = self.add_variable((), "zeros", name="total")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.total.assign_add(ops.sum(ops.cast(y_pred, self.dtype)))

        def result(self):
            return self.total

    class Finite(keras_mp.metrics.FiniteMetric, Error):
        pass

    metric = Finite(dtype="float16")
    for _ in range(3):
        metric.update_state(np.zeros(1, "f"), ops.cast([40_000.0], "float16"))
    metric.update_state(np.zeros(1, "f"), ops.cast([np.inf], "float16"))
    assert float(host(metric.result())) == 120_000.0


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
