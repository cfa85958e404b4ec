"""What the wrapper offers beside stepping: every public name of Keras' optimizers, those of Keras'
and tf.keras' wrappers."""

import keras
import numpy as np
import pytest
from helpers.stepping import BACKEND, Runner, apply, host, make_gradients, make_variables, snapshot
from keras import ops

import keras_mp

pytestmark = pytest.mark.backend


def wrapped(**kwargs):
    """(inner optimizer, wrapper), built on the same variables."""
    inner = keras.optimizers.AdamW(0.125, **kwargs)
    wrapper = keras_mp.LossScaleOptimizer(inner)
    wrapper.build(make_variables())
    return inner, wrapper


# Values: reading the wrapper reads the inner optimizer, setting the wrapper sets it.
VALUES = {
    "learning_rate": 0.5,
    "weight_decay": 0.25,
    "clipnorm": 1.0,
    "global_clipnorm": 1.0,
    "clipvalue": 1.0,
    "use_ema": True,
    "ema_momentum": 0.5,
    "ema_overwrite_frequency": 3,
    "gradient_accumulation_steps": 4,
}
# Methods that act on the inner optimizer.
INNER_METHODS = {
    "add_variable",
    "add_variable_from_reference",
    "add_optimizer_variables",
    "exclude_from_weight_decay",
    "finalize_variable_values",
    "update_step",
}
# Methods that need no state, so they are as good here as there.
STATELESS = {"assign", "assign_add", "assign_sub"}
# The wrapper's own business, tested by name elsewhere in these modules.
OWN = {
    "apply",
    "apply_gradients",
    "build",
    "built",
    "from_config",
    "get_config",
    "iterations",
    "load_own_variables",
    "loss_scale_factor",
    "name",
    "save_own_variables",
    "scale_loss",
    "set_weights",
    "stateless_apply",
    "variables",
}


def public_names():
    optimizer = keras.optimizers.Optimizer(0.1)
    return {name for name in dir(optimizer) if not name.startswith("_")}


def test_every_public_name_of_an_optimizer_is_accounted_for():
    assert public_names() == {*VALUES, *INNER_METHODS, *STATELESS, *OWN}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_the_inner_optimizers(name):
    inner, wrapper = wrapped()
    before = getattr(inner, name)
    if name == "learning_rate":
        assert float(host(wrapper.learning_rate)) == float(host(before))
        wrapper.learning_rate = VALUES[name]
        assert float(host(inner.learning_rate)) == VALUES[name]
        return
    assert getattr(wrapper, name) == before
    setattr(wrapper, name, VALUES[name])
    assert getattr(inner, name) == getattr(wrapper, name) == VALUES[name]


def test_iterations_are_the_inner_optimizers_and_cannot_be_set():
    inner, wrapper = wrapped()
    assert wrapper.iterations is inner.iterations
    with pytest.raises(AttributeError):
        wrapper.iterations = 3


def test_added_variables_are_the_inner_optimizers():
    inner, wrapper = wrapped()
    count = len(wrapper.variables)
    (reference, *_) = make_variables()
    added = [
        wrapper.add_variable((2,), name="mine"),
        wrapper.add_variable_from_reference(reference, name="like"),
        *wrapper.add_optimizer_variables([reference], "slot"),
    ]
    for variable in added:
        assert any(v is variable for v in inner.variables)
        assert sum(v is variable for v in wrapper.variables) == 1
    assert len(wrapper.variables) == count + 3


def test_update_step_is_the_inner_optimizers():
    class Plain(keras.optimizers.Optimizer):
        def update_step(self, gradient, variable, learning_rate):
            self.assign_sub(variable, ops.multiply(gradient, learning_rate))

    wrapper = keras_mp.LossScaleOptimizer(Plain(0.5))
    variable = keras.Variable([1.0])
    wrapper.build([variable])
    wrapper.update_step(ops.ones(1), variable, 0.5)
    assert host(variable).tolist() == [0.5]


def test_assigning_works_as_on_any_optimizer():
    _, wrapper = wrapped()
    variable = keras.Variable([1.0])
    wrapper.assign(variable, ops.convert_to_tensor([4.0]))
    wrapper.assign_add(variable, ops.convert_to_tensor([2.0]))
    wrapper.assign_sub(variable, ops.convert_to_tensor([1.0]))
    assert host(variable).tolist() == [5.0]


