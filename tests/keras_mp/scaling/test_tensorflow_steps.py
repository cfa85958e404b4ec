"""The tensorflow kernel's step: eager, in a graph, and under XLA.

Scales are powers of two and the gradients have few bits, so equality is asked and not closeness.
"""

from dataclasses import replace

import keras
import numpy as np
import pytest
from helpers.stepping import follow, host, make_gradients, make_variables, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_mp
from keras_mp.scaling.presets import PRESETS
from keras_mp.scaling.state import ScaleState

if keras.backend.backend() != "tensorflow":
    pytest.skip("tests of the tensorflow kernel", allow_module_level=True)

import tensorflow as tf

pytestmark = pytest.mark.backend

WAYS = ["eager", "graph", "xla"]
BAD = [np.inf, -np.inf, np.nan]
HUGE = np.float32(3e38)  # finite, but its square is not


class Stepper:
    """One optimizer on variables of its own, stepped with given gradients of the true loss."""

    def __init__(self, optimizer, how="eager", variables=None):
        self.optimizer = optimizer
        self.variables = make_variables() if variables is None else variables
        optimizer.build(self.variables)
        self.wrapped = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self.run = self._step
        if how != "eager":
            self.run = tf.function(self._step, jit_compile=how == "xla", autograph=False)

    def _step(self, *gradients):
        factor = 1.0
        if self.wrapped:
            self.optimizer.scale_loss(tf.ones(()))
            factor = tf.convert_to_tensor(self.optimizer.dynamic_scale)
        self.optimizer.apply([g * factor for g in gradients], self.variables)

    def step(self, gradients, bad=None):
        gradients = [np.array(g) for g in gradients]
        if bad is not None:
            gradients[1].reshape(-1)[0] = bad
        self.run(*[tf.constant(g) for g in gradients])

    @property
    def state(self):
        return self.optimizer._state.read()

    @property
    def everything(self):
        inner = self.optimizer.inner_optimizer if self.wrapped else self.optimizer
        return [*self.variables, *inner.variables]


def ours(inner, how="eager", fused=True, variables=None, **kwargs):
    stepper = Stepper(keras_mp.LossScaleOptimizer(inner, **kwargs), how, variables)
    if not fused:
        stepper.optimizer._kernel.fused = None
    return stepper


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("fused", [True, False])
def test_the_state_is_the_references_over_random_runs(how, fused):
    steppers = {}
    for name, preset in PRESETS.items():
        config = replace(preset, growth_interval=2, on_exhausted="continue")
        if how != "eager" and name not in ("keras", "megatron", "flax")[fused:]:
            continue  # a trace costs seconds; the code is the same
        stepper = ours(keras.optimizers.Adam(0.125), how, fused, scale=config)
        steppers[name] = (stepper, config)

    @settings(max_examples=3, deadline=None)
    @given(st.lists(st.sampled_from([None, None, *BAD]), min_size=1, max_size=10))
    def run(bads):
        rng = np.random.default_rng(0)
        for stepper, config in steppers.values():
            expected = ScaleState.initial(config)
            stepper.optimizer._state.write(expected)
            for bad in bads:
                stepper.step(make_gradients(rng), bad)
                expected = follow(expected, bad is None, config)
                assert stepper.state == expected

    run()


FUSED = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adam_decay": lambda: keras.optimizers.Adam(0.01, weight_decay=0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01),
    "sgd": lambda: keras.optimizers.SGD(0.01),
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
    "schedule": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.5)
    ),
}


def relative(one, other):
    one, other = np.float64(one), np.float64(other)
    return np.linalg.norm(one - other) / max(np.linalg.norm(other), 1e-30)


SLOW_TO_TRACE = (
    "adam",
    "adam_decay",
    "sgd",
    "adam_global_clip",
    "schedule",
    "amsgrad",
    "adam_clip",
    "sgd_clipvalue",
)


def ways_of(names):
    """All ways, but under XLA, whose traces cost seconds, not all of what has the same code."""
    return [(n, how) for n in names for how in WAYS if how != "xla" or n not in SLOW_TO_TRACE]


@pytest.mark.parametrize(("name", "how"), ways_of(FUSED))
def test_fused_steps_stay_with_the_plain_optimizer(name, how):
    steps = 200 if how == "graph" else 20
    plain, mine = Stepper(FUSED[name](), "graph"), ours(FUSED[name](), how)
    assert mine.optimizer._kernel.fused is not None
    rng = np.random.default_rng(1)
    for _ in range(steps):
        gradients = [g * np.float32(10.0 ** rng.integers(-3, 2)) for g in make_gradients(rng)]
        plain.step(gradients)
        mine.step(gradients)
    for one, other in zip(mine.everything, plain.everything, strict=True):
        assert relative(host(one), host(other)) < 1e-6


