"""What looks like trouble for a moment and is none; and when it is some after all."""

import math

import pytest

from keras_mp.scaling.state import ScaleConfig
from keras_mp.telemetry import records as r
from keras_mp.telemetry.health import verdict
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.scale_health import scale_verdict

STATIC = ScaleConfig(dynamic=False, initial_scale=8.0)


def judged(job):
    return verdict(job, job.last_time, alive=lambda *_: True)


def test_windows_of_fast_steps_are_slow_only_if_it_lasts(simulation):
    """Five windows of two steps are over in three seconds: a neighbour's moment, no news."""
    job = simulation.simulated(ScaleConfig(), 400, lambda step: False, window=2)
    for count in range(1, 21):
        step = job.step + 2
        job.apply(r.Step(step=step, steps=2, time=job.last_time + 0.6, seconds=0.6, scale=1.0))
        if 0.6 * count < 5.0 or 0.6 * count >= 10.0:  # in between the median decides
            assert judged(job).state == ("slow" if count > 10 else "running"), count


@pytest.mark.parametrize("window", [1, 4, 16, 40])
def test_a_loss_that_is_gone_is_told_whatever_the_windows(window):
    """Each step is skipped for a loss that is not finite, in windows too short to tell alone."""
    job = Job("job")
    job.apply(r.Step(step=10, steps=10, time=1.0, loss=1.0, scale=2.0**15, skipped=0))
    for step in range(10 + window, 51, window):
        told = {"loss": math.nan, "skipped": step - 10, "scale": 1.0}
        job.apply(r.Step(step=step, steps=window, time=float(step), **told))
    assert job.nan_step == 10 + window
    told = judged(job)
    assert told.nan == "now" and f"since step {10 + window}" in told.sentence


def test_one_skipped_step_without_a_loss_is_no_nan():
    job = Job("job")
    for step in range(1, 40):
        bad = step % 5 == 0
        loss = math.inf if bad else 1.0
        job.apply(r.Step(step=step, time=float(step), loss=loss, scale=8.0, skipped=step // 5))
        assert judged(job).nan == "no" and "the loss is" not in " ".join(judged(job).findings)


@pytest.mark.parametrize(("bad", "severity"), [(1, "ok"), (2, "ok"), (3, "error")])
def test_a_static_scale_is_not_judged_by_its_first_step(simulation, bad, severity):
    job = simulation.simulated(STATIC, 6, lambda step: step <= bad, window=1)
    assert scale_verdict(job).severity == severity


def test_a_scale_whose_overflows_nobody_counts_is_not_said_to_have_none(simulation):
    """Keras' ``loss_scale_factor``."""
    job = Job("job")
    job.meta = simulation.meta(STATIC)
    job.apply(r.Step(step=50, time=1.0, loss=1.0, scale=8.0))
    told = scale_verdict(job)
    assert (told.state, told.severity) == ("static", "ok")
    assert told.sentence == "static scale 2³; nothing tells of overflows"


def test_a_single_step_is_called_one(simulation):
    calibrating = simulation.simulated(ScaleConfig(), 1, lambda step: True, window=1)
    assert "in the first step while" in scale_verdict(calibrating).sentence
    eager = simulation.simulated(ScaleConfig(growth_interval=1), 300, lambda step: False)
    assert scale_verdict(eager).sentence.startswith("healthy: no skip in the last step")
