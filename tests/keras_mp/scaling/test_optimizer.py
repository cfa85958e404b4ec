"""LossScaleOptimizer on the current backend, against the state machine and the plain optimizer.

Scales are powers of two and the gradients have few bits, so equality is asked and not closeness.
"""

import warnings
from dataclasses import replace

import keras
import numpy as np
import pytest
from helpers.stepping import BACKEND, Runner, apply, follow, host, make_gradients, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import keras_mp
from keras_mp.scaling.device_state import Values, advance
from keras_mp.scaling.presets import PRESETS
from keras_mp.scaling.state import COUNTER_MAX, ScaleConfig, ScaleState

pytestmark = pytest.mark.backend

WAYS = {
    "torch": ["eager", "stateless"],
    "tensorflow": ["eager", "graph"],
    "jax": ["eager", "stateless", "graph"],
}[BACKEND]

# The optimizers whose update runs fused: within rounding of Keras' own, not bit for bit.
FUSED = {"Adam", "AdamW", "SGD"} if BACKEND in ("torch", "tensorflow") else set()

OPTIMIZERS = {
    name: getattr(keras.optimizers, name)
    for name in dir(keras.optimizers)
    if isinstance(getattr(keras.optimizers, name), type)
    and issubclass(getattr(keras.optimizers, name), keras.optimizers.Optimizer)
    and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
}

BAD = (np.inf, -np.inf, np.nan)


