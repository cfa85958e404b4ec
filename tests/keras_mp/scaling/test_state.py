"""The pure state machine: what holds after every step of every run, whatever the settings."""

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_mp.scaling.state import (
    COUNTER_MAX,
    ScaleConfig,
    ScaleState,
    exhausted,
    state_from_dict,
    update,
)

EXPONENTS = st.integers(-126, 126)


@st.composite
def configs(draw, power_of_two=False, **fixed):
    """Any valid config. With ``power_of_two`` every number in it is one."""

    def number(low, high):
        if power_of_two:
            return 2.0 ** draw(st.integers(math.ceil(math.log2(low)), math.floor(math.log2(high))))
        return draw(st.floats(low, high, width=32))

    low, start, high = sorted(2.0 ** draw(EXPONENTS) for _ in range(3))
    values = {
        "initial_scale": start,
        "min_scale": low,
        "max_scale": high,
        "growth_interval": draw(st.integers(1, 5)),
        "growth_factor": number(1.0, 2.0**20),
        "backoff_factor": number(2.0**-20, 1.0),
        "hysteresis": draw(st.integers(1, 4)),
        "hysteresis_refill": draw(st.sampled_from(["growth", "finite"])),
        "growth_delay": draw(st.sampled_from(["none", "after_overflow", "always"])),
        "counts": draw(st.sampled_from(["updates", "micro_batches"])),
        "dynamic": draw(st.booleans()),
    }
    return ScaleConfig(**{**values, **fixed})


STEPS = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60)  # (finite, updated)


def run(config, steps, state=None):
    """(state before, finite, updated, state after) of every step."""
    state = ScaleState.initial(config) if state is None else state
    for finite, updated in steps:
        after = update(state, finite, config, updated=updated)
        yield state, finite, updated, after
        state = after


@settings(deadline=None)
@given(configs(), STEPS)
def test_the_scale_stays_a_float32_within_its_limits(config, steps):
    for _, _, _, after in run(config, steps):
        assert math.isfinite(after.scale)
        assert config.min_scale <= after.scale <= config.max_scale
        assert float(np.float32(after.scale)) == after.scale
        assert math.isfinite(1 / after.scale) and np.float32(1 / after.scale) >= 2.0**-126


@settings(deadline=None)
@given(configs(power_of_two=True), STEPS)
def test_powers_of_two_stay_powers_of_two(config, steps):
    for _, _, _, after in run(config, steps):
        assert math.frexp(after.scale)[0] == 0.5


def test_other_factors_leave_the_powers_of_two():
    config = ScaleConfig(backoff_factor=0.3)
    after = update(ScaleState.initial(config), False, config)
    assert math.frexp(after.scale)[0] != 0.5


@settings(deadline=None)
@given(configs(), STEPS)
def test_every_step_is_counted_once(config, steps):
    skips = run_length = 0
    for n, (before, finite, _, after) in enumerate(run(config, steps), start=1):
        skips += not finite
        run_length = 0 if finite else run_length + 1
        assert after.skipped == skips
        assert after.applied == n - skips
        assert after.consecutive_skips == run_length
        assert after.step == n == before.step + 1
        assert 0 <= after.hysteresis_left <= config.hysteresis