@pytest.mark.parametrize("name", ["adam", "adamw", "nesterov"])
def test_fused_steps_are_no_further_from_float64_than_plain_ones(name):
    start = make_variables()
    exact = Stepper(
        FUSED[name](), "graph", [keras.Variable(host(v), dtype="float64") for v in start]
    )
    plain, mine = Stepper(FUSED[name](), "graph"), ours(FUSED[name](), "graph")
    rng = np.random.default_rng(1)
    for _ in range(200):
        gradients = make_gradients(rng)
        exact.step([np.float64(g) for g in gradients])
        plain.step(gradients)
        mine.step(gradients)
    values = [np.concatenate([host(v).ravel() for v in s.variables]) for s in (mine, plain, exact)]
    assert relative(values[0], values[2]) <= relative(values[1], values[2]) + 1e-7


GENERAL = {
    "rmsprop": lambda: keras.optimizers.RMSprop(0.125),
    "adam_clip": lambda: keras.optimizers.Adam(0.125, clipnorm=0.5),
    "adam_global_clip": lambda: keras.optimizers.Adam(0.125, global_clipnorm=0.5),
    "sgd_clipvalue": lambda: keras.optimizers.SGD(0.125, clipvalue=0.5),
    "amsgrad": lambda: keras.optimizers.Adam(0.125, amsgrad=True),
    "ema": lambda: keras.optimizers.SGD(0.125, use_ema=True, ema_overwrite_frequency=3),
    "accumulation": lambda: keras.optimizers.Adam(0.125, gradient_accumulation_steps=2),
}


@pytest.mark.parametrize(("name", "how"), ways_of(GENERAL))
def test_general_steps_are_the_plain_optimizers_bit_for_bit(name, how):
    plain, mine = Stepper(GENERAL[name](), how), ours(GENERAL[name](), how)
    rng = np.random.default_rng(1)
    for step in range(7):
        gradients = make_gradients(rng)
        if step in (1, 4):  # also in the middle of an accumulation
            before = snapshot(*mine.everything)
            mine.step(gradients, BAD[step % 3])
            assert snapshot(*mine.everything) == before
            continue
        plain.step(gradients)
        mine.step(gradients)
        for one, other in zip(plain.everything, mine.everything, strict=True):
            if how == "xla":
                # XLA compiles the wrapped update into other loops, which round differently.
                np.testing.assert_allclose(host(other), host(one), rtol=2e-6, atol=1e-7)
            else:
                np.testing.assert_array_equal(host(other), host(one))


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", ["adamw", "nesterov", "sgd"])
def test_a_skipped_step_changes_no_bit_not_even_a_negative_zero(name, how):
    variables = [
        keras.Variable(np.float32([-0.0, 0.0, 1.0])),
        keras.Variable(np.float32([[-0.0, 2.0], [0.0, -3.0]])),
        keras.Variable(np.float32([-0.0, -0.0, 0.0, 0.5])),
    ]
    stepper = ours(FUSED[name](), how, variables=variables)
    rng = np.random.default_rng(1)
    negative_zeros = [
        np.where(np.arange(v.size).reshape(v.shape) % 2, 0.0, -0.0).astype("float32")
        for v in map(host, variables)
    ]
    for start in (None, negative_zeros):
        for slot in stepper.everything[len(variables) :]:
            if start is not None and slot.shape in [v.shape for v in variables]:
                slot.assign(np.full(slot.shape, -0.0, "float32"))
        for sign in (1, -1):
            for variable, zeros in zip(variables, start or [], strict=False):
                variable.assign(zeros)
            stepper.step([np.abs(g) * sign for g in make_gradients(rng)])
            for variable, zeros in zip(variables, start or [], strict=False):
                variable.assign(zeros)
            before = snapshot(*stepper.everything)
            for bad in BAD:
                stepper.step(make_gradients(rng), bad)
                assert snapshot(*stepper.everything) == before


def test_without_the_conditional_a_skip_would_not_be_one(monkeypatch):
    """The mutant of the guarantee above: always take the branch of a finite step."""
    stepper = ours(keras.optimizers.Adam(0.125), "eager")
    before = snapshot(*stepper.variables)
    monkeypatch.setattr(tf, "cond", lambda condition, yes, no: yes())
    stepper.step(make_gradients(np.random.default_rng(1)), np.nan)
    assert snapshot(*stepper.variables) != before


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("fused", [True, False])
def test_a_finite_gradient_is_no_overflow_however_large_its_square(how, fused):
    plain = Stepper(keras.optimizers.SGD(2.0**-126), "eager")
    stepper = ours(keras.optimizers.SGD(2.0**-126), how, fused, scale=1.0)
    gradients = make_gradients(np.random.default_rng(1))
    plain.step(gradients, HUGE)
    stepper.step(gradients, HUGE)
    assert (stepper.state.applied, stepper.state.skipped) == (1, 0)
    for one, other in zip(plain.variables, stepper.variables, strict=True):
        np.testing.assert_array_equal(host(one), host(other))


