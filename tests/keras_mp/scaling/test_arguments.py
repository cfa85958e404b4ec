"""The wrapper's arguments, Keras' and tf.keras' names for them, and what is refused."""

import inspect

import keras
import numpy as np
import pytest
from helpers.stepping import Runner, apply, host, make_gradients
from keras import ops

import keras_mp

pytestmark = pytest.mark.backend


# The names of tf.keras.


def test_the_names_of_tf_keras():
    optimizer = keras_mp.LossScaleOptimizer(
        keras.optimizers.SGD(1.0), dynamic=True, initial_scale=64, dynamic_growth_steps=3
    )
    assert optimizer.dynamic and optimizer.dynamic_growth_steps == 3
    assert optimizer.initial_scale == optimizer.loss_scale == 64.0
    variable = keras.Variable([1.0, 1.0])
    optimizer.build([variable])
    assert int(host(optimizer.dynamic_counter)) == 0
    loss = optimizer.get_scaled_loss(ops.convert_to_tensor(2.0))
    assert float(host(loss)) == 128.0
    gradient, nothing = optimizer.get_unscaled_gradients([ops.ones(2) * 64.0, None])
    assert host(gradient).tolist() == [1.0, 1.0] and nothing is None


def test_a_static_scale_in_the_words_of_tf_keras():
    optimizer = keras_mp.LossScaleOptimizer("sgd", dynamic=False, initial_scale=256)
    run = Runner(optimizer)
    assert not optimizer.dynamic and optimizer.dynamic_counter is None
    run.step(make_gradients(np.random.default_rng(0)), np.inf)
    assert optimizer.loss_scale == 256.0 and optimizer.skipped_steps == 1


def test_keras_names_are_variables_of_the_state():
    run = Runner(keras_mp.LossScaleOptimizer("sgd"))
    assert float(host(run.optimizer.dynamic_scale)) == 2.0**15
    assert int(host(run.optimizer.step_counter)) == 0
    with pytest.raises(AttributeError, match="once the optimizer is built"):
        _ = keras_mp.LossScaleOptimizer("sgd").dynamic_scale


# Arguments.


@pytest.mark.parametrize(
    "kwargs",
    [
        {"initial_scale": 0.0},
        {"initial_scale": -4.0},
        {"initial_scale": float("nan")},
        {"growth_interval": 0},
        {"dynamic_growth_steps": 0},
        {"dynamic_growth_steps": -3},
        {"growth_factor": 0.5},
        {"backoff_factor": 2.0},
        {"hysteresis": 0},
        {"min_scale": 4.0, "max_scale": 2.0},
        {"on_exhausted": "shout"},
        {"scale": "fast"},
        {"growth_interval": 3, "dynamic_growth_steps": 4},
        {"clipnorm": 1.0},
        {"unknown": 1},
    ],
    ids=str,
)
def test_nonsense_is_refused(kwargs):
    with pytest.raises((ValueError, TypeError)) as error:
        keras_mp.LossScaleOptimizer("sgd", **kwargs)
    assert any(name in str(error.value) for name in (*kwargs, "growth_interval"))


@pytest.mark.parametrize("inner", [3, None, object()])
def test_what_is_no_optimizer_is_refused(inner):
    with pytest.raises((ValueError, TypeError)):
        keras_mp.LossScaleOptimizer(inner)


def test_an_inner_optimizer_by_name_config_or_instance():
    config = keras.optimizers.serialize(keras.optimizers.AdamW(0.25))
    for inner in ("adamw", config, keras.optimizers.AdamW()):
        optimizer = keras_mp.LossScaleOptimizer(inner)
        assert isinstance(optimizer.inner_optimizer, keras.optimizers.AdamW)
    assert float(host(keras_mp.LossScaleOptimizer(config).learning_rate)) == 0.25


def test_every_argument_survives_the_config():
    arguments = {
        "scale": "megatron",
        "initial_scale": 256.0,
        "growth_interval": 7,
        "growth_factor": 4.0,
        "backoff_factor": 0.25,
        "hysteresis": 3,
        "min_scale": 2.0,
        "max_scale": 512.0,
        "on_exhausted": "continue",
        "attribution": False,
        "name": "mine",
    }
    known = set(inspect.signature(keras_mp.LossScaleOptimizer.__init__).parameters)
    aliases = {"dynamic", "dynamic_growth_steps", "kwargs", "self", "inner_optimizer"}
    assert known - aliases - {*arguments} <= {"master_weights", "model"}
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(0.25), **arguments)
    twin = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(twin) is type(optimizer)
    assert (twin.config, twin.preset) == (optimizer.config, optimizer.preset)
    assert (twin.name, twin.attribution) == ("mine", False)
    assert twin.inner_optimizer.get_config() == optimizer.inner_optimizer.get_config()