@settings(deadline=None)
@given(configs(dynamic=True), STEPS)
def test_the_scale_grows_only_after_the_interval_and_falls_only_on_overflow(config, steps):
    clean = 0  # counted steps since growth or overflow
    for before, finite, updated, after in run(config, steps):
        counted = finite and (updated or config.counts == "micro_batches")
        clean = clean + counted if finite else 0
        if after.scale > before.scale:
            late = config.growth_delay != "none"
            assert finite and clean >= config.growth_interval
            assert clean <= config.growth_interval + late
            assert after.scale == np.float32(
                min(before.scale * config.growth_factor, config.max_scale)
            )
        if after.scale < before.scale:
            assert not finite
            assert after.scale == np.float32(
                max(before.scale * config.backoff_factor, config.min_scale)
            )
        if finite and after.hysteresis_left == config.hysteresis and after.good_steps <= 0 < clean:
            clean = 0  # it grew, perhaps against the ceiling


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 30))
def test_a_clean_run_grows_once_an_interval(interval, steps):
    config = ScaleConfig(growth_interval=interval, max_scale=2.0**100)
    *_, (_, _, _, after) = run(config, [(True, True)] * steps)
    assert after.scale == config.initial_scale * 2.0 ** (steps // interval)
    assert after.good_steps == steps % interval


@settings(deadline=None)
@given(configs(dynamic=True, hysteresis_refill="growth"), st.integers(1, 20))
def test_overflows_back_off_from_the_last_of_the_hysteresis_on(config, overflows):
    *_, (_, _, _, after) = run(config, [(False, True)] * overflows)
    falls = max(overflows - config.hysteresis + 1, 0)
    expected = np.float32(config.initial_scale)
    for _ in range(falls):
        expected = max(expected * np.float32(config.backoff_factor), np.float32(config.min_scale))
    assert after.scale == float(expected)
    assert after.good_steps == config.start_good_steps


def test_a_finite_step_refills_the_hysteresis_only_where_the_config_says_so():
    for refill, left in (("growth", 1), ("finite", 2)):
        config = ScaleConfig(hysteresis=2, hysteresis_refill=refill)
        *_, (_, _, _, after) = run(config, [(False, True), (True, True)])
        assert after.hysteresis_left == left


def test_growth_refills_the_hysteresis():
    config = ScaleConfig(hysteresis=3, growth_interval=2)
    *_, (_, _, _, after) = run(config, [(False, True), (True, True), (True, True)])
    assert after.hysteresis_left == 3 and after.scale == 2.0**16


def test_a_micro_batch_counts_toward_growth_only_where_the_config_says_so():
    for counts, good in (("updates", 1), ("micro_batches", 3)):
        config = ScaleConfig(counts=counts)
        *_, (_, _, _, after) = run(config, [(True, False), (True, False), (True, True)])
        assert after.good_steps == good


@settings(deadline=None)
@given(configs(dynamic=False), STEPS)
def test_a_static_scale_never_moves_and_still_counts(config, steps):
    for before, _, _, after in run(config, steps):
        assert after.scale == config.initial_scale
        assert after.good_steps == before.good_steps
        assert after.hysteresis_left == before.hysteresis_left
        assert after.step == before.step + 1


@pytest.mark.parametrize("start", [COUNTER_MAX - 1, COUNTER_MAX])
@pytest.mark.parametrize("name", ["skipped", "applied", "consecutive_skips"])
@pytest.mark.parametrize("finite", [True, False])
def test_counters_saturate_instead_of_wrapping(name, start, finite):
    config = ScaleConfig()
    state = replace(ScaleState.initial(config), **{name: start})
    for _ in range(3):
        state = update(state, finite, config)
        assert all(
            0 <= getattr(state, f.name) <= COUNTER_MAX for f in fields(state) if f.name != "scale"
        )
    moved = {"skipped": not finite, "applied": finite, "consecutive_skips": not finite}[name]
    stays = start if name != "consecutive_skips" else 0
    assert getattr(state, name) == (COUNTER_MAX if moved else stays)


def test_a_count_past_the_interval_grows_at_the_next_clean_step():
    # After a resume with a shorter interval: a test for equality would never grow again.
    config = ScaleConfig(growth_interval=10)
    state = replace(ScaleState.initial(config), good_steps=500)
    after = update(state, True, config)
    assert (after.scale, after.good_steps) == (2.0**16, 0)


def test_growth_at_the_ceiling_starts_the_count_again():
    config = ScaleConfig(initial_scale=2.0**24, growth_interval=3)
    *_, (_, _, _, after) = run(config, [(True, True)] * 3)
    assert (after.scale, after.good_steps) == (2.0**24, 0)


def test_update_leaves_its_arguments_alone():
    config = ScaleConfig()
    state = ScaleState.initial(config)
    update(state, False, config)
    assert state == ScaleState.initial(config)
    with pytest.raises(AttributeError):
        state.scale = 1.0
    with pytest.raises(AttributeError):
        config.hysteresis = 3


# Exhausted: skipping although the scale cannot fall further.


@pytest.mark.parametrize(
    ("scale", "skips", "config", "expected"),
    [
        (1.0, 3, ScaleConfig(min_scale=1.0), True),
        (1.0, 2, ScaleConfig(min_scale=1.0), False),
        (2.0, 30, ScaleConfig(min_scale=1.0), False),
        (1.0, 1, ScaleConfig(min_scale=1.0, exhausted_after=1), True),
        (8.0, 3, ScaleConfig(dynamic=False, initial_scale=8.0), True),
        (8.0, 2, ScaleConfig(dynamic=False, initial_scale=8.0), False),
        (1.0, 0, ScaleConfig(min_scale=1.0), False),
    ],
)
def test_exhausted(scale, skips, config, expected):
    assert exhausted(scale, skips, config) is expected


# Settings.

NUMBERS = ("initial_scale", "growth_factor", "backoff_factor", "min_scale", "max_scale")
COUNTS = ("growth_interval", "hysteresis", "exhausted_after")
CHOICES = ("hysteresis_refill", "growth_delay", "counts", "on_exhausted")


def test_every_field_is_among_those_tried_here():
    assert {f.name for f in fields(ScaleConfig)} == {*NUMBERS, *COUNTS, *CHOICES, "dynamic"}


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, -math.inf, 1e-60, 1e60])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"`{name}`.*Received: .*{name}="):
        ScaleConfig(**{name: value})