@pytest.mark.parametrize("by", ["var_names", "var_list"])
def test_variables_excluded_on_the_wrapper_do_not_decay(by):
    variables = [keras.Variable([1.0], name="kernel"), keras.Variable([1.0], name="bias")]
    wrapper = keras_mp.LossScaleOptimizer(keras.optimizers.AdamW(0.5, weight_decay=0.5))
    what = {"var_names": ["bias"]} if by == "var_names" else {"var_list": variables[1:]}
    wrapper.exclude_from_weight_decay(**what)
    wrapper.build(variables)
    apply(wrapper, [ops.zeros(1), ops.zeros(1)], variables)
    assert [float(host(v)[0]) for v in variables] == [0.75, 1.0]


def test_finalize_writes_the_averages():
    variable = keras.Variable([1.0])
    wrapper = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5))
    wrapper.build([variable])
    for _ in range(2):
        apply(wrapper, [ops.ones(1) * wrapper.loss_scale], [variable])
    assert host(variable).tolist() == [-1.0]
    wrapper.finalize_variable_values([variable])
    assert host(variable).tolist() == [-0.5]  # the mean of 0 and -1


def test_apply_gradients_returns_the_iterations():
    run = Runner(keras_mp.LossScaleOptimizer("sgd"))
    for step in range(1, 4):
        run.optimizer.scale_loss(ops.ones(()))
        gradients = [ops.ones(v.shape) for v in run.variables]
        returned = run.optimizer.apply_gradients(zip(gradients, run.variables, strict=True))
        assert int(host(returned)) == step == int(host(run.optimizer.iterations))


def test_apply_builds_and_takes_the_variables_it_was_built_with():
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(1.0))
    with pytest.raises(ValueError, match="`apply` needs `trainable_variables` on its first call"):
        apply(optimizer, [ops.ones(1)])
    variable = keras.Variable([1.0])
    apply(optimizer, [ops.ones(1) * optimizer.loss_scale], [variable])
    apply(optimizer, [ops.ones(1) * optimizer.loss_scale])
    assert host(variable).tolist() == [-1.0]
    apply(optimizer, [])
    assert optimizer.applied_steps == 2


def test_gradients_and_variables_must_pair():
    optimizer = keras_mp.LossScaleOptimizer("sgd")
    with pytest.raises(ValueError, match="2 gradients for 1 variables"):
        apply(optimizer, [ops.ones(1), ops.ones(1)], [keras.Variable([1.0])])


# set_weights.


def test_set_weights_takes_all_of_a_twins_state():
    one, other = (Runner(keras_mp.LossScaleOptimizer("adam"), seed=s) for s in (0, 1))
    rng = np.random.default_rng(0)
    for bad in (None, None, np.nan):
        one.step(make_gradients(rng), bad)
    other.optimizer.set_weights([host(v) for v in one.optimizer.variables])
    assert snapshot(*one.optimizer.variables) == snapshot(*other.optimizer.variables)
    assert other.state == one.state


@pytest.mark.parametrize("change", [lambda w: w[:-1], lambda w: [*w, np.zeros(1)], lambda w: []])
def test_set_weights_refuses_another_number(change):
    run = Runner(keras_mp.LossScaleOptimizer("adam"))
    before = snapshot(*run.optimizer.variables)
    with pytest.raises(ValueError, match=r"Received: \d+ values"):
        run.optimizer.set_weights(change([host(v) + 1 for v in run.optimizer.variables]))
    assert snapshot(*run.optimizer.variables) == before


def test_set_weights_needs_a_built_optimizer():
    with pytest.raises(ValueError, match=r"optimizer.build"):
        keras_mp.LossScaleOptimizer("adam").set_weights([])


@pytest.mark.skipif(BACKEND == "tensorflow", reason="no stateless_apply there, as by Keras")
def test_stateless_apply_has_no_side_effect():
    run = Runner(keras_mp.LossScaleOptimizer(keras.optimizers.SGD(0.5, momentum=0.5)))
    optimizer = run.optimizer
    everything = [*run.variables, *optimizer.variables]
    before = snapshot(*everything)
    values = [v.value for v in optimizer.variables]
    weights = [v.value for v in run.variables]
    ones = [ops.ones(v.shape) * optimizer.loss_scale for v in run.variables]
    new, own = optimizer.stateless_apply(values, ones, weights)
    kept, skipped = optimizer.stateless_apply(own, [g * np.inf for g in ones], new)
    assert snapshot(*everything) == before
    for old, updated, same in zip(weights, new, kept, strict=True):
        np.testing.assert_array_equal(host(old) - 0.5, host(updated))
        np.testing.assert_array_equal(host(updated), host(same))
    assert float(host(own[0])) == 2.0**15 and float(host(skipped[0])) == 2.0**14
    with pytest.raises(ValueError, match=r"Received: 1 tensors"):
        optimizer.stateless_apply(values[:1], ones, weights)
    with pytest.raises(ValueError, match=r"must be built"):
        keras_mp.LossScaleOptimizer("sgd").stateless_apply([], [], [])
