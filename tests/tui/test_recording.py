"""A run's records again, from any moment."""

import json
import shutil
import tracemalloc

import numpy as np
import pytest
from helpers.dashboard import RECORDED
from helpers.long_run import LongRun

from tui.recording import Player, Recording


def player(name):
    """A player whose recording knows when it began and ended."""
    replayed = Player(Recording(RECORDED / name), "key", "runs")
    replayed.end()
    return replayed


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


def test_it_stops_when_told(tmp_path):
    long = LongRun(RECORDED / "sawtooth")
    (tmp_path / "run").mkdir()
    with open(tmp_path / "run" / "events-0.jsonl", "wb") as file:
        for _, lines in long.rounds(20 * long.seconds):
            file.write(lines)
    replayed = Player(Recording(tmp_path / "run"), "key", "runs")
    end = replayed.end()
    assert end.step == 20 * long.steps
    middle = (replayed.recording.start + replayed.recording.stop) / 2
    assert replayed.at(middle, stop=lambda: True) is None
    job = replayed.at(middle)
    assert 9 * long.steps < job.step < 11 * long.steps, "and goes on from there"


def test_of_a_long_run_only_the_job_is_kept(tmp_path):
    """Twice the journal, and the memory that it takes to read it is the same."""
    long = LongRun(RECORDED / "sawtooth")
    peaks = []
    for rounds in (40, 80):
        folder = tmp_path / str(rounds)
        folder.mkdir()
        with open(folder / "events-0.jsonl", "wb") as file:
            for _, lines in long.rounds(rounds * long.seconds):
                file.write(lines)
        tracemalloc.start()
        for _ in Recording(folder):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0], peaks


def test_ranks_are_merged_by_time(tmp_path):
    """Two processes of one job; each one's own records stay in order."""
    shutil.copytree(RECORDED / "sawtooth", tmp_path / "run")
    first = tmp_path / "run" / "events-0.jsonl"
    shutil.copy(first, tmp_path / "run" / "events-1.jsonl")
    entries = list(Recording(tmp_path / "run"))
    times = [time for time, _, _ in entries]
    assert times == sorted(times)
    lines = len(first.read_text().splitlines())
    for rank in (0, 1):
        assert sum(r == rank for _, r, _ in entries) == lines
    assert len(list(Recording(tmp_path / "run").of_lead())) == lines


def test_a_clock_that_was_set_back_leaves_the_order_of_the_records(tmp_path):
    shutil.copytree(RECORDED / "sawtooth", tmp_path / "run")
    path = tmp_path / "run" / "events-0.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records[len(records) // 2 :]:
        record["time"] -= 7200
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    entries = list(Recording(tmp_path / "run"))
    assert [r.step for _, _, r in entries] == [r["step"] for r in records]
    times = [time for time, _, _ in entries]
    assert times == sorted(times)


def test_a_folder_without_a_journal_is_empty(tmp_path):
    recording = Recording(tmp_path)
    assert list(recording) == list(recording.of_lead()) == []
    assert Player(recording, "key", "runs").end() is None