@pytest.mark.parametrize("how", WAYS)
def test_adam_takes_a_finite_gradient_with_an_infinite_square_as_keras_does(how):
    plain, mine = (
        Stepper(keras.optimizers.Adam(0.5)),
        ours(keras.optimizers.Adam(0.5), how, scale=1.0),
    )
    gradients = make_gradients(np.random.default_rng(1))
    plain.step(gradients, HUGE)
    mine.step(gradients, HUGE)
    assert all(np.isfinite(host(v)).all() for v in mine.variables)
    for one, other in zip(plain.variables, mine.variables, strict=True):
        np.testing.assert_allclose(host(one), host(other), rtol=1e-6)


@pytest.mark.parametrize("how", WAYS)
def test_unscaling_may_not_overflow_either(how):
    """A scale below 1 makes gradients larger: finite ones may overflow only when unscaled."""
    stepper = ours(keras.optimizers.SGD(0.125), how, scale=2.0**-10)
    before = snapshot(*stepper.everything)

    def step(*gradients):  # as they are, not times the scale
        stepper.optimizer.scale_loss(tf.ones(()))
        stepper.optimizer.apply(list(gradients), stepper.variables)

    run = step if how == "eager" else tf.function(step, jit_compile=how == "xla", autograph=False)
    gradients = [np.ones(v.shape, "float32") for v in stepper.variables]
    gradients[0][0] = HUGE
    run(*[tf.constant(g) for g in gradients])
    assert stepper.state.skipped == 1
    assert snapshot(*stepper.everything) == before


@pytest.mark.parametrize("how", WAYS)
def test_a_variable_without_a_gradient_is_left_alone(how):
    variables = make_variables()
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.Adam(0.125))
    optimizer.build(variables)
    optimizer.watch(4)

    def step(g, h):
        optimizer.scale_loss(tf.ones(()))
        optimizer.apply([g, None, h], variables)

    run = step if how == "eager" else tf.function(step, jit_compile=how == "xla", autograph=False)
    grads = [tf.constant(np.ones(variables[i].shape, "float32")) for i in (0, 2)]
    before = snapshot(variables[1])
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        run(*grads)
    assert snapshot(variables[1]) == before
    run(grads[0], grads[1] * np.float32(np.nan))
    assert [row.nonfinite for row in optimizer.recent_steps()] == [(), (2,)]


def test_no_gradient_at_all_is_an_error():
    stepper = ours(keras.optimizers.SGD(0.125))
    with pytest.raises(ValueError, match="No gradients provided"):
        stepper.optimizer.scale_loss(tf.ones(()))
        stepper.optimizer.apply([None] * 3, stepper.variables)


@pytest.mark.parametrize("how", WAYS)
def test_the_ring_and_the_counts_tell_each_step(how):
    stepper = ours(keras.optimizers.Adam(0.125), how)
    stepper.optimizer.watch(6)
    rng = np.random.default_rng(1)
    truth = []
    for step in range(1, 9):
        gradients = make_gradients(rng)
        scale = stepper.optimizer.loss_scale
        bad = np.inf if step in (3, 7, 8) else None
        stepper.step(gradients, bad)
        norm = np.sqrt(sum(np.sum(np.float64(g) ** 2) for g in gradients))
        truth.append((step, scale, stepper.optimizer.loss_scale, bad is None, norm))
    rows = stepper.optimizer.recent_steps()
    assert [r.step for r in rows] == [3, 4, 5, 6, 7, 8]
    for row, (step, scale, after, finite, norm) in zip(rows, truth[2:], strict=True):
        assert (row.step, row.scale, row.next_scale, row.finite) == (step, scale, after, finite)
        assert row.loss == 1.0 and row.loss_finite
        assert row.nonfinite == (() if finite else (1,))
        assert row.grad_norm == pytest.approx(norm, rel=1e-6) if finite else row.grad_norm is None
    counts = stepper.optimizer._kernel.overflow_counts()
    np.testing.assert_array_equal(counts, [[0, 3, 0], [0, 3, 0], [0, 8, 0]])


def test_attribution_off_keeps_rows_without_variables():
    stepper = ours(keras.optimizers.Adam(0.125), "graph", attribution=False)
    stepper.optimizer.watch(4)
    stepper.step(make_gradients(np.random.default_rng(1)), np.inf)
    (row,) = stepper.optimizer.recent_steps()
    assert (row.finite, row.nonfinite, row.grad_norm) == (False, (), None)
    assert stepper.optimizer._kernel.log.counts is None


def test_what_the_kernel_remembers_stays_out_of_the_optimizers_variables():
    stepper = ours(keras.optimizers.Adam(0.125))
    names = [v.path for v in stepper.optimizer.variables]
    stepper.optimizer.watch(100)
    assert [v.path for v in stepper.optimizer.variables] == names
    assert all(v.shape != (100, 11) for v in stepper.optimizer.variables)
