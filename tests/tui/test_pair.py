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
