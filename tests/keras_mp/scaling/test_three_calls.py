"""tf.keras' loop of three calls: scale the loss, unscale the gradients, apply them.

``apply`` unscales by itself, so what was unscaled by hand must not be unscaled again.
"""

import keras
import numpy as np
import pytest
from helpers.stepping import BACKEND, host, make_gradients, make_variables, scaled
from keras import ops

import keras_mp

pytestmark = pytest.mark.backend

SCALE = 64.0


@pytest.fixture
def optimizer():
    return keras_mp.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=SCALE)


@pytest.fixture
def variables(optimizer):
    variables = make_variables()
    optimizer.build(variables)
    return variables


def trained(gradients):
    """Plain SGD's weights after a step with these gradients: the value from outside."""
    variables = make_variables()
    plain = keras.optimizers.SGD(0.5)
    plain.build(variables)
    plain.apply([ops.convert_to_tensor(g) for g in gradients], variables)
    return [host(v) for v in variables]


def assert_weights(variables, expected):
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_array_equal(host(variable), value)


def begin(optimizer, seed=0, bad=None):
    """True gradients, and those of the scaled loss."""
    optimizer.get_scaled_loss(ops.convert_to_tensor(1.0))
    true = make_gradients(np.random.default_rng(seed))
    return true, scaled(true, optimizer.loss_scale, bad)


WAYS = {
    "as they are": (lambda g: g, lambda g: g),
    "clipped": (lambda g: [ops.clip(x, -1.0, 1.0) for x in g], lambda g: np.clip(g, -1.0, 1.0)),
    "doubled": (lambda g: [x + x for x in g], lambda g: g + g),
}


@pytest.mark.parametrize("way", WAYS)
def test_gradients_unscaled_by_hand_are_not_unscaled_again(way, optimizer, variables):
    of_tensors, of_arrays = WAYS[way]
    true, gradients = begin(optimizer)
    unscaled = of_tensors(optimizer.get_unscaled_gradients(gradients))
    if way == "clipped":
        optimizer.apply_gradients(zip(unscaled, variables, strict=True))  # tf.keras' last call
    else:
        optimizer.apply(unscaled, variables)
    assert_weights(variables, trained([of_arrays(g) for g in true]))


def test_an_overflow_among_them_is_skipped(optimizer, variables):
    before = [host(v) for v in variables]
    _, gradients = begin(optimizer, bad=np.inf)
    optimizer.apply(optimizer.get_unscaled_gradients(gradients), variables)
    assert_weights(variables, before)
    assert (optimizer.skipped_steps, optimizer.loss_scale) == (1, SCALE / 2)


def test_those_that_were_only_looked_at_are_unscaled(optimizer, variables):
    true, gradients = begin(optimizer)
    optimizer.get_unscaled_gradients(gradients)  # for a log
    optimizer.apply(gradients, variables)
    assert_weights(variables, trained(true))


def test_a_step_that_was_given_up_means_nothing_for_the_next(optimizer, variables):
    _, gradients = begin(optimizer)
    optimizer.get_unscaled_gradients(gradients)
    true, gradients = begin(optimizer, seed=1)
    optimizer.apply(gradients, variables)
    assert_weights(variables, trained(true))


def test_a_half_precision_gradient_is_not_lost(optimizer, variables):
    least = np.float16(2.0**-24)  # a float16 divided by the scale would be 0
    gradient, nothing = optimizer.get_unscaled_gradients([ops.convert_to_tensor(least), None])
    assert nothing is None and float(host(gradient)) == 2.0**-24 / SCALE


@pytest.mark.skipif(BACKEND == "torch", reason="torch has no such trace")
def test_in_a_compiled_function_of_the_users(optimizer, variables):
    true = make_gradients(np.random.default_rng(0))
    given = scaled(true, SCALE)

    def unscale_and_apply(gradients):
        assert not isinstance(optimizer.loss_scale, float)  # a tensor of what is being traced
        optimizer.apply(optimizer.get_unscaled_gradients(gradients), variables)

    if BACKEND == "tensorflow":
        import tensorflow as tf

        step = tf.function(unscale_and_apply)
        step(given)
        assert_weights(variables, trained(true))
        step(scaled([-g for g in true], SCALE))  # and back, by the same trace
        np.testing.assert_allclose(host(variables[0]), host(make_variables()[0]), atol=1e-6)
        return
    import jax

    @jax.jit
    def pure(weights, own, gradients):
        mapping = list(zip(optimizer.variables, own, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            unscaled = optimizer.get_unscaled_gradients(gradients)
        return optimizer.stateless_apply(own, unscaled, weights)

    values = [v.value for v in variables], [v.value for v in optimizer.variables]
    weights, _ = pure(*values, given)
    for value, expected in zip(weights, trained(true), strict=True):
        np.testing.assert_array_equal(np.asarray(value), expected)
