"""A run's records again, from any moment."""

import json
import shutil

import numpy as np
import pytest
from helpers.dashboard import RECORDED

from tui.recording import Player, Recording


def player(name):
    return Player(Recording(RECORDED / name), "key", "runs")


def test_at_the_end_it_is_the_job_as_the_dashboard_shows_it(runs):
    (shown,) = runs.add("sawtooth").app().reader.look(None).jobs
    replayed = player("sawtooth")
    end = replayed.at(replayed.recording.stop)
    assert (end.step, end.loss, end.scale, end.skipped) == (
        *(shown.step, shown.loss, shown.scale, shown.skipped),
    )
    assert end.points["loss"].tolist() == shown.points["loss"].tolist()
    assert end.skips["step"].tolist() == shown.skips["step"].tolist()
    assert end.verdict.sentence == shown.verdict.sentence


def test_at_a_moment_nothing_later_is_known():
    replayed = player("sawtooth")
    recording = replayed.recording
    middle = (recording.start + recording.stop) / 2
    job = replayed.at(middle)
    assert 0 < job.step < 564
    assert job.points["time"].max() <= middle
    assert all(overflow.time <= middle for overflow in job.overflows)
    assert job.end is None
    assert job.verdict.state in ("running", "slow")


@pytest.mark.parametrize("name", ["sawtooth", "resumed", "nan-batches"])
def test_back_and_forth_is_the_same_as_straight_there(name):
    replayed = player(name)
    start, stop = replayed.recording.start, replayed.recording.stop
    for share in (0.7, 0.2, 0.9, 0.1, 1.0, 0.5):
        time = start + share * (stop - start)
        job, straight = replayed.at(time), player(name).at(time)
        assert (job.step, job.loss, job.resumed, job.overflow_count) == (
            *(straight.step, straight.loss, straight.resumed, straight.overflow_count),
        )
        assert np.array_equal(job.points["step"], straight.points["step"])
        assert job.verdict == straight.verdict


def test_the_verdict_is_that_of_the_moment():
    """Its loss was not finite from a step on: before that nobody could have known."""
    replayed = player("nan-loss")
    whole = replayed.at(replayed.recording.stop)
    assert whole.verdict.nan == "now"
    at = whole.points["time"][np.flatnonzero(~np.isfinite(whole.points["loss"]))[0]]
    assert replayed.at(at - 0.001).verdict.nan == "no"
    assert replayed.at(at).verdict.nan == "now"


def test_it_stops_when_told():
    replayed = player("float32")
    replayed.recording.times *= 40
    replayed.recording.records *= 40
    assert replayed.at(replayed.recording.stop, stop=lambda: True) is None


def test_a_clock_that_was_set_back_leaves_the_order_of_the_records(tmp_path):
    shutil.copytree(RECORDED / "sawtooth", tmp_path / "run")
    path = tmp_path / "run" / "events-0.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records[len(records) // 2 :]:
        record["time"] -= 7200
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    recording = Recording(tmp_path / "run")
    assert [r.step for _, r in recording.records] == [r["step"] for r in records]
    assert recording.times == sorted(recording.times)


def test_a_folder_without_a_journal_is_empty(tmp_path):
    recording = Recording(tmp_path)
    assert recording.records == []
    assert (recording.start, recording.stop) == (0.0, 0.0)
