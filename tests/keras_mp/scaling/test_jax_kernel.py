"""What only jax has: tracers that must not leak, compiled steps that the host does not see."""

import keras
import numpy as np
import pytest
from helpers.planting import Deep, planted_data
from helpers.stepping import BACKEND, Runner, make_gradients, make_variables, snapshot
from keras import ops

import keras_mp
from keras_mp.scaling.told import LossScaleExhaustedError

pytestmark = [
    pytest.mark.backend,
    pytest.mark.skipif(BACKEND != "jax", reason="about jax"),
]

if BACKEND == "jax":
    import jax
    import jax.numpy as jnp


def test_a_custom_loop_leaks_no_tracer():
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(1.0))
    optimizer.watch(4)
    variables = make_variables()
    optimizer.build(variables)

    def loss_fn(weights, own):
        mapping = list(zip(optimizer.variables, own, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return optimizer.scale_loss(sum(jnp.sum(w**2) for w in weights))

    @jax.jit
    def step(weights, own):
        grads = jax.grad(loss_fn)(weights, own)
        return optimizer.stateless_apply(own, grads, weights)

    weights, own = [v.value for v in variables], [v.value for v in optimizer.variables]
    with jax.checking_leaks():
        for _ in range(3):
            weights, own = step(weights, own)
    for variable, value in zip(optimizer.variables, own, strict=True):
        variable.assign(value)
    assert optimizer.applied_steps == 3
    assert [row.loss for row in optimizer.recent_steps()] == [None] * 3
    # The scale came from the step's values and not from a constant of the trace.
    assert optimizer._kernel.loss is None


@pytest.mark.parametrize("way", ["scale_loss", "loss_scale"])
def test_a_scale_that_a_compiled_step_would_keep_for_ever_is_refused(way):
    """It was a constant of the trace: later steps were scaled by it and unscaled by another."""
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(make_variables())

    def loss_fn(weight):
        if way == "scale_loss":
            return optimizer.scale_loss(jnp.sum(weight))
        return jnp.sum(weight) * optimizer.loss_scale

    with pytest.raises(ValueError, match=r"would become a constant.*StatelessScope"):
        jax.jit(jax.grad(loss_fn))(jnp.ones(2))
    # Where nothing is kept, and where the scale never changes, there is nothing to refuse.
    assert np.asarray(jax.grad(loss_fn)(jnp.ones(2))).tolist() == [2.0**15] * 2
    static = keras_mp.LossScaleOptimizer("sgd", dynamic=False, initial_scale=8.0)
    static.build(make_variables())
    gradient = jax.jit(jax.grad(lambda weight: static.scale_loss(jnp.sum(weight))))(jnp.ones(2))
    assert np.asarray(gradient).tolist() == [8.0, 8.0]


def test_apply_in_a_jit_of_the_users():
    plain, ours = (
        keras.optimizers.RMSprop(0.125),
        keras_mp.LossScaleOptimizer(keras.optimizers.RMSprop(0.125)),
    )
    results = []
    for optimizer in (plain, ours):
        variables = make_variables()
        optimizer.build(variables)
        everything = [*variables, *optimizer.variables]

        def step(values, grads, optimizer=optimizer, variables=variables, everything=everything):
            mapping = list(zip(everything, values, strict=True))
            with keras.StatelessScope(state_mapping=mapping) as scope:
                optimizer.scale_loss(ops.ones(()))
                optimizer.apply(grads, variables)
            new = [scope.get_current_value(v) for v in everything]
            return [old if n is None else n for n, old in zip(new, values, strict=True)]

        scale = ours.loss_scale if optimizer is ours else 1.0
        grads = [
            jnp.asarray(g * np.float32(scale)) for g in make_gradients(np.random.default_rng(0))
        ]
        values = [jnp.array(v.value) for v in everything]
        with jax.checking_leaks():
            values = jax.jit(step)(values, grads)
        results.append([np.asarray(v) for v in values[: len(variables)]])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_loss_seen_outside_is_no_constant_of_a_compiled_step():
    run = Runner(keras_mp.LossScaleOptimizer("rmsprop"), "graph")
    run.optimizer.watch(4)
    run.optimizer.scale_loss(ops.convert_to_tensor(7.0))  # concrete, kept for an eager step
    run.step(make_gradients(np.random.default_rng(0)))
    run.step(make_gradients(np.random.default_rng(0)))
    assert [row.loss for row in run.optimizer.recent_steps()] == [None, None]


def test_an_eager_step_records_the_loss_it_was_told():
    optimizer = keras_mp.LossScaleOptimizer("rmsprop")
    optimizer.watch(4)
    variables = make_variables()
    optimizer.build(variables)
    optimizer.scale_loss(ops.convert_to_tensor(7.0))
    optimizer.apply([ops.ones(v.shape) for v in variables], variables)
    (row,) = optimizer.recent_steps()
    assert (row.loss, row.loss_finite) == (7.0, True)


def test_the_ring_and_the_counts_travel_and_are_not_saved():
    optimizer = keras_mp.LossScaleOptimizer("rmsprop")
    optimizer.watch(4)
    run = Runner(optimizer, "graph")
    carried = optimizer._kernel.carried
    assert len(carried) == 2 and all(any(c is v for v in optimizer.variables) for c in carried)
    store: dict[str, np.ndarray] = {}
    optimizer.save_own_variables(store)
    assert len(store) == len(optimizer.inner_optimizer.variables)
    rng = np.random.default_rng(0)
    for bad in (None, np.inf, None, np.nan, np.nan):
        run.step(make_gradients(rng), bad, np.random.default_rng(1))
    often, first, last = optimizer._kernel.overflow_counts()
    assert (often.sum(), often.max()) == (3, 3)
    assert (first.max(), last.max()) == (2, 5)
    report = optimizer.overflow_report()
    assert report.skipped == 3 and report.variables[0].count == 3


@pytest.mark.parametrize("attribution", [True, False])
def test_without_attribution_no_variable_is_watched(attribution):
    optimizer = keras_mp.LossScaleOptimizer("rmsprop", attribution=attribution)
    optimizer.watch(4)
    run = Runner(optimizer, "graph")
    run.step(make_gradients(np.random.default_rng(0)), np.inf)
    (row,) = optimizer.recent_steps()
    assert bool(row.nonfinite) == attribution
    assert bool(optimizer.overflow_report().variables) == attribution


def test_a_lost_run_can_end_a_compiled_training():
    run = Runner(
        keras_mp.LossScaleOptimizer("sgd", "deepspeed", initial_scale=2.0, hysteresis=1), "graph"
    )
    gradients = make_gradients(np.random.default_rng(0))
    before = snapshot(*run.variables)
    run.step(gradients, np.inf)
    with pytest.raises(Exception, match="Nothing trains"):
        for _ in range(3):
            run.step(gradients, np.inf)
            jax.effects_barrier()
    assert snapshot(*run.variables) == before


def test_a_compiled_training_that_is_lost_is_said_at_the_next_look():
    run = Runner(keras_mp.LossScaleOptimizer("sgd", scale=8.0), "graph")
    run.optimizer.watch(4)
    gradients = make_gradients(np.random.default_rng(0))
    for _ in range(3):
        run.step(gradients, np.nan)
    with pytest.warns(RuntimeWarning, match="Nothing trains: 3 steps in a row"):
        run.optimizer.recent_steps()
    run.step(gradients, np.nan)
    run.optimizer.recent_steps()  # said once a run
    run.step(gradients)
    for _ in range(3):
        run.step(gradients, np.nan)
    with pytest.warns(RuntimeWarning, match="Nothing trains"):
        run.optimizer.recent_steps()


class Net(keras_mp.GuardedTrainStep, keras.Sequential):
    pass


@pytest.mark.parametrize("model_class", [Net, keras.Sequential])
def test_a_fit_that_trains_nothing_is_said(model_class, monkeypatch):
    monkeypatch.setattr("keras_mp.scaling.jax_training.LOOK_EVERY", 4)
    model = model_class([keras.Input((2,)), keras.layers.Dense(1, name="head")])
    model.compile(keras_mp.LossScaleOptimizer("sgd", scale=8.0), "mse")
    seen_at = []
    x, y = np.ones((16, 2), "float32"), np.full((16, 1), np.inf, "float32")

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            said = model.optimizer._kernel.teller.said
            seen_at.append("exhausted" in said)

    with pytest.warns(RuntimeWarning, match="Nothing trains.*'sequential/head'|'net/head'"):
        model.fit(x, y, batch_size=2, verbose=0, callbacks=[Watch()])
    if model_class is Net:
        assert seen_at == [False] * 3 + [True] * 5
    else:  # at the end: nothing of ours runs on the host before
        assert not any(seen_at)


def test_a_fit_that_was_to_end_does_so_with_our_error_and_names_the_layer():
    model = Deep()
    optimizer = keras_mp.LossScaleOptimizer("sgd", scale=8.0, on_exhausted="raise", model=model)
    model.compile(optimizer, "mse")
    x, y = planted_data(0, size=32)  # each batch overflows behind the first layer
    with pytest.raises(LossScaleExhaustedError, match=r"Nothing trains: 3 .*'deep/first'"):
        model.fit(x, y, batch_size=2, verbose=0)