def runs(seed, steps=40):
    """Random steps: (true gradients, None or what is wrong with them)."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        bad = BAD[rng.integers(3)] if rng.random() < 0.3 else None
        yield make_gradients(rng), bad


# Every field of the state, after every step, equals the reference's.


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("preset", PRESETS)
def test_the_state_is_the_references_after_every_step(preset, how):
    config = replace(PRESETS[preset], growth_interval=3, on_exhausted="continue")
    run = Runner(keras_mp.LossScaleOptimizer("rmsprop", scale=config), how)
    expected = ScaleState.initial(config)
    assert run.state == expected
    rng = np.random.default_rng(1)
    for gradients, bad in runs(seed=len(preset), steps=25):
        run.step(gradients, bad, rng)
        expected = follow(expected, bad is None, config)
        assert run.state == expected


@pytest.mark.parametrize(
    "config",
    [
        ScaleConfig(initial_scale=4.0, min_scale=1.0, max_scale=16.0, growth_interval=1),
        ScaleConfig(initial_scale=2.0**24, growth_interval=2, hysteresis=3),
        ScaleConfig(hysteresis=2, hysteresis_refill="finite", growth_interval=2),
        ScaleConfig(growth_factor=2.0**10, backoff_factor=2.0**-6, growth_interval=2),
        ScaleConfig(growth_factor=1.5, backoff_factor=0.7, growth_interval=2),
        ScaleConfig(growth_factor=1.0, backoff_factor=1.0, growth_interval=1),
        ScaleConfig(dynamic=False, initial_scale=128.0),
        ScaleConfig(initial_scale=2.0**-126, min_scale=2.0**-126, max_scale=2.0**126),
        ScaleConfig(initial_scale=2.0**126, min_scale=2.0**-126, max_scale=2.0**126),
    ],
    ids=lambda config: f"{config.initial_scale:g}-{config.growth_factor:g}-{config.hysteresis}",
)
def test_the_state_is_the_references_under_other_settings(config):
    config = replace(config, on_exhausted="continue")
    run = Runner(keras_mp.LossScaleOptimizer("rmsprop", scale=config))
    tiny = [np.full((3,), 2.0**-20, "float32"), np.zeros((2, 2), "float32"), np.zeros(4, "float32")]
    expected = ScaleState.initial(config)
    for _, bad in runs(seed=5, steps=25):
        run.step(tiny, bad)
        expected = follow(expected, bad is None, config)
        assert run.state == expected


STATES = st.builds(
    ScaleState,
    scale=st.integers(-14, 24).map(lambda e: 2.0**e),
    good_steps=st.sampled_from([-1, 0, 1, 2, 3, 500]),
    hysteresis_left=st.integers(0, 3),
    skipped=st.sampled_from([0, 7, COUNTER_MAX - 1, COUNTER_MAX]),
    applied=st.sampled_from([0, 7, COUNTER_MAX - 1, COUNTER_MAX]),
    consecutive_skips=st.sampled_from([0, 2, COUNTER_MAX - 1, COUNTER_MAX]),
)


@settings(deadline=None, max_examples=60)
@given(STATES, st.booleans(), st.booleans(), st.sampled_from(sorted(PRESETS)))
def test_advance_is_the_reference_from_any_state(state, finite, updated, preset):
    config = replace(PRESETS[preset], growth_interval=3)
    state = replace(state, hysteresis_left=min(state.hysteresis_left, config.hysteresis))
    if config.hysteresis == 1 or not config.dynamic:  # the counter has nothing to count there
        state = replace(state, hysteresis_left=config.hysteresis)
    counters = [state.hysteresis_left, state.skipped, state.applied, state.consecutive_skips]
    values = Values(
        ops.convert_to_tensor(np.float32(state.scale)),
        ops.convert_to_tensor(np.int32(state.good_steps)),
        ops.convert_to_tensor(np.array(counters, "int32")),
        ops.convert_to_tensor(np.array([config.min_scale, config.max_scale], "float32")),
    )
    after = advance(values, ops.convert_to_tensor(finite), updated, config)
    expected = follow(state, finite, config, updated=updated)
    assert float(host(after.scale)) == expected.scale
    assert int(host(after.good_steps)) == expected.good_steps
    left, skipped, applied, run = (int(c) for c in host(after.counters))
    assert (skipped, applied, run) == (
        expected.skipped,
        expected.applied,
        expected.consecutive_skips,
    )
    if config.hysteresis > 1:
        assert left == expected.hysteresis_left


# A clean step is the plain optimizer's step; a skipped one is none.


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_steps_as_it_does_alone_and_skips_without_a_trace(name):
    plain = Runner(OPTIMIZERS[name]())
    ours = Runner(keras_mp.LossScaleOptimizer(OPTIMIZERS[name](), growth_interval=3))
    for gradients, bad in runs(seed=3, steps=14):
        before = snapshot(*ours.variables, *ours.optimizer.inner_optimizer.variables)
        ours.step(gradients, bad)
        if bad is not None:
            after = snapshot(*ours.variables, *ours.optimizer.inner_optimizer.variables)
            assert after == before
            continue
        plain.step(gradients)
        if name in FUSED:
            for one, other in zip(plain.variables, ours.variables, strict=True):
                np.testing.assert_allclose(host(one), host(other), rtol=1e-6, atol=1e-7)
        else:
            assert snapshot(*plain.variables) == snapshot(*ours.variables)
    iterations = host(plain.optimizer.iterations)
    assert iterations == host(ours.optimizer.iterations) == ours.optimizer.applied_steps
    assert 0 < ours.optimizer.skipped_steps == 14 - iterations


@pytest.mark.parametrize("how", WAYS)
def test_a_graph_steps_as_the_plain_optimizers_graph(how):
    plain = Runner(keras.optimizers.RMSprop(0.125), how)
    ours = Runner(keras_mp.LossScaleOptimizer(keras.optimizers.RMSprop(0.125)), how)
    for gradients, bad in runs(seed=4, steps=12):
        ours.step(gradients, bad)
        if bad is None:
            plain.step(gradients)
    for one, other in zip(plain.variables, ours.variables, strict=True):
        np.testing.assert_allclose(host(one), host(other), rtol=1e-6)
    assert host(plain.optimizer.iterations) == ours.optimizer.applied_steps < 12


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", range(3))
def test_one_bad_element_anywhere_skips_the_step(bad, where):
    run = Runner(keras_mp.LossScaleOptimizer("rmsprop"))
    gradients = make_gradients(np.random.default_rng(0))
    gradients[where].reshape(-1)[-1] = bad
    before = snapshot(*run.variables)
    run.step(gradients)
    assert snapshot(*run.variables) == before
    assert run.optimizer.last_step_finite is False


def test_large_finite_gradients_are_no_overflow():
    # Their squares overflow float32: a check by norms would skip this step.
    config = ScaleConfig(dynamic=False, initial_scale=1.0)
    run = Runner(keras_mp.LossScaleOptimizer("rmsprop", scale=config))
    run.optimizer.watch(4)
    gradients = [np.full(v.shape, 1e30, "float32") for v in run.variables]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the plain optimizer squares it and warns on some backends
        run.step(gradients)
    assert run.optimizer.last_step_finite is True
    (row,) = run.optimizer.recent_steps()
    assert row.finite and row.nonfinite == ()


@pytest.mark.parametrize("how", WAYS)
def test_half_precision_gradients_are_unscaled_in_float32(how):
    # 2**-24 is float16's smallest number: its quotient by the scale is none.
    run = Runner(keras_mp.LossScaleOptimizer(keras.optimizers.SGD(1.0)), how, shapes=[(1,)])
    run.variables[0].assign([0.0])
    run.give([ops.convert_to_tensor([2.0**-24], "float16")])
    assert host(run.variables[0]).tolist() == [-(2.0**-39)]


def test_half_precision_variables_without_masters_accumulate_as_without_the_wrapper():
    results = []
    for wrapped in (True, False):
        optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
        if wrapped:
            optimizer = keras_mp.LossScaleOptimizer(optimizer, scale=4.0, master_weights=False)
        variable = keras.Variable([1.0, 2.0], dtype="float16")
        optimizer.build([variable])
        for gradient in ([0.5, 1.0], [0.25, -3.0]):
            gradient = np.array(gradient, "float16") * (4 if wrapped else 1)
            optimizer.scale_loss(ops.ones(()))
            optimizer.apply([ops.convert_to_tensor(gradient)], [variable])
        results.append(host(variable).tolist())
    assert results == [[0.625, 3.0]] * 2


def test_the_gradients_given_are_left_as_they_were():
    run = Runner(keras_mp.LossScaleOptimizer("rmsprop"))
    for value in (1.0, np.inf):
        gradients = [
            ops.convert_to_tensor(np.full(v.shape, value, "float32")) for v in run.variables
        ]
        before = snapshot(*gradients)
        apply(run.optimizer, gradients, run.variables)
        assert snapshot(*gradients) == before


def test_gradients_are_divided_by_the_scale_they_were_computed_with():
    # Also by the step that grows the scale: dividing by the new one would halve that update.
    run = Runner(keras_mp.LossScaleOptimizer(keras.optimizers.SGD(1.0), growth_interval=1))
    for _ in range(3):
        before = [host(v) for v in run.variables]
        run.step([np.ones(v.shape, "float32") for v in run.variables])
        for old, new in zip(before, run.variables, strict=True):
            np.testing.assert_allclose(old - host(new), 1.0, rtol=1e-6)
    assert run.optimizer.loss_scale == 2.0**18


def test_part_of_the_variables_may_be_given_in_any_order():
    plain, ours = (
        Runner(keras.optimizers.RMSprop(0.125)),
        Runner(keras_mp.LossScaleOptimizer(keras.optimizers.RMSprop(0.125))),
    )
    gradients = make_gradients(np.random.default_rng(0))
    for order in ([2, 0], [1], [1, 2, 0]):
        for run, scale in ((plain, 1.0), (ours, ours.optimizer.loss_scale)):
            apply(
                run.optimizer,
                [ops.convert_to_tensor(gradients[i] * np.float32(scale)) for i in order],
                [run.variables[i] for i in order],
            )
        assert snapshot(*plain.variables) == snapshot(*ours.variables)
    assert ours.optimizer.applied_steps == 3


# What the host is told.


def test_the_host_sees_the_scale_and_the_steps():
    optimizer = keras_mp.LossScaleOptimizer("rmsprop", initial_scale=64.0)
    assert (optimizer.loss_scale, optimizer.skipped_steps, optimizer.applied_steps) == (64.0, 0, 0)
    assert optimizer.last_step_finite is None
    run = Runner(optimizer)
    assert optimizer.last_step_finite is None
    gradients = make_gradients(np.random.default_rng(0))
    run.step(gradients)
    assert (optimizer.last_step_finite, optimizer.applied_steps) == (True, 1)
    run.step(gradients, np.nan)
    assert (optimizer.last_step_finite, optimizer.skipped_steps) == (False, 1)
    assert optimizer.loss_scale == 32.0


@pytest.mark.parametrize("how", WAYS)
def test_the_ring_holds_the_last_steps(how):
    if how == "stateless" and BACKEND == "torch":
        pytest.skip("torch keeps the ring beside the optimizer's variables, as stateless cannot")
    optimizer = keras_mp.LossScaleOptimizer("rmsprop", growth_interval=4, initial_scale=64.0)
    optimizer.watch(8)
    run = Runner(optimizer, how)
    config = optimizer.config
    state, expected, rng = ScaleState.initial(config), [], np.random.default_rng(2)
    for gradients, bad in runs(seed=6, steps=20):
        target = int(np.random.default_rng(state.step).integers(3))
        run.step(gradients, bad, rng=np.random.default_rng(state.step))
        after = follow(state, bad is None, config)
        norm = np.sqrt(sum(np.sum(g.astype("float64") ** 2) for g in gradients))
        expected.append((state, after, bad, norm, target))
        state = after
    del rng
    rows = optimizer.recent_steps()
    assert [row.step for row in rows] == list(range(13, 21))
    for row, (before, after, bad, norm, target) in zip(rows, expected[-8:], strict=True):
        assert (row.scale, row.next_scale) == (before.scale, after.scale)
        assert row.finite == (bad is None)
        assert row.good_steps == after.good_steps
        if bad is None:
            assert row.grad_norm == pytest.approx(norm, rel=1e-5)
            assert row.nonfinite == ()
        else:
            assert row.grad_norm is None
            assert row.nonfinite == (target,)
            assert optimizer.describe(row).variables == [run.variables[target].path]
    assert [row.step for row in optimizer.recent_steps(since=18)] == [19, 20]


def test_watching_changes_nothing_in_the_training():
    runners = []
    for watch in (False, True):
        optimizer = keras_mp.LossScaleOptimizer("rmsprop")
        if watch:
            optimizer.watch(4)
        runners.append(Runner(optimizer))
    for gradients, bad in runs(seed=7, steps=10):
        for run in runners:
            run.step(gradients, bad)
    one, other = runners
    assert one.optimizer.recent_steps() == [] and len(other.optimizer.recent_steps()) == 4
    assert one.state == other.state
    assert snapshot(*one.variables) == snapshot(*other.variables)
