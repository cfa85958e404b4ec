"""Verdicts on journals of real runs, made sick on purpose: what was said at each moment.

``tests/recorded/record.py`` says how each was made. Nothing in them is written by hand.
"""

import itertools
from pathlib import Path

import pytest

from keras_mp.telemetry import thresholds
from keras_mp.telemetry.alerts import Alerts
from keras_mp.telemetry.decode import decode_meta
from keras_mp.telemetry.health import findings, verdict
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.records import Step
from keras_mp.telemetry.tail import JournalFile

RECORDED = Path(__file__).parents[2] / "recorded"


def folder(name):
    return next(p for part in ("runs", "verdicts") if (p := RECORDED / part / name).is_dir())


def living(pid, started, host):
    return True


def gone(pid, started, host):
    return False


def moments(name):
    """(job, time) after each record of a run: the job grows as a dashboard saw it grow."""
    job = Job(name)
    job.meta = decode_meta((folder(name) / "meta.json").read_bytes())
    for record in JournalFile(folder(name) / "events-0.jsonl").read():
        job.apply(record)
        yield job, record.time


def whole(name):
    *_, (job, _) = moments(name)
    return job


def story(name, what):
    """The values of ``what(verdict)`` as they followed each other, from the first step on."""
    said = []
    for job, now in moments(name):
        if job.step:
            value = what(verdict(job, now + 0.5, alive=living))
            if said[-1:] != [value]:
                said.append(value)
    return said


def scale_story(name):
    return story(name, lambda v: v.scale_state)


# One or more a verdict.


def test_sawtooth_is_healthy_once_the_first_scale_is_found():
    assert scale_story("sawtooth") == ["healthy", "calibrating", "healthy"]
    assert story("sawtooth", lambda v: v.severity) == ["ok"]
    assert "as dynamic scaling expects" in verdict(whole("sawtooth"), 1e12, alive=gone).sentence


def test_gradients_that_keep_growing_thrash():
    said = scale_story("thrashing")
    assert said[:3] == ["healthy", "calibrating", "healthy"] and "thrashing" in said
    v = verdict(whole("thrashing"), whole("thrashing").last_time, alive=living)
    assert v.severity in ("warning", "error") and "heat_map" in v.advice


def test_a_run_of_skips_collapses():
    assert scale_story("collapsing") == ["healthy", "thrashing", "collapsing"]
    v = verdict(whole("collapsing"), whole("collapsing").last_time, alive=living)
    assert v.severity == "error" and "the last 9 steps were all skipped" in v.sentence
    assert "keep that layer in float32" in v.advice


def test_skipping_at_the_floor_is_exhausted():
    assert scale_story("exhausted") == ["healthy", "thrashing", "collapsing", "exhausted"]
    v = verdict(whole("exhausted"), whole("exhausted").last_time, alive=living)
    assert v.severity == "error" and "2⁻³" in v.sentence


def test_a_static_scale_that_is_too_large():
    assert scale_story("static-too-large") == ["static"]
    assert story("static-too-large", lambda v: v.severity)[-1] == "error"
    assert "static scale 2¹⁶ is too large" in verdict(whole("static-too-large"), 1e12,
                                                      alive=gone).sentence  # fmt: skip


@pytest.mark.parametrize("name", ["float32", "数字-bfloat16"])
def test_jobs_without_a_scale_are_no_matter(name):
    assert scale_story(name) == ["n/a"] and story(name, lambda v: v.severity) == ["ok"]


def test_float16_without_a_scale_is_told_from_the_first_step():
    assert scale_story("float16-unscaled") == ["n/a"]
    assert set(story("float16-unscaled", lambda v: v.severity)) == {"warning"}


def test_a_nan_stays_visible_until_it_is_acknowledged():
    assert story("nan-loss", lambda v: v.nan) == ["no", "now"]
    assert story("nan-batches", lambda v: v.nan) == ["no", "now", "was"]
    job = whole("nan-batches")
    assert job.nan_step is not None
    assert verdict(job, job.last_time, alive=living, acknowledged=job.nan_step).nan == "no"


def test_a_killed_job_is_dead_and_one_that_is_only_silent_is_not():
    job = whole("killed")
    assert job.end is None
    assert verdict(job, job.last_time + 1, alive=gone).state == "running"
    assert verdict(job, job.last_time + 3, alive=gone).state == "dead"
    assert verdict(job, job.last_time + 3, alive=living).state == "running"
    assert verdict(job, job.last_time + 3600, alive=living).state == "stalled"


