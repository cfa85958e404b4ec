"""Pairs of real runs: float32 beside mixed precision, trained side by side."""

from dataclasses import replace

import numpy as np
import pytest

from tui.pair import compare, twin
from tui.snapshot import Table


@pytest.fixture
def jobs(runs):
    runs.add("float32", "float16-scaled", "float16-unscaled", "sawtooth")
    return {job.name: job for job in runs.app().reader.look(None).jobs}


def test_float32_is_the_reference_whichever_comes_first(jobs):
    one = compare(jobs["float32"], jobs["float16-scaled"])
    other = compare(jobs["float16-scaled"], jobs["float32"])
    assert one.reference.name == other.reference.name == "float32"
    assert one.speed_up == other.speed_up


def test_the_speed_up_is_the_ratio_of_the_medians(jobs):
    pair = compare(jobs["float32"], jobs["float16-scaled"])
    pace = {
        name: np.nanmedian(jobs[name].points["samples_per_second"])
        for name in ("float32", "float16-scaled")
    }
    assert pair.speed_up == pytest.approx(pace["float16-scaled"] / pace["float32"])


def test_losses_are_equal_with_scaling_and_higher_without(jobs):
    scaled = compare(jobs["float32"], jobs["float16-scaled"])
    unscaled = compare(jobs["float32"], jobs["float16-unscaled"])
    assert abs(scaled.gap_at_step) < 0.1
    assert unscaled.gap_at_step > 0.1
    assert scaled.step == 564
    assert unscaled.gap_at_time is not None


def test_no_gain_on_a_cpu_is_explained(jobs):
    pair = compare(jobs["float32"], jobs["float16-scaled"])
    assert pair.speed_up < 1.1
    assert "emulated" in pair.reasons[0]
    assert pair.sentences()[0].startswith(f"{pair.speed_up:.3g}"[:3])


def test_a_gain_needs_no_reason(jobs):
    fast = jobs["float16-scaled"]
    points = dict(fast.points.columns)
    points["samples_per_second"] = points["samples_per_second"] * 10
    pair = compare(jobs["float32"], replace(fast, points=Table(points)))
    assert pair.speed_up > 1.1
    assert pair.reasons == ()


def test_what_is_not_known_is_left_out(jobs):
    bare = replace(jobs["float16-scaled"], points=Table(), memories=Table())
    pair = compare(jobs["float32"], bare)
    assert (pair.speed_up, pair.memory_saved, pair.gap_at_step) == (None, None, None)
    assert pair.sentences() == ["nothing to compare yet"]


def test_the_twin_is_the_same_model_in_the_other_precision(jobs):
    assert twin(jobs["float16-scaled"], jobs.values()).name == "float32"
    assert twin(jobs["float32"], jobs.values()).name.startswith("float16-")
    alone = [jobs["float16-scaled"], jobs["sawtooth"]]
    assert twin(jobs["sawtooth"], alone) is None
    other = replace(jobs["float32"], meta=replace(jobs["float32"].meta, parameters=1), key="other")
    assert twin(jobs["sawtooth"], [other]) is None


def test_the_twin_was_trained_alike(runs):
    """A job that failed after 120 of 400 steps is no twin of one that did its 564."""
    runs.add("float32", "float16-scaled", "failed")
    jobs = {job.name: job for job in runs.app().reader.look(None).jobs}
    assert jobs["failed"].policy == "float32"
    assert twin(jobs["float16-scaled"], jobs.values()).name == "float32"


def on(job, device, policy=None, parameters=10_000_000, **points):
    """The job as it would have been on another device."""
    policy = policy or job.policy
    table = dict(job.points.columns) | {
        name: np.full(len(job.points), value) for name, value in points.items()
    }
    meta = replace(job.meta, device=device, policy=policy, parameters=parameters)
    return replace(job, meta=meta, policy=policy, points=Table(table))


def reasons(jobs, device, policy="mixed_float16", parameters=10_000_000, wait=np.nan, times=(1, 2)):
    pair = compare(
        on(jobs["float32"], device, step_time_p50=times[0], samples_per_second=100.0),
        on(
            jobs["float16-scaled"],
            device,
            policy,
            parameters,
            step_time_p50=times[1],
            samples_per_second=100.0,
            input_share=wait,
        ),
    )
    assert pair.speed_up == 1.0
    return " ".join(pair.reasons)


def test_a_job_that_waits_for_its_batches_is_told_so(jobs):
    assert "waits 60 % of its time for batches" in reasons(jobs, "NVIDIA H200", wait=0.6)
    assert reasons(jobs, "NVIDIA H200", wait=0.1) == ""
    assert "waits 60 %" in reasons(jobs, "cpu", wait=0.6)


def test_where_waiting_cannot_be_seen_equal_steps_point_to_it(jobs):
    assert "Steps take equally long" in reasons(jobs, "NVIDIA H200", times=(1.0, 1.01))
    assert reasons(jobs, "NVIDIA H200", times=(1.0, 1.5)) == ""
    assert reasons(jobs, "NVIDIA H200", times=(1.0, 1.01), wait=0.0) == "", "it was seen: no wait"


@pytest.mark.parametrize(
    ("device", "policy", "words"),
    [
        ("Tesla V100-SXM2-16GB", "mixed_bfloat16", "no fast bfloat16; it is emulated"),
        ("Tesla V100-SXM2-16GB", "mixed_bfloat16", "mixed_float16 is fast there"),
        ("Tesla V100-SXM2-16GB", "mixed_float16", ""),
        ("NVIDIA H200", "mixed_bfloat16", ""),
        ("cpu", "mixed_bfloat16", "may have no fast bfloat16"),
        ("some device that nobody knows", "mixed_float16", ""),
    ],
)
def test_a_precision_that_the_device_emulates(jobs, device, policy, words):
    told = reasons(jobs, device, policy)
    assert words in told
    assert bool(words) == bool(told)


def test_a_small_model_does_not_fill_the_device(jobs):
    assert "375,680 parameters" in reasons(jobs, "NVIDIA H200", parameters=375_680)
    assert reasons(jobs, "NVIDIA H200", parameters=50_000_000) == ""
