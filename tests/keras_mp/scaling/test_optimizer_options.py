"""The inner optimizer's options under the wrapper: as without it, and skipped steps leave no trace.

RMSprop is none of the fused optimizers, so that equality can be asked for it everywhere.
"""

import warnings

import keras
import numpy as np
import pytest
from helpers.stepping import BACKEND, Runner, apply, host, make_gradients, snapshot
from keras import ops

import keras_mp

pytestmark = pytest.mark.backend

OPTIONS = {
    "clipnorm": {"clipnorm": 0.5},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.25},
    "weight_decay": {"weight_decay": 0.125},
    "ema": {"use_ema": True, "ema_momentum": 0.5},
    "ema_overwrite": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
    "accumulation": {"gradient_accumulation_steps": 3},
    "accumulation_clip": {"gradient_accumulation_steps": 2, "clipnorm": 0.5},
    "accumulation_ema": {"gradient_accumulation_steps": 2, "use_ema": True, "ema_momentum": 0.5},
}


@pytest.mark.parametrize("inner", ["RMSprop", "Adam"])
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_works_as_without_the_wrapper(option, inner):
    make = getattr(keras.optimizers, inner)
    how = "quick" if "accumulation" in option else "eager"
    plain = Runner(make(0.125, **OPTIONS[option]), how)
    ours = keras_mp.LossScaleOptimizer(make(0.125, **OPTIONS[option]), growth_interval=2)
    ours = Runner(ours, how)
    rng = np.random.default_rng(1)
    # Decay alone leaves Adam on the fused path, which computes 1 - beta_2**t with more digits.
    # Two compiled functions may round differently.
    exact = ours.how == "eager" and (
        BACKEND == "jax" or (inner, option) != ("Adam", "weight_decay")
    )
    for step in range(10):
        gradients = make_gradients(rng)
        if step % 3 == 1:
            everything = [*ours.variables, *ours.optimizer.inner_optimizer.variables]
            before = snapshot(*everything)
            ours.step(gradients, np.inf)
            assert snapshot(*everything) == before
            continue
        plain.step(gradients)
        ours.step(gradients)
        both = zip(
            [*plain.variables, *plain.optimizer.variables],
            [*ours.variables, *ours.optimizer.inner_optimizer.variables],
            strict=True,
        )
        for one, other in both:
            if exact:
                np.testing.assert_array_equal(host(one), host(other))
            else:
                np.testing.assert_allclose(host(one), host(other), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "option", [{"clipnorm": 1.0}, {"global_clipnorm": 1.0}, {"clipvalue": 1.0}], ids=str
)
def test_clipping_sees_unscaled_gradients(option):
    run = Runner(keras_mp.LossScaleOptimizer(keras.optimizers.SGD(1.0, **option)), shapes=((1,),))
    before = host(run.variables[0])
    run.step([np.array([0.5], "float32")])
    np.testing.assert_allclose(before - host(run.variables[0]), 0.5)
    run.step([np.array([4.0], "float32")])
    np.testing.assert_allclose(before - host(run.variables[0]), 1.5)


# Gradient accumulation.


def test_a_bad_micro_batch_is_left_out_of_the_mean():
    inner = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    run = Runner(keras_mp.LossScaleOptimizer(inner), "quick", shapes=((1,),))
    before = host(run.variables[0])
    one = np.ones(1, "float32")
    run.step(one[None])
    run.step(one[None], np.inf)
    run.step(3 * one[None])  # under another scale than the first
    np.testing.assert_array_equal(host(run.variables[0]), before - 2.0)
    assert int(host(run.optimizer.iterations)) == 1
    assert (run.optimizer.applied_steps, run.optimizer.skipped_steps) == (2, 1)


def test_growth_counts_updates_and_not_micro_batches():
    inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
    run = Runner(keras_mp.LossScaleOptimizer(inner, growth_interval=2), "quick")
    scales = []
    for _ in range(12):
        run.step(make_gradients(np.random.default_rng(0)))
        scales.append(run.optimizer.loss_scale / 2.0**15)
    assert scales == [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 4]


def test_the_preset_keras_counts_micro_batches_as_keras_does():
    inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
    run = Runner(keras_mp.LossScaleOptimizer(inner, "keras", growth_interval=2), "quick")
    scales = []
    for _ in range(6):
        run.step(make_gradients(np.random.default_rng(0)))
        scales.append(run.optimizer.loss_scale / 2.0**15)
    assert scales == [1, 2, 2, 4, 4, 8]


# The learning rate.


def test_a_schedule_counts_applied_steps():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1, 2], [1.0, 0.5, 0.25])
    run = Runner(keras_mp.LossScaleOptimizer(keras.optimizers.SGD(schedule)), shapes=((1,),))
    moves = []
    for bad in (None, np.inf, np.nan, None, np.inf, None, None):
        before = host(run.variables[0])
        run.step(np.ones((1, 1), "float32"), bad)
        moves.append(round(float((before - host(run.variables[0]))[0]), 5))
    assert moves == [1.0, 0.0, 0.0, 1.0, 0.0, 0.5, 0.25]
    with pytest.raises(TypeError, match="LearningRateSchedule"):
        run.optimizer.learning_rate = 0.5


