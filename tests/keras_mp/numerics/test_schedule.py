"""When a training looks into its own numbers."""

import itertools

import pytest

from keras_mp.numerics.schedule import BUDGET, GROWING, MIN_SECONDS, Options, Schedule, options_of


def train(schedule, steps, step_seconds, look_seconds):
    """Play a training by the clock; returns (seconds of looks, of steps) and when it looked."""
    now, looked, spent = 0.0, [], 0.0
    for step in range(steps):
        if schedule.due(now, step):
            now += look_seconds
            spent += look_seconds
            schedule.looked(now, step, look_seconds)
            looked.append((step, now))
        now += step_seconds
    return spent, now - spent, looked


@pytest.mark.parametrize("step_seconds", [0.002, 0.05, 3.0])
@pytest.mark.parametrize("look_steps", [3, 10, 60])
@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_by_its_cost_a_look_stays_below_five_percent(step_seconds, look_steps, backend):
    schedule = Schedule(Options(), backend)
    seconds = 600 if step_seconds < 1 else 60_000
    spent, trained, looked = train(
        schedule, round(seconds / step_seconds), step_seconds, look_steps * step_seconds
    )
    assert spent <= 0.05 * trained
    assert looked and schedule.looks == len(looked)
    gaps = [b - a for (_, a), (_, b) in itertools.pairwise(looked)]
    assert all(gap >= MIN_SECONDS for gap in gaps)


def test_dear_looks_come_seldom_and_cheap_ones_as_the_clock_says():
    cheap = train(Schedule(Options(), "torch"), 60_000, 0.01, 0.02)[2]
    dear = train(Schedule(Options(), "torch"), 60_000, 0.01, 2.0)[2]
    assert len(cheap) > 4 * len(dear) > 0
    # One that turned out dearer than thought is paid back before the next.
    (first, _), (second, _) = dear[:2]
    assert (second - first) * 0.01 > 2.0 / BUDGET * 0.5
    long = train(Schedule(Options(), "torch"), 86_400, 1.0, 0.02)[2]
    assert len(long) < 350  # of a whole day
    assert long[-1][1] - long[-2][1] >= GROWING * 80_000


def test_the_first_step_compiles_and_is_left_alone():
    schedule = Schedule(Options(every=1), "torch")
    assert [schedule.due(0.0, step) for step in (0, 1)] == [False, True]


def test_every_so_many_steps():
    spent, _, looked = train(Schedule(Options(every=100), "torch"), 1000, 0.01, 5.0)
    assert [step for step, _ in looked] == [1, 101, 201, 301, 401, 501, 601, 701, 801, 901]
    assert spent == 50.0  # asked for, whatever it costs


def test_options():
    assert options_of(False) is None and options_of(None) is None
    assert options_of(True) == Options()
    assert options_of({"every": 50, "format": "fp16"}) == Options(50, "float16")
    for wrong in ({"evry": 1}, "yes", 3):
        with pytest.raises(ValueError, match="Received: numerics="):
            options_of(wrong)
    for every in (0, -1, 2.5, True, "often"):
        with pytest.raises(ValueError, match="`every` must be"):
            options_of({"every": every})
    with pytest.raises(ValueError, match="Received: fmt='float12'"):
        options_of({"format": "float12"})
