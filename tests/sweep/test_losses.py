"""Every loss and metric of Keras on half-precision predictions, and ours of the same name."""

import re

import keras
import numpy as np
import pytest
from sweep.backends import BACKEND, host
from sweep.known import surprises, unused
from sweep.known_losses import KNOWN_LOSSES, KNOWN_METRICS
from sweep.loss_cases import (
    LOSS_DATA,
    LOSSES,
    METRIC_DATA,
    METRIC_FUNCTIONS,
    NOT_LOSSES,
    NOT_METRICS,
    VALUE_METRICS,
)
from sweep.losses import wrong

import keras_mp

pytestmark = [
    pytest.mark.backend,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # overflows are what is looked for
]


def named(tables):
    """Names of cases -> (public name, data)."""
    return {
        f"{name}-{label}" if label else name: (name, data)
        for name, table in tables.items()
        for label, data in table.items()
    }


FUNCTION_CASES = named(LOSS_DATA)
CLASS_CASES = named({cls: LOSS_DATA[function] for cls, function in LOSSES.items()})
METRIC_CASES = named(METRIC_DATA)
METRIC_FUNCTION_CASES = named({f: METRIC_DATA[cls] for f, cls in METRIC_FUNCTIONS.items()})


def test_every_public_name_has_a_case_or_a_reason_why_not():
    losses = {*LOSSES, *LOSSES.values(), *NOT_LOSSES}
    assert [n for n in dir(keras.losses) if n[0] != "_" and n not in losses] == []
    metrics = {*METRIC_DATA, *VALUE_METRICS, *METRIC_FUNCTIONS, *LOSSES.values(), *NOT_METRICS}
    assert [n for n in dir(keras.metrics) if n[0] != "_" and n not in metrics] == []
    for ours, theirs, others in (
        (keras_mp.losses, keras.losses, NOT_LOSSES),
        (keras_mp.metrics, keras.metrics, {"Metric", *NOT_LOSSES}),
    ):
        assert [
            n for n in dir(theirs) if n[0] != "_" and n not in others and not hasattr(ours, n)
        ] == []


def test_what_is_known_is_about_cases_that_exist():
    assert unused(KNOWN_LOSSES, set(FUNCTION_CASES)) == []
    assert unused(KNOWN_METRICS, {*METRIC_CASES, *METRIC_FUNCTION_CASES}) == []


ON_JAX = re.compile(
    r"(binary_crossentropy|SparseCategoricalAccuracy|MeanSquaredError|Dice)(-sure)?"
)


def skip_unless_cheap(name):
    if BACKEND == "jax" and not ON_JAX.fullmatch(name):
        pytest.skip("a compilation a function: minutes")


def both(function, data, *modules):
    """Keras' function of (labels, predictions), and ours."""

    def bound(module):
        return lambda y, p: getattr(module, function)(y, p, **data.arguments)

    return map(bound, modules)


def judged(known, name, told):
    if BACKEND == "jax":  # the list is about torch and tensorflow; ours must be right on jax too
        told = {policy: words for policy, words in told.items() if policy.startswith("keras_mp")}
    return surprises(known, name, BACKEND, told)


@pytest.mark.parametrize("name", FUNCTION_CASES)
def test_loss_function(name):
    skip_unless_cheap(name)
    function, data = FUNCTION_CASES[name]
    stock, ours = both(function, data, keras.losses, keras_mp.losses)
    assert judged(KNOWN_LOSSES, name, wrong(data, stock, ours, gradient=True)) == []


@pytest.mark.parametrize("name", CLASS_CASES)
def test_loss_class(name):
    skip_unless_cheap(name)
    cls, data = CLASS_CASES[name]
    stock, ours = (
        getattr(module, cls)(**data.arguments) for module in (keras.losses, keras_mp.losses)
    )
    assert judged([], name, wrong(data, stock, ours, gradient=True)) == []


def result_of(module, cls, arguments):
    def result(labels, predictions):
        metric = getattr(module, cls)(**arguments)
        metric.update_state(labels, predictions)
        return metric.result()

    return result


@pytest.mark.parametrize("name", METRIC_CASES)
def test_metric(name):
    skip_unless_cheap(name)
    cls, data = METRIC_CASES[name]
    stock, ours = (result_of(m, cls, data.arguments) for m in (keras.metrics, keras_mp.metrics))
    assert judged(KNOWN_METRICS, name, wrong(data, stock, ours, gradient=False)) == []


@pytest.mark.parametrize("name", METRIC_FUNCTION_CASES)
def test_metric_function(name):
    skip_unless_cheap(name)
    function, data = METRIC_FUNCTION_CASES[name]
    stock, ours = both(function, data, keras.metrics, keras_mp.metrics)
    assert judged(KNOWN_METRICS, name, wrong(data, stock, ours, gradient=False)) == []


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("label", ["", "long"])
@pytest.mark.parametrize("name", VALUE_METRICS)
def test_metric_of_values(name, label, half):
    values = VALUE_METRICS[name][label].draw(np.random.default_rng(0), "ordinary")
    for module in (keras.metrics, keras_mp.metrics):
        metric = getattr(module, name)()
        metric.update_state(keras.ops.cast(values, half))
        exact = getattr(np, name.lower())(values.astype("float64"))
        assert float(host(metric.result())) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", METRIC_DATA)
def test_metric_with_sample_weights(name, half):
    """Ours on half-precision predictions is Keras' on the same numbers in float32, exactly."""
    skip_unless_cheap(name)
    data = METRIC_DATA[name][""]
    rng = np.random.default_rng(7)
    labels, predictions = (d.draw(rng, "ordinary") for d in (data.labels, data.predictions))
    weights = np.array([0.5, 0.0, 2.0, 1.0], "float32")[: len(labels)]
    if name == "BinaryIoU":  # takes one weight an element
        weights = np.broadcast_to(weights[:, None], labels.shape)
    results = []
    for module, dtype in ((keras.metrics, "float32"), (keras_mp.metrics, half)):
        metric = getattr(module, name)(**data.arguments)
        for _ in range(2):
            metric.update_state(labels, keras.ops.cast(predictions, dtype), sample_weight=weights)
        results.append(host(metric.result()))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6)
