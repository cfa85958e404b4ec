"""The tensorflow kernel on sparse gradients (IndexedSlices), as an Embedding's are."""

import keras
import numpy as np
import pytest
from helpers.stepping import host, snapshot
from keras import layers

import keras_mp

if keras.backend.backend() != "tensorflow":
    pytest.skip("tests of the tensorflow kernel", allow_module_level=True)

import tensorflow as tf

from keras_mp.scaling.kernels import tensorflow_check

pytestmark = pytest.mark.backend


def embedding_gradients(bad=None):
    values = np.float32([[1, 2], [3, 4], [5, 6]])
    if bad is not None:
        values[1, 0] = bad
    return values


@pytest.mark.parametrize("how", ["eager", "graph"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Adam(0.125),
        lambda: keras.optimizers.AdamW(0.125),
        lambda: keras.optimizers.SGD(0.125, momentum=0.5),
        lambda: keras.optimizers.Adagrad(0.125),
        lambda: keras.optimizers.SGD(0.125, global_clipnorm=1.0),
    ],
)
def test_sparse_gradients_are_checked_and_unscaled_as_such(how, make):
    def build(wrap):
        variables = [keras.Variable(np.ones((5, 2), "float32")), keras.Variable([1.0, 2.0])]
        optimizer = keras_mp.LossScaleOptimizer(make()) if wrap else make()
        optimizer.build(variables)

        def step(values, dense):
            factor = 1.0
            if wrap:
                optimizer.scale_loss(tf.ones(()))
                factor = tf.convert_to_tensor(optimizer.dynamic_scale)
            slices = tf.IndexedSlices(values * factor, tf.constant([1, 3, 1]), tf.constant([5, 2]))
            optimizer.apply([slices, dense * factor], variables)

        run = step if how == "eager" else tf.function(step, autograph=False)
        return optimizer, variables, run

    plain, mine = build(False), build(True)
    for bad in (None, np.nan, None):
        values, dense = tf.constant(embedding_gradients(bad)), tf.constant([1.0, -1.0])
        if bad is not None:
            before = snapshot(*mine[1], *mine[0].inner_optimizer.variables)
            mine[2](values, dense)
            assert snapshot(*mine[1], *mine[0].inner_optimizer.variables) == before
            assert mine[0]._kernel.overflow_counts()[0].tolist() == [1, 0]
            continue
        for _, _, run in (plain, mine):
            run(values, dense)
        for one, other in zip(plain[1], mine[1], strict=True):
            np.testing.assert_allclose(host(other), host(one), rtol=1e-6)
    assert mine[0].applied_steps == 2


def test_sparse_gradients_stay_sparse():
    grad = tf.IndexedSlices(tf.ones((2, 3)), tf.constant([4, 7]), tf.constant([1000, 3]))
    variable = keras.Variable(np.zeros((1000, 3), "float32"))
    (unscaled,) = tensorflow_check.unscale([grad], [variable], 0.5)
    assert isinstance(unscaled, tf.IndexedSlices)
    np.testing.assert_array_equal(unscaled.values, np.full((2, 3), 0.5))
    np.testing.assert_array_equal(unscaled.indices, [4, 7])


@pytest.mark.parametrize("how", ["eager", "graph", "xla"])
def test_a_row_that_comes_several_times_counts_as_the_sum_of_its_parts(how):
    model = keras.Sequential(
        [keras.Input((4,), dtype="int32"), layers.Embedding(5, 3), layers.Flatten()]
    )
    model.add(layers.Dense(1))
    x, y = tf.constant([[1, 1, 1, 2], [3, 3, 1, 1]]), tf.ones((2, 1))
    variables = [v.value for v in model.trainable_variables]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    dense = [np.float64(tf.convert_to_tensor(g)) for g in tape.gradient(loss, variables)]
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(0.0), scale=4.0)
    optimizer.build(model.trainable_variables)
    optimizer.watch(2)
    optimizer.measure_headroom(every=1)

    def step():
        with tf.GradientTape() as tape:
            scaled = optimizer.scale_loss(tf.reduce_mean((model(x) - y) ** 2))
        optimizer.apply(tape.gradient(scaled, variables), model.trainable_variables)

    (step if how == "eager" else tf.function(step, jit_compile=how == "xla", autograph=False))()
    norm = np.sqrt(sum((g**2).sum() for g in dense))
    (row,) = optimizer.recent_steps()
    assert row.grad_norm == pytest.approx(norm, rel=1e-6)
    room = [65504 / (row.scale * np.abs(g).max()) for g in dense]
    assert list(optimizer.headroom().values()) == pytest.approx(room, rel=1e-6)


@pytest.mark.parametrize("how", ["eager", "graph", "xla"])
@pytest.mark.parametrize("watched", [False, True])
def test_a_row_whose_parts_are_finite_and_its_sum_is_not_is_an_overflow(how, watched):
    variable = keras.Variable(np.ones((4, 2), "float32"))
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.Adam(0.125), scale=1.0)
    optimizer.build([variable])
    if watched:
        optimizer.watch(2)

    def step(values):
        optimizer.scale_loss(tf.ones(()))
        slices = tf.IndexedSlices(values, tf.constant([1, 2, 1]), tf.constant([4, 2]))
        optimizer.apply([slices], [variable])

    run = step if how == "eager" else tf.function(step, jit_compile=how == "xla", autograph=False)
    before = snapshot(variable, *optimizer.inner_optimizer.variables)
    run(tf.constant([[3e38, 1.0], [1.0, 1.0], [3e38, 1.0]]))
    assert snapshot(variable, *optimizer.inner_optimizer.variables) == before
    run(tf.constant([[3e38, 1.0], [1.0, 1.0], [-3e38, 1.0]]))
    assert (optimizer.skipped_steps, optimizer.applied_steps) == (1, 1)
    assert np.isfinite(host(variable)).all()


def test_no_row_at_all_is_no_overflow():
    variable = keras.Variable(np.ones((4, 2), "float32"))
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(0.125), scale=2.0)
    optimizer.build([variable])
    optimizer.watch(2)
    optimizer.scale_loss(tf.ones(()))
    nothing = tf.IndexedSlices(tf.zeros((0, 2)), tf.zeros(0, tf.int32), tf.constant([4, 2]))
    optimizer.apply([nothing], [variable])
    assert optimizer.recent_steps()[0].grad_norm == 0.0
