"""The fold of a job's records against what the reference state machine says it did."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_mp.scaling.state import ScaleConfig
from keras_mp.telemetry import records as r
from keras_mp.telemetry.jobs import Job

CONFIG = ScaleConfig(growth_interval=20)


@given(st.sets(st.integers(1, 300), max_size=40), st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_totals_and_series_are_those_of_the_state_machine(simulation, bad, window):
    job = simulation.simulated(CONFIG, 300, bad.__contains__, window=window)
    assert [o.step for o in job.overflows] == sorted(bad)
    assert (job.step, job.skipped, job.overflow_count) == (300, len(bad), len(bad))
    assert job.latest.applied == 300 - len(bad)
    assert job.skipped_share == pytest.approx(len(bad) / 300)
    assert np.all(np.diff(job.series["step"]) > 0)
    assert np.all(np.diff(job.scales["step"]) >= 0)
    assert job.scales["scale"][-1] == job.scale
    for overflow in job.overflows:  # a dip of one step is in the series, whatever the window
        at = job.scales["step"] == overflow.step
        assert overflow.scale_before in job.scales["scale"][at]
        assert overflow.scale_after in job.scales["scale"][at]
    assert job.skips_within(100) == sum(step > 200 for step in bad)


def test_resumed_from_a_checkpoint_drops_the_lost_work_and_keeps_the_rest(simulation):
    bad = {50, 90}
    records = simulation.records_of(CONFIG, 100, bad.__contains__)
    cut = next(i for i, x in enumerate(records) if x.kind == "step" and x.step == 70)
    job = simulation.job_of(records)
    job.apply(r.Start(step=70, time=2e6))
    for record in records[cut + 1 :]:
        job.apply(record)
    once = simulation.job_of(records)
    np.testing.assert_array_equal(job.series["step"], once.series["step"])
    np.testing.assert_array_equal(job.series["scale"], once.series["scale"])
    assert [o.step for o in job.overflows] == [50, 90]
    assert (job.resumed, job.overflow_count, once.resumed) == (1, 2, 0)


def test_end_is_the_end_until_the_job_is_started_again():
    job = Job("job")
    job.apply(r.Start(time=1.0))
    job.apply(r.Step(step=10, time=2.0, loss=0.5))
    job.apply(r.End(step=10, time=3.0, status="done"))
    job.apply(r.Result(step=10, time=4.0, values={"hits": 0.7}))
    assert job.end.status == "done" and job.results == {"hits": 0.7}
    job.apply(r.Start(step=10, time=5.0))
    assert job.end is None and job.results == {} and job.step == 10


def test_nan_is_remembered_from_its_first_step_until_the_run_goes_back_before_it():
    job = Job("job")
    job.apply(r.Start(time=1.0))
    for step, loss in [(10, 1.0), (20, math.nan), (30, math.inf), (40, 0.5)]:
        job.apply(r.Step(step=step, steps=10, time=float(step), loss=loss))
    assert job.nan_step == 20
    job.apply(r.Start(step=10, time=50.0))
    job.apply(r.Step(step=20, steps=10, time=60.0, loss=0.5))
    assert job.nan_step is None


def test_an_overflow_that_was_skipped_is_no_nan_of_the_job():
    """With a window of one step, an overflow in the forward pass is a window without a loss."""
    job = Job("job")
    job.apply(r.Step(step=1, time=1.0, loss=1.0, scale=2.0**15, skipped=0))
    job.apply(r.Step(step=2, time=2.0, loss=math.inf, scale=2.0**14, skipped=1))
    assert job.nan_step is None
    job.apply(r.Step(step=3, time=3.0, loss=math.inf, scale=2.0**14, skipped=1))
    assert job.nan_step == 3


def test_throughput_comes_from_the_windows_and_not_from_a_compiling_one():
    job = Job("job")
    compiling = r.Step(step=1, time=1.0, samples=32, seconds=10.0, compiling=10.0)
    job.apply(compiling)
    assert job.samples_per_second is None and job.steps_per_second is None
    for i in range(1, 7):
        job.apply(r.Step(step=1 + 10 * i, steps=10, time=1.0 + i, samples=320, seconds=0.5,
                         scale=1.0, skipped=i, applied=1 + 9 * i))  # fmt: skip
    assert job.samples_per_second == pytest.approx(640)
    assert job.steps_per_second == pytest.approx(20)
    assert job.useful_steps_per_second == pytest.approx(20 * (1 - 5 / 50))


def test_eta_comes_from_the_recent_wall_clock(simulation):
    job = Job("job")
    job.meta = simulation.meta(planned_steps=200)
    for i in range(1, 11):  # 10 steps in 0.5 s of work, but 2 s of wall clock with validation
        job.apply(r.Step(step=10 * i, steps=10, time=2.0 * i, samples=10, seconds=0.5))
    assert job.progress == pytest.approx(0.5)
    assert job.eta_seconds == pytest.approx(100 / 5)
    job.apply(r.End(step=100, time=30.0, status="done"))
    assert job.eta_seconds is None


def test_what_was_not_measured_is_none_and_not_zero():
    job = Job("job")
    job.apply(r.Start(time=1.0))
    job.apply(r.Step(step=5, time=2.0))
    job.apply(r.Memory(step=5, time=2.0, process_resident=1000))
    names = "loss scale skipped skipped_share samples_per_second steps_per_second eta_seconds"
    for name in (*names.split(), "progress", "epoch", "policy"):
        assert getattr(job, name) is None, name
    assert job.memory_bytes == 1000
    assert np.isnan(job.memories["device_peak"]).all()
    job.apply(r.Memory(step=6, time=3.0, device_peak=5, device_allocated=4, process_resident=9))
    assert job.memory_bytes == 5


def test_ranks_of_one_job_join():
    job = Job("job")
    for rank in (1, 0):
        job.apply(r.Start(time=1.0, rank=rank), rank)
    for step in (10, 20):
        for rank in (0, 1):
            job.apply(r.Step(step=step, steps=10, time=float(step), loss=rank, samples=100,
                             seconds=1.0), rank)  # fmt: skip
    assert job.samples_per_second == pytest.approx(200)
    np.testing.assert_array_equal(job.series["loss"], [0, 0])
    job.apply(r.End(step=20, time=30.0, status="failed", reason="boom"), 1)
    assert job.end.status == "failed"


@given(
    st.lists(st.sampled_from(["step", "overflow", "start", "end", "memory"]), max_size=60),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_order_of_records_folds_without_an_error(kinds, data):
    job = Job("job")
    for kind in kinds:
        step = data.draw(st.integers(0, 10))
        extra = {"status": "done"} if kind == "end" else {}
        rank = data.draw(st.integers(0, 2))
        job.apply(r.KINDS[kind](step=step, time=data.draw(st.floats(-1e300, 1e300)), **extra), rank)
        assert job.step >= 0 and np.all(np.diff(job.series["step"]) > 0)
        _ = (job.eta_seconds, job.samples_per_second, job.skipped_share, job.skips_within(5))


def steps(job, numbers, begin, pace):
    for place, step in enumerate(numbers):
        job.apply(r.Step(step=step, time=begin + pace * place, loss=1.0, seconds=pace, steps=1))


def test_eta_of_a_resumed_job_leaves_the_pause_out():
    job = Job("a")
    job.meta = r.Meta(run_id="a", name="a", started=0.0, host="h", pid=1, planned_steps=100)
    job.apply(r.Start(time=0.0))
    steps(job, range(1, 41), 1.0, 2.0)
    job.apply(r.Start(time=1e6, step=30))  # days later, from a checkpoint
    steps(job, range(31, 51), 1e6 + 1, 0.5)
    assert job.wall_steps_per_second == pytest.approx(2.0)
    assert job.eta_seconds == pytest.approx(25.0)


def test_a_clock_that_jumps_back_or_forth_hides_nothing():
    from keras_mp.telemetry.health import verdict

    job = Job("a")
    job.meta = r.Meta(run_id="a", name="a", started=1e6, host="elsewhere", pid=1, planned_steps=100)
    job.apply(r.Start(time=1e6))
    steps(job, range(1, 21), 1e6, 1.0)
    steps(job, range(21, 41), 1e6 - 3600, 1.0)  # set back by an hour
    now = 1e6 - 3600 + 20
    assert verdict(job, now).state == "running"
    assert job.wall_steps_per_second == pytest.approx(1.0, rel=0.1) and job.eta_seconds < 100
    assert verdict(job, now + 600).state == "stalled"  # not only an hour later
    steps(job, range(41, 61), 2e6, 1.0)  # and far ahead
    assert verdict(job, 2e6 + 20).state == "running" and job.last_time == 2e6 + 19


def test_tokens_and_the_share_of_waiting_are_of_the_last_windows():
    job = Job("a")
    for step in range(1, 10):
        waits = 0.9 if step < 4 else 0.25
        job.apply(r.Step(step=step, time=float(step), seconds=1.0, tokens=70, input_wait=waits))
    assert (job.tokens_per_second, job.input_share) == (70.0, 0.25)
    assert Job("b").tokens_per_second is None and Job("b").input_share is None
    assert "input_share" in job.series.columns and "input_share" not in Job("b").series.columns


def test_useful_steps_are_those_of_now_without_the_skipped_ones():
    job = Job("a")
    for window in range(1, 21):  # ten steps a second; from the tenth window on four of five skipped
        skipped = max(0, window - 10) * 8
        job.apply(r.Step(step=10 * window, time=float(window), steps=10, seconds=1.0,
                         skipped=skipped, applied=10 * window - skipped, scale=1.0))  # fmt: skip
    assert job.steps_per_second == 10.0 and job.skipped_share == pytest.approx(0.4)
    assert job.useful_steps_per_second == pytest.approx(2.0)
    plain = Job("b")
    plain.apply(r.Step(step=10, time=1.0, steps=10, seconds=1.0))
    assert plain.useful_steps_per_second == 10.0  # nothing is known of skips: there is no scale
