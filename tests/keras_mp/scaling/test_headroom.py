"""How far each variable's scaled gradient is from float16's largest number, on a schedule."""

import keras
import numpy as np
import pytest
from helpers.stepping import BACKEND, Runner

import keras_mp

pytestmark = pytest.mark.backend

WAYS = {"torch": ["eager"], "tensorflow": ["eager", "graph"], "jax": ["eager", "graph"]}[BACKEND]


@pytest.mark.parametrize("how", WAYS)
def test_headroom_is_65504_over_the_largest_scaled_gradient_at_the_scheduled_steps(how):
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(0.0), scale=8.0)
    optimizer.measure_headroom(every=2)
    run = Runner(optimizer, how)
    shapes = [tuple(v.shape) for v in run.variables]
    assert optimizer.headroom() == {}

    def step(*largest):
        gradients = [np.full(s, 0.25, "float32") for s in shapes]
        for gradient, value in zip(gradients, largest, strict=True):
            gradient.reshape(-1)[-1] = value
        run.step(gradients)

    step(-1.0, 2.0, 4.0)
    assert optimizer.headroom() == {}
    step(-16.0, 0.5, 8188.0)
    paths = optimizer.variable_paths
    expected = dict(zip(paths, [65504 / (8 * 16), 65504 / (8 * 0.5), 1.0], strict=True))
    assert optimizer.headroom() == expected
    step(1.0, 1.0, 1.0)
    assert optimizer.headroom() == expected


def test_a_gradient_of_zero_has_all_the_room():
    optimizer = keras_mp.LossScaleOptimizer("sgd")
    optimizer.measure_headroom(every=1)
    run = Runner(optimizer)
    run.step([np.zeros(tuple(v.shape), "float32") for v in run.variables])
    assert set(optimizer.headroom().values()) == {float("inf")}


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "often"])
def test_a_schedule_that_is_none_is_refused(every):
    with pytest.raises(ValueError, match="`every` must be an integer from 1 on"):
        keras_mp.LossScaleOptimizer("sgd").measure_headroom(every)