def tiny_model(**kwargs):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(0.125))
    model.compile(optimizer=optimizer, loss="mse", **kwargs)
    return model, optimizer


def test_callbacks_set_the_learning_rate():
    model, optimizer = tiny_model()
    x, y = np.zeros((8, 4), "float32"), np.zeros((8, 1), "float32")
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1.0)
    history = model.fit(x, y, epochs=4, verbose=0, callbacks=[plateau]).history
    assert history["learning_rate"][0] == 0.125
    assert float(host(optimizer.learning_rate)) < 0.125
    assert float(host(optimizer.inner_optimizer.learning_rate)) < 0.125
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.0625)
    model.fit(x, y, verbose=0, callbacks=[schedule])
    assert float(host(optimizer.learning_rate)) == 0.0625


def test_fit_trains_as_with_the_plain_optimizer():
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    histories = []
    for wrapped in (True, False):
        model, optimizer = tiny_model()
        if not wrapped:
            model.compile(optimizer=keras.optimizers.SGD(0.125), loss="mse")
        histories.append(
            model.fit(x, y, epochs=3, batch_size=8, shuffle=False, verbose=0).history["loss"]
        )
        if wrapped:
            assert (optimizer.applied_steps, optimizer.skipped_steps) == (12, 0)
    np.testing.assert_allclose(histories[0], histories[1], rtol=1e-5)


# Gradients that are not there.


def test_none_gradients_leave_their_variables_and_are_said_as_by_keras():
    plain = Runner(keras.optimizers.RMSprop(0.125))
    ours = Runner(keras_mp.LossScaleOptimizer(keras.optimizers.RMSprop(0.125)))
    ours.optimizer.watch(4)
    gradients = make_gradients(np.random.default_rng(0))
    before = snapshot(ours.variables[1])
    for run, scale in ((plain, 1.0), (ours, ours.optimizer.loss_scale)):
        tensors = [ops.convert_to_tensor(g * np.float32(scale)) for g in gradients]
        tensors[1] = None
        with pytest.warns(UserWarning, match="Gradients do not exist for variables"):
            apply(run.optimizer, tensors, run.variables)
    assert snapshot(ours.variables[1]) == before
    assert snapshot(*plain.variables) == snapshot(*ours.variables)


def test_an_overflow_beside_a_none_gradient_is_skipped():
    run = Runner(keras_mp.LossScaleOptimizer("rmsprop"))
    run.optimizer.watch(4)
    before = snapshot(*run.variables)
    gradients = [None, ops.ones((2, 2)) * np.inf, ops.ones(4)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Gradients do not exist")
        apply(run.optimizer, gradients, run.variables)
    assert snapshot(*run.variables) == before
    (row,) = run.optimizer.recent_steps()
    assert row.nonfinite == (1,)


def test_no_gradient_at_all_is_an_error_as_by_keras():
    run = Runner(keras_mp.LossScaleOptimizer("rmsprop"))
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        apply(run.optimizer, [None, None, None], run.variables)
    assert run.optimizer.applied_steps == run.optimizer.skipped_steps == 0


def test_a_variable_without_elements_is_no_overflow():
    run = Runner(keras_mp.LossScaleOptimizer("rmsprop"), shapes=((0,), (2,)))
    run.optimizer.watch(4)
    run.step([np.zeros(0, "float32"), np.ones(2, "float32")])
    assert run.optimizer.last_step_finite is True


def test_a_variable_that_takes_its_gradient_as_its_value_is_not_unscaled():
    variables = [keras.Variable([1.0]), keras.Variable([3.0])]
    variables[1].overwrite_with_gradient = True
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.RMSprop(0.125))
    optimizer.build(variables)
    apply(optimizer, [ops.ones(1) * optimizer.loss_scale, ops.ones(1) * 7.0], variables)
    assert host(variables[1]).tolist() == [7.0]
    assert host(variables[0])[0] < 1.0


@pytest.mark.parametrize("policy", ["float32", "bfloat16"])
def test_training_goes_on_from_the_averages_that_a_fit_ended_with(policy):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, dtype=policy)])
    inner = keras.optimizers.SGD(0.125, use_ema=True, ema_momentum=0.5)
    optimizer = keras_mp.LossScaleOptimizer(inner)
    model.compile(optimizer, loss="mse")
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    ends = []
    for _ in range(2):
        model.fit(x, y, batch_size=4, verbose=0)
        ends.append(snapshot(*model.weights))
    assert ends[0] != ends[1]
    assert (optimizer.applied_steps, optimizer.skipped_steps) == (4, 0)


# Layers frozen and unfrozen.


