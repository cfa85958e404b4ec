"""Each preset against the system it is named after: the system itself where it is installed
(torch, Keras), else its published rule, written down here anew from its description.

Parity is asked inside the preset's limits: past them the systems reach zero or infinity and ours
must not.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_mp.scaling.presets import PRESETS, resolve
from keras_mp.scaling.state import ScaleConfig, ScaleState, exhausted, update

# Runs of overflows and of clean steps: long enough to grow several times at small intervals.
SEQUENCES = st.lists(st.booleans(), max_size=80) | st.lists(
    st.tuples(st.booleans(), st.integers(1, 12)), max_size=10
).map(lambda runs: [finite for finite, length in runs for _ in range(length)])
INTERVALS = st.integers(1, 7)


def ours(name, interval, sequence):
    """The scale after each step under our preset, with a short growth interval."""
    config = replace(PRESETS[name], growth_interval=interval)
    state = ScaleState.initial(config)
    for finite in sequence:
        state = update(state, finite, config)
        yield state


class Apex:
    """apex.amp.scaler.LossScaler: factor 2, ceiling 2**24, no floor unless asked for."""

    def __init__(self, window):
        self.scale, self.unskipped, self.window = 65536.0, 0, window

    def step(self, finite):
        if finite:
            self.unskipped += 1
        else:
            self.scale, self.unskipped = self.scale / 2, 0
        if self.unskipped == self.window:
            self.scale, self.unskipped = min(self.scale * 2, 16777216.0), 0


class Megatron:
    """megatron.core DynamicGradScaler: bad steps add up across good ones until the scale grows."""

    def __init__(self, window):
        self.scale, self.good, self.tolerance, self.window = 4294967296.0, 0, 2, window

    def step(self, finite):
        if not finite:
            self.good = 0
            self.tolerance -= 1
            if self.tolerance <= 0:
                self.scale = max(self.scale * 0.5, 1.0)
        else:
            self.good += 1
            if self.good == self.window:
                self.scale, self.good, self.tolerance = self.scale * 2, 0, 2


class DeepSpeed:
    """deepspeed DynamicLossScaler: it counts iterations, and the one after an overflow is lost."""

    def __init__(self, window, refill_on_good=False):
        self.scale, self.window, self.tolerance = 65536.0, window, 2
        self.iteration, self.last_overflow = 0, -1
        self.refill_on_good = refill_on_good
        self.ended = False

    def step(self, finite):
        if not finite:
            if self.tolerance == 1:
                self.ended = self.ended or self.scale == 1.0
                self.scale = max(self.scale / 2, 1.0)
            else:
                self.tolerance -= 1
            self.last_overflow = self.iteration
        else:
            if self.refill_on_good:
                self.tolerance = 2
            stable = self.iteration - self.last_overflow - 1
            if stable > 0 and stable % self.window == 0:
                self.scale, self.tolerance = self.scale * 2, 2
        self.iteration += 1


class Flax:
    """flax DynamicScale: it looks at the count before it adds this step to it."""

    def __init__(self, window):
        self.scale, self.fin_steps, self.window = 65536.0, 0, window

    def step(self, finite):
        grow = self.fin_steps == self.window
        if finite:
            self.scale = self.scale * 2 if grow else self.scale
        else:
            self.scale = max(self.scale * 0.5, float(np.finfo(np.float32).tiny))
        self.fin_steps = 0 if grow or not finite else self.fin_steps + 1


RULES = {"apex": Apex, "megatron": Megatron, "deepspeed": DeepSpeed, "flax": Flax}


def inside(config, scale):
    return config.min_scale <= scale <= config.max_scale


@pytest.mark.parametrize("name", RULES)
@settings(deadline=None, max_examples=200)
@given(interval=INTERVALS, sequence=SEQUENCES)
def test_a_preset_moves_as_its_system_does(name, interval, sequence):
    system = RULES[name](interval)
    for finite, state in zip(sequence, ours(name, interval, sequence), strict=True):
        system.step(finite)
        if not inside(PRESETS[name], system.scale):
            return
        assert state.scale == system.scale


@pytest.mark.parametrize("name", RULES)
def test_a_rule_with_its_off_by_one_taken_out_would_be_told_apart(name):
    # The sequences above must be able to tell the presets apart, or the test proves nothing.
    sequences = [
        [True] * 12,
        [False, True, True, False] + [True] * 12,
        [False, False, True, True, True, True, False, False],
        [True] * 60,
    ]
    for other in {*RULES, "torch"} - {name}:
        start = PRESETS[other].initial_scale / PRESETS[name].initial_scale
        differ = False
        for sequence in sequences:
            system = RULES[name](3)
            for finite, state in zip(sequence, ours(other, 3, sequence), strict=True):
                system.step(finite)
                differ |= state.scale != system.scale * start
        assert differ, f"nothing tells {name} from {other}"


@settings(deadline=None, max_examples=200)
@given(interval=INTERVALS, sequence=SEQUENCES)
def test_deepspeeds_consecutive_hysteresis(interval, sequence):
    config = replace(PRESETS["deepspeed"], growth_interval=interval, hysteresis_refill="finite")
    system, state = DeepSpeed(interval, refill_on_good=True), ScaleState.initial(config)
    for finite in sequence:
        system.step(finite)
        state = update(state, finite, config)
        assert state.scale == system.scale


@pytest.mark.parametrize("start", [1.0, 2.0**4])  # at the floor, the hysteresis comes first
@pytest.mark.parametrize("refill", ["growth", "finite"])
@settings(deadline=None, max_examples=100)
@given(sequence=st.lists(st.sampled_from([False, False, False, True]), max_size=60))
def test_deepspeed_ends_the_run_where_the_system_raises(start, refill, sequence):
    config = replace(
        PRESETS["deepspeed"], growth_interval=3, initial_scale=start, hysteresis_refill=refill
    )
    system, state = DeepSpeed(3, refill_on_good=refill == "finite"), ScaleState.initial(config)
    system.scale = start
    for finite in sequence:
        used = state.scale
        system.step(finite)
        state = update(state, finite, config)
        run, left = state.consecutive_skips, state.hysteresis_left
        assert exhausted(used, run, config, left) == system.ended
        if system.ended:
            return


@pytest.mark.parametrize(
    ("name", "after_overflow", "steady"),
    [
        ("dynamic", 2000, 2000),
        ("keras", 2000, 2000),
        ("torch", 2000, 2000),
        ("apex", 2000, 2000),
        ("megatron", 1000, 1000),
        ("deepspeed", 1001, 1000),
        ("flax", 2001, 2001),
    ],
)
def test_growth_comes_at_the_step_that_the_system_publishes(name, after_overflow, steady):
    config = PRESETS[name]
    state = ScaleState.initial(config)
    grown = []
    for step in range(1, 3 * steady + 10):
        after = update(state, True, config)
        if after.scale > state.scale:
            grown.append(step)
        state = after
    assert grown == [after_overflow, after_overflow + steady, after_overflow + 2 * steady]


@pytest.mark.parametrize(
    ("name", "start", "floor", "ceiling", "hysteresis"),
    [
        ("dynamic", 2.0**15, 2.0**-14, 2.0**24, 1),
        ("keras", 2.0**15, None, None, 1),
        ("torch", 2.0**16, None, None, 1),
        ("apex", 2.0**16, None, 2.0**24, 1),
        ("megatron", 2.0**32, 1.0, None, 2),
        ("deepspeed", 2.0**16, 1.0, None, 2),
        ("flax", 2.0**16, 2.0**-126, None, 1),
    ],
)
def test_published_defaults(name, start, floor, ceiling, hysteresis):
    config = PRESETS[name]
    assert config.dynamic
    assert config.initial_scale == start
    assert config.hysteresis == hysteresis
    assert (config.growth_factor, config.backoff_factor) == (2.0, 0.5)
    assert config.min_scale == (2.0**-14 if floor is None else floor)
    assert config.max_scale == (2.0**126 if ceiling is None else ceiling)


def test_paper_is_the_constant_of_the_paper():
    config = PRESETS["paper"]
    assert not config.dynamic and config.initial_scale == 8.0


# The systems themselves.


@settings(deadline=None, max_examples=60)
@given(interval=INTERVALS, sequence=SEQUENCES)
def test_torch_is_gradscaler_itself(interval, sequence):
    import torch

    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", growth_interval=interval)
    scaler.scale(torch.zeros(()))  # creates its state
    for finite, state in zip(sequence, ours("torch", interval, sequence), strict=True):
        bad = float("inf") if not finite else 1.0
        parameter.grad = torch.tensor([1.0, bad])
        scaler.step(optimizer)
        scaler.update()
        if not inside(PRESETS["torch"], scaler.get_scale()):
            return
        assert state.scale == scaler.get_scale()
        assert state.good_steps == scaler.state_dict()["_growth_tracker"]


def test_torchs_defaults_are_gradscalers():
    import torch

    theirs = torch.amp.GradScaler("cpu").state_dict()
    config = PRESETS["torch"]
    assert config.initial_scale == theirs["scale"]
    assert config.growth_factor == theirs["growth_factor"]
    assert config.backoff_factor == theirs["backoff_factor"]
    assert config.growth_interval == theirs["growth_interval"]


@pytest.mark.backend
@settings(deadline=None, max_examples=8)
@given(interval=INTERVALS, sequence=SEQUENCES)
def test_keras_is_the_stock_wrapper_itself(interval, sequence):
    import keras

    variable = keras.Variable([1.0, 1.0])
    stock = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.0), dynamic_growth_steps=interval
    )
    stock.build([variable])
    if keras.backend.backend() == "jax":
        # Its eager apply leaks tracers on jax: only the stateless one works there.
        import jax

        stateless = jax.jit(stock.stateless_apply)
    for finite, state in zip(sequence, ours("keras", interval, sequence), strict=True):
        gradient = keras.ops.convert_to_tensor([1.0, 1.0 if finite else float("nan")])
        if keras.backend.backend() == "jax":
            values = [v.value for v in stock.variables]
            _, values = stateless(values, [gradient], [variable.value])
            for own, value in zip(stock.variables, values, strict=True):
                own.assign(value)
        else:
            stock.apply([gradient], [variable])
        scale = float(keras.ops.convert_to_numpy(stock.dynamic_scale))
        if not inside(PRESETS["keras"], scale):
            return
        assert state.scale == scale
        assert state.good_steps == int(keras.ops.convert_to_numpy(stock.step_counter))


@pytest.mark.backend
def test_kerass_defaults_are_the_stock_wrappers():
    import keras

    stock = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    assert PRESETS["keras"].initial_scale == stock.initial_scale
    assert PRESETS["keras"].growth_interval == stock.dynamic_growth_steps


# From the `scale` argument to a config.


@pytest.mark.parametrize("name", PRESETS)
def test_a_name_stands_for_its_preset(name):
    assert resolve(name) == (name, PRESETS[name])


def test_a_number_is_a_static_scale():
    name, config = resolve(1024)
    assert name == "static"
    assert not config.dynamic and config.initial_scale == 1024.0
    assert (
        resolve(2.0**100)[1].initial_scale == 2.0**100
    )  # the limits of a moving scale are not its


def test_fields_given_beside_a_name_replace_the_presets():
    _, config = resolve("megatron", hysteresis=1, growth_interval=None)
    assert config == replace(PRESETS["megatron"], hysteresis=1)


def test_a_start_that_nobody_chose_obeys_the_limits_that_somebody_did():
    assert resolve("torch", max_scale=1024.0)[1].initial_scale == 1024.0
    assert resolve("dynamic", min_scale=2.0**20)[1].initial_scale == 2.0**20
    with pytest.raises(ValueError, match="`initial_scale` must lie within"):
        resolve("torch", max_scale=1024.0, initial_scale=2048.0)


def test_a_config_is_taken_as_it_is():
    config = ScaleConfig(hysteresis=3)
    assert resolve(config) == ("custom", config)


@pytest.mark.parametrize(
    ("scale", "kwargs", "error", "message"),
    [
        ("fast", {}, ValueError, r"`scale` must be .*'apex'.*Received: scale='fast'"),
        (None, {}, TypeError, "`scale` must be a number .*Received: scale=None"),
        (True, {}, TypeError, "Received: scale=True"),
        ([8], {}, TypeError, r"Received: scale=\[8\]"),
        (0.0, {}, ValueError, "`scale` must be positive and finite"),
        (8.0, {"initial_scale": 4.0}, ValueError, "`initial_scale` has no meaning beside a static"),
        (8.0, {"growth_interval": 4}, ValueError, "`growth_interval` has no meaning beside"),
        (8.0, {"hysteresis": 2}, ValueError, "`hysteresis` has no meaning beside"),
        ("torch", {"min_scale": "low"}, TypeError, "`min_scale` must be a number"),
    ],
)
def test_what_scale_cannot_be(scale, kwargs, error, message):
    with pytest.raises(error, match=message):
        resolve(scale, **kwargs)