@pytest.mark.parametrize(
    "arguments",
    [
        {"attribution": "no"},
        {"attribution": None},
        {"master_weights": 1},
        {"dynamic": "False"},
        {"dynamic": True, "scale": 8.0},
        {"dynamic": False, "scale": "torch"},
        {"scale": -1},
        {"scale": np.ones(2)},
        {"inner_optimizer": "adamm"},
        {"inner_optimizer": keras.optimizers.Adam},
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_an_argument_that_means_nothing_is_refused_by_name(arguments):
    arguments = {"inner_optimizer": "sgd", **arguments}
    with pytest.raises((TypeError, ValueError)) as error:
        keras_mp.LossScaleOptimizer(**arguments)
    name = "dynamic" if "dynamic" in arguments else list(arguments)[-1]
    assert f"`{name}`" in str(error.value) and f"Received: {name}=" in str(error.value)


# One scale only.


@pytest.mark.parametrize(
    "outer", [keras_mp.LossScaleOptimizer, keras.optimizers.LossScaleOptimizer]
)
def test_a_second_wrapper_takes_the_place_of_the_first(outer):
    inner = keras.optimizers.SGD(1.0)
    with pytest.warns(UserWarning, match="wrapped in a LossScaleOptimizer already"):
        optimizer = keras_mp.LossScaleOptimizer(outer(inner))
    assert optimizer.inner_optimizer is inner
    variable = keras.Variable([1.0])
    optimizer.build([variable])
    scaled = optimizer.scale_loss(ops.ones(()))
    optimizer.apply([ops.reshape(scaled, (1,))], [variable])
    assert host(variable).tolist() == [0.0]


def test_compile_does_not_wrap_it_again():
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras_mp.LossScaleOptimizer("sgd")
    model.compile(optimizer, "mse")
    assert model.optimizer is optimizer


def test_a_fixed_scale_inside_becomes_the_wrappers_static_scale():
    inner = keras.optimizers.SGD(1.0, loss_scale_factor=1024.0)
    with pytest.warns(UserWarning, match=r"`loss_scale_factor` of 1024.0 becomes"):
        optimizer = keras_mp.LossScaleOptimizer(inner)
    assert optimizer.loss_scale == 1024.0 and not optimizer.dynamic
    variable = keras.Variable([1.0])
    optimizer.build([variable])
    scaled = optimizer.scale_loss(ops.ones(()))
    assert float(host(scaled)) == 1024.0
    optimizer.apply([ops.reshape(scaled, (1,))], [variable])
    assert host(variable).tolist() == [0.0]
    apply(optimizer, [ops.ones(1) * np.inf], [variable])
    assert host(variable).tolist() == [0.0] and optimizer.loss_scale == 1024.0


def test_a_fixed_scale_inside_and_another_outside_is_refused():
    inner = keras.optimizers.SGD(1.0, loss_scale_factor=1024.0)
    with pytest.raises(ValueError, match=r"scale=8.0, inner_optimizer.loss_scale_factor=1024.0"):
        keras_mp.LossScaleOptimizer(inner, scale=8.0)
    assert inner.loss_scale_factor == 1024.0


def test_a_fixed_scale_cannot_be_set_on_the_wrapper():
    wrapper = keras_mp.LossScaleOptimizer("adamw")
    assert wrapper.loss_scale_factor is None
    with pytest.raises(ValueError, match="`scale` of LossScaleOptimizer"):
        wrapper.loss_scale_factor = 8.0


def test_a_fixed_scale_set_inside_later_does_not_divide_twice():
    inner = keras.optimizers.SGD(1.0)
    optimizer = keras_mp.LossScaleOptimizer(inner)
    variable = keras.Variable([1.0])
    optimizer.build([variable])
    inner.loss_scale_factor = 1024.0
    with pytest.raises(ValueError, match="`loss_scale_factor`"):
        apply(optimizer, [ops.ones(1) * optimizer.loss_scale], [variable])
    assert host(variable).tolist() == [1.0]
