"""A model and arrays of this process, as a trial's processes read them."""

from contextlib import ExitStack

import keras
import numpy as np
import pytest
from helpers.bench_models import data

from keras_mp.bench.handover import handed_over
from keras_mp.bench.worker import Worker

pytestmark = pytest.mark.backend


class Subclassed(keras.Model):
    pass


def through(model, given):
    made = Worker()
    rest = {"variant": "float32", "policy": None, "batch": 8, "seed": 0}
    with ExitStack() as stack:
        spec, arrays, classes, _ = handed_over(model, given, stack)
        made.build(spec=spec, data=arrays, classes=classes, **rest)
    return made


def test_a_models_own_loss_metric_and_activation_go_along():
    from helpers import bench_models

    made = through(bench_models.of_own_parts(), data())
    assert made.model.layers[0].activation is bench_models.own_activation
    assert type(made.model.loss) is bench_models.OwnLoss
    assert all(np.isfinite(made.losses(steps=2)))


def test_dicts_of_arrays_keep_their_names():
    from helpers.bench_models import two_named

    rng = np.random.default_rng(0)
    x = {"numbers": rng.normal(size=(20, 4)), "scale": rng.normal(size=(20, 1))}
    y = {"kind": np.arange(20) % 10, "size": rng.normal(size=(20, 1))}
    made = through(two_named(), (x, y))
    taken = made.batches.take(1)[0]
    assert [list(side) for side in taken] == [list(x), list(y)]
    np.testing.assert_array_equal(taken[0]["scale"], x["scale"][:8])


def test_a_class_is_a_function_that_makes_a_model():
    with ExitStack() as stack:
        spec = handed_over(Subclassed, None, stack)[0]
    assert spec == f"{__name__}:Subclassed"


def test_a_lambda_in_a_model_is_refused():
    model = keras.Sequential([keras.Input((24,)), keras.layers.Lambda(lambda x: x)])
    with pytest.raises(ValueError, match="holds a lambda"):
        through(model, data())