def two_layers():
    keras.config.set_dtype_policy("mixed_float16")
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, name="one"), keras.layers.Dense(1, name="two")]
    )


def test_freezing_a_layer_keeps_the_scale_or_is_refused_with_a_way_on():
    model = two_layers()
    optimizer = keras_mp.LossScaleOptimizer(
        keras.optimizers.SGD(0.125), initial_scale=8.0, growth_interval=2
    )
    model.compile(optimizer=optimizer, loss="mse")
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    fit = {"batch_size": 4, "verbose": 0}
    model.fit(x, y, **fit)
    assert optimizer.loss_scale == 16.0
    frozen = model.layers[0]
    frozen.trainable = False
    model.compile(optimizer=optimizer, loss="mse")
    before, moving = snapshot(*frozen.weights), snapshot(*model.layers[1].weights)
    if BACKEND == "jax":
        # Keras' own optimizers cannot step a part of their variables there.
        with pytest.raises(ValueError, match=r"built with 4 variables.*Received: 2"):
            model.fit(x, y, **fit)
    else:
        model.fit(x, y, **fit)
        assert optimizer.loss_scale == 32.0
        assert snapshot(*frozen.weights) == before
        assert snapshot(*model.layers[1].weights) != moving
        frozen.trainable = True
        model.compile(optimizer=optimizer, loss="mse")
        model.fit(x, y, **fit)
        assert optimizer.loss_scale == 64.0
        assert snapshot(*frozen.weights) != before


def test_unfreezing_variables_that_the_optimizer_never_saw_is_refused():
    model = two_layers()
    model.layers[0].trainable = False
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(0.125))
    model.compile(optimizer=optimizer, loss="mse")
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    model.fit(x, y, verbose=0)
    model.layers[0].trainable = True
    model.compile(optimizer=optimizer, loss="mse")
    with pytest.raises(ValueError, match=r"(?s)built with|Unknown variable"):
        model.fit(x, y, verbose=0)


def test_an_optimizer_that_was_built_without_some_variables_is_not_wrapped():
    inner, variables = keras.optimizers.Adam(0.125), [keras.Variable([1.0]), keras.Variable([2.0])]
    inner.build(variables[:1])
    optimizer = keras_mp.LossScaleOptimizer(inner)
    with pytest.raises(ValueError, match=r"no slots for '\w+'. After layers were frozen"):
        optimizer.build(variables)


# Several optimizers in one.


def multi():
    from keras.optimizers import MultiOptimizer, OptimizerMap

    optimizers = OptimizerMap(keras.optimizers.RMSprop(0.125))
    optimizers["w1"] = keras.optimizers.Adagrad(0.5)
    return MultiOptimizer(optimizers)


def test_multi_optimizer_works_inside():
    plain, ours = Runner(multi()), Runner(keras_mp.LossScaleOptimizer(multi(), growth_interval=2))
    rng = np.random.default_rng(1)
    for step in range(8):
        gradients = make_gradients(rng)
        everything = [*ours.variables, *ours.optimizer.inner_optimizer.variables]
        before = snapshot(*everything)
        ours.step(gradients, np.inf if step % 3 == 1 else None)
        if step % 3 == 1:
            assert snapshot(*everything) == before
        else:
            plain.step(gradients)
            assert snapshot(*plain.variables) == snapshot(*ours.variables)
    assert ours.optimizer.applied_steps == 5 and ours.optimizer.skipped_steps == 3
    assert int(host(ours.optimizer.iterations)) == 5


def test_multi_optimizer_refuses_the_wrapper_inside_as_keras_wrapper():
    from keras.optimizers import MultiOptimizer, OptimizerMap

    optimizer = MultiOptimizer(OptimizerMap(keras_mp.LossScaleOptimizer("sgd")))
    with pytest.raises(ValueError, match="LossScaleOptimizer cannot be used inside"):
        optimizer.build([keras.Variable([1.0])])


def test_multi_optimizer_with_accumulation_inside_is_refused_at_build():
    from keras.optimizers import MultiOptimizer, OptimizerMap

    inner = MultiOptimizer(OptimizerMap(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)))
    optimizer = keras_mp.LossScaleOptimizer(inner)
    with pytest.raises(
        ValueError, match=r"`gradient_accumulation_steps` of .* in a MultiOptimizer"
    ):
        optimizer.build([keras.Variable([1.0])])


def test_multi_optimizer_with_a_fixed_scale_inside_is_taken_over():
    from keras.optimizers import MultiOptimizer, OptimizerMap

    inner = MultiOptimizer(OptimizerMap(keras.optimizers.SGD(1.0)), loss_scale_factor=256.0)
    with pytest.warns(UserWarning, match="becomes the wrapper's static scale"):
        optimizer = keras_mp.LossScaleOptimizer(inner)
    variable = keras.Variable([1.0])
    optimizer.build([variable])
    apply(optimizer, [ops.ones(1) * 256.0], [variable])
    assert host(variable).tolist() == [0.0]