def test_ends_that_the_job_tells_itself():
    assert verdict(whole("failed"), 1e12, alive=gone).state == "failed"
    assert "size of tensor" in verdict(whole("failed"), 1e12, alive=gone).sentence
    assert verdict(whole("float16-scaled"), 1e12, alive=gone).state == "done"
    assert verdict(whole("resumed"), 1e12, alive=gone).exit_status == 0


def test_a_batch_that_does_not_come_stalls_the_job_until_it_does():
    """At each moment in the gap that its silence left, and at none outside it."""
    times = [now for _, now in moments("stalled")]
    begun, length = max(
        ((a, b - a) for a, b in itertools.pairwise(times)), key=lambda pair: pair[1]
    )
    assert length > 20
    for job, now in moments("stalled"):
        if job.step and now <= begun:
            assert verdict(job, now + 0.5, alive=living).state in ("running", "slow")
        if now == begun:
            assert verdict(job, begun + 8, alive=living).state in ("running", "slow")
            v = verdict(job, begun + 20, alive=living)
            assert (v.state, v.severity) == ("stalled", "error") and "input pipeline" in v.advice
        if now > begun + length + 1 and job.end is None:
            assert verdict(job, now + 0.5, alive=living).state in ("running", "slow")
    assert verdict(whole("stalled"), 1e12, alive=gone).state == "done"


def test_batches_that_come_late_slow_the_job_down():
    said = story("slow", lambda v: v.state)
    assert said[-2:] == ["slow", "done"]
    for job, now in moments("slow"):
        if job.step == 190:
            assert verdict(job, now + 0.5, alive=living).state == "running"


def test_a_search_from_a_large_first_scale_is_no_collapse():
    said = scale_story("searching")
    assert said[-1] in ("calibrating", "healthy") and "calibrating" in said
    assert set(story("searching", lambda v: v.severity)) == {"ok"}
    assert whole("searching").skipped >= 8  # it has had a run that elsewhere is a collapse


def test_healthy_runs_stay_quiet():
    for name in ("float32", "float16-scaled", "sawtooth", "resumed", "healthy", "static-2-15"):
        watch = Alerts(whole(name).meta)
        for record in JournalFile(folder(name) / "events-0.jsonl").read():
            watch.see(record)
            if isinstance(record, Step):
                told = [a for a in watch.news(record.time) if a.code != "slow"]
                assert told == [], (name, told)


def test_sick_runs_are_told():
    expected = {
        "thrashing": "thrashing",
        "collapsing": "collapsing",
        "exhausted": "exhausted",
        "static-too-large": "static",
        "nan-loss": "nan",
        "float16-unscaled": "unscaled",
        "unscaled": "lost",
        "activations": "outputs",
        "slow": "slow",
    }
    for name, code in expected.items():
        watch, told = Alerts(whole(name).meta), []
        for record in JournalFile(folder(name) / "events-0.jsonl").read():
            watch.see(record)
            told += watch.news(record.time) if isinstance(record, Step) else []
        assert code in {alert.code for alert in told}, name


# What numbers say.


def codes(name):
    job = whole(name)
    return {f.code: f for f in findings(job, job.last_time + 0.5, alive=living)}


def test_an_unscaled_job_is_told_what_float16_loses_and_which_scale_would_not():
    found = codes("unscaled")["lost"]
    assert "of the gradients that are not zero at scale 2⁰" in found.sentence
    assert "A scale of 2" in found.advice and "would lose" in found.advice
    assert "lost" not in codes("static-2-15")


def test_a_scale_that_is_too_small_is_told_so():
    """8 is enough to learn the task, and still loses much: a warning, no error."""
    assert codes("static-8").get("lost") is None or codes("static-8")["lost"].severity == "warning"


def test_dead_units_are_no_loss():
    job = whole("dead-units")
    dead = [n for n in job.numerics.values() if n.layer.endswith("dead") and n.variable]
    assert len(dead) == 2 and all(n.zero == 1.0 and n.lost == 0.0 for n in dead)
    assert "lost" not in codes("dead-units")
    measured = [n.underflow for n in job.numerics.values() if n.underflow is not None]
    assert measured and max(measured) < 0.05


def test_outputs_beyond_float16_are_named():
    found = codes("activations")["outputs"]
    assert "blown_up" in found.sentence and "float32" in found.advice


# The limits.


def test_every_limit_has_a_reason_in_the_one_table():
    table = thresholds.TABLE
    names = {n for n in vars(thresholds) if n.isupper() and n != "TABLE"}
    assert names == set(table)
    for name, entry in table.items():
        assert entry.value == getattr(thresholds, name) and len(entry.reason) > 30
        assert name in thresholds.as_text()