@pytest.mark.parametrize("value", ["8", b"8", None, True, [8.0], 1j])
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number_is_refused_by_name(name, value):
    with pytest.raises(TypeError, match=f"`{name}` must be a number. Received: {name}="):
        ScaleConfig(**{name: value})


@pytest.mark.parametrize("value", [0, -3, 2.5, math.nan, math.inf, COUNTER_MAX // 2 + 1])
@pytest.mark.parametrize("name", COUNTS)
def test_counts_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"`{name}`.*Received: {name}="):
        ScaleConfig(**{name: value})


@pytest.mark.parametrize("value", ["2", None, True, [1]])
@pytest.mark.parametrize("name", COUNTS)
def test_what_is_no_integer_is_refused_by_name(name, value):
    with pytest.raises(TypeError, match=f"`{name}` must be an integer. Received: {name}="):
        ScaleConfig(**{name: value})


@pytest.mark.parametrize("value", ["never", None, 1, ["warn"]])
@pytest.mark.parametrize("name", CHOICES)
def test_unknown_choices_are_refused_with_the_known_ones(name, value):
    with pytest.raises(ValueError, match=rf"`{name}` must be one of \[.*Received: {name}="):
        ScaleConfig(**{name: value})


@pytest.mark.parametrize("value", [None, 1, "dynamic"])
def test_dynamic_is_a_bool(value):
    with pytest.raises(TypeError, match="`dynamic` must be a bool"):
        ScaleConfig(dynamic=value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"growth_factor": 0.99}, "`growth_factor` must be at least 1"),
        ({"backoff_factor": 1.01}, "`backoff_factor` must be at most 1"),
        ({"min_scale": 4.0, "max_scale": 2.0, "initial_scale": 4.0}, "must not exceed"),
        ({"initial_scale": 2.0**25}, "`initial_scale` must lie within"),
        ({"initial_scale": 2.0**-15}, "`initial_scale` must lie within"),
        ({"max_scale": 2.0**127}, "`max_scale` must lie between"),
        ({"min_scale": 2.0**-127}, "`min_scale` must be a normal float32 number"),
    ],
)
def test_values_that_contradict_each_other_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        ScaleConfig(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"growth_factor": 1.0, "backoff_factor": 1.0},
        {"min_scale": 8, "initial_scale": 8, "max_scale": 8},
        {"min_scale": 2.0**-126, "max_scale": 2.0**126},
        {"growth_interval": COUNTER_MAX // 2, "hysteresis": np.int64(3), "exhausted_after": 2.0},
        {"initial_scale": np.float32(1024)},
    ],
)
def test_values_at_the_edge_are_taken(values):
    config = ScaleConfig(**values)
    for name, value in values.items():
        assert getattr(config, name) == value
        assert type(getattr(config, name)) is (float if name in NUMBERS else int)


@settings(deadline=None)
@given(configs(), STEPS)
def test_settings_and_state_survive_json(config, steps):
    text = json.dumps(config.as_dict(), allow_nan=False)
    assert ScaleConfig(**json.loads(text)) == config
    for _, _, _, after in run(config, steps[:3]):
        values = {f.name: getattr(after, f.name) for f in fields(after)}
        assert state_from_dict(json.loads(json.dumps(values, allow_nan=False))) == after


def test_a_state_with_a_field_missing_is_refused():
    with pytest.raises(ValueError, match=r"needs \['good_steps'\]"):
        state_from_dict(
            {
                "scale": 1.0,
                "hysteresis_left": 1,
                "skipped": 0,
                "applied": 0,
                "consecutive_skips": 0,
            }
        )
