"""jax: how far each variable is from the loss, told by the jaxpr of the model."""

import keras
import numpy as np
import pytest
from helpers.planting import Deep, planted_data

import keras_mp

if keras.backend.backend() != "jax":
    pytest.skip("tests of the jax kernel", allow_module_level=True)

import jax
import jax.numpy as jnp

from keras_mp.scaling.kernels.jax_graph import model_distances

pytestmark = pytest.mark.backend


def test_in_a_loop_too_and_without_a_model_the_last_variable_stands_for_the_nearest():
    x, y = planted_data(3)
    model = Deep()
    model(x)
    optimizer = keras_mp.LossScaleOptimizer("sgd")
    optimizer.build(model.trainable_variables)
    optimizer.watch(4)

    @jax.jit
    def step(trainable, own, x, y):
        def loss(trainable):
            outputs, _ = model.stateless_call(trainable, [], x)
            scale = keras.ops.cast(own[0], "float32")
            return jnp.mean((outputs - y) ** 2) * scale

        return optimizer.stateless_apply(own, jax.grad(loss)(trainable), trainable)

    trainable = [v.value for v in model.trainable_variables]
    own = [v.value for v in optimizer.variables]
    for batch in range(3):
        rows = slice(2 * batch, 2 * batch + 2)
        trainable, own = step(trainable, own, x[rows], y[rows])
    for variable, value in zip(optimizer.variables, own, strict=True):
        variable.assign(value)
    rows = optimizer.recent_steps()
    assert [optimizer.describe(row).layer for row in rows] == ["deep/first"] * 3
    optimizer.bind(model)
    assert [optimizer.describe(row).layer for row in rows] == [f"deep/{p}" for p in Deep.planted]


def test_distances_enter_loops_calls_and_branches():
    inputs = {
        "b": keras.Input((None,), dtype="int32", name="b"),
        "a": keras.Input((2,), name="a"),
    }
    words = keras.layers.Embedding(9, 2, name="words")(inputs["b"])
    h = keras.layers.LSTM(2, name="lstm")(words)
    h = keras.layers.LayerNormalization(name="norm")(h + inputs["a"])
    outputs = [keras.layers.Dense(1, name="out")(h), keras.layers.Dense(1, name="aux")(words)]
    model = keras.Model(inputs, outputs)
    variables = list(reversed(model.trainable_variables))
    found = model_distances(model, variables)
    assert sorted(found) == list(range(len(variables)))
    nearest = {}
    for i, variable in enumerate(variables):
        layer = variable.path.split("/")[0]
        nearest[layer] = min(found[i], nearest.get(layer, found[i]))
    order = sorted(nearest, key=nearest.get)
    assert set(order[:2]) == {"out", "aux"}
    assert order[2:] == ["norm", "lstm", "words"]


def test_a_model_that_shapes_alone_cannot_call_leaves_the_order_of_the_variables():
    class Picky(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x) * float(x[0, 0])

    model = Picky()
    model(np.ones((1, 2), "float32"))
    assert model_distances(model, model.trainable_variables) == {}
