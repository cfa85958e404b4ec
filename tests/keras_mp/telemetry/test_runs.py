"""The folder of runs: runs appear, grow and go, and nothing that lies there raises."""

import importlib.util
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from keras_mp.telemetry import journal_runs
from keras_mp.telemetry import records as r
from keras_mp.telemetry.folders import claim_run
from keras_mp.telemetry.journal import JournalWriter
from keras_mp.telemetry.records import encode
from keras_mp.telemetry.runs import RunsFolder


def start(path, folder, **values) -> JournalWriter:
    writer = JournalWriter(claim_run(path, folder), rank=values.get("rank", 0))
    about = {"run_id": folder, "name": folder, "started": 1.0, "host": "h", "pid": 1, **values}
    writer.start(r.Meta(**about))
    return writer


def test_runs_appear_grow_end_and_go(tmp_path):
    folder = RunsFolder(tmp_path)
    assert folder.poll() == [] and folder.jobs == [] and folder.error is None
    first = start(tmp_path, "first", started=1.0)
    (job,) = folder.poll()
    assert (job.name, job.step) == ("first", 0)
    assert folder.poll() == []
    second = start(tmp_path, "second", started=2.0)
    first.write(r.Step(step=3, time=3.0))
    assert {j.name for j in folder.poll()} == {"first", "second"}
    assert [j.name for j in folder.jobs] == ["second", "first"]
    assert folder.jobs[1] is job and job.step == 3
    second.write(r.End(step=0, time=4.0, status="done"))
    assert [j.end.status for j in folder.poll()] == ["done"]
    version = folder.version
    for path in (tmp_path / "first").iterdir():
        path.unlink()
    (tmp_path / "first").rmdir()
    folder.poll()
    assert [j.name for j in folder.jobs] == ["second"] and folder.version > version


def test_missing_folder_is_said_and_may_come_later(tmp_path):
    folder = RunsFolder(tmp_path / "runs")
    assert folder.poll() == [] and folder.error.endswith("runs does not exist")
    start(tmp_path / "runs", "a")
    assert len(folder.poll()) == 1 and folder.error is None
    file = tmp_path / "file"
    file.touch()
    other = RunsFolder(file)
    other.poll()
    assert other.error.endswith("is not a folder")


def test_a_file_system_that_was_away_leaves_no_trouble_behind(tmp_path):
    start(tmp_path / "runs", "a").write(r.Step(step=3, time=3.0))
    os.utime(tmp_path / "runs/a", (1e9, 1e9))
    folder = RunsFolder(tmp_path / "runs")
    folder.poll()
    # The same folders again, as a network file system's are: nothing in them has changed.
    for moved in ("runs", "runs/a", "runs/a/meta.json"):
        (tmp_path / moved).rename(tmp_path / "away")
        folder.poll()
        assert folder.error or not folder.jobs or folder.jobs[0].problems
        (tmp_path / "away").rename(tmp_path / moved)
        folder.poll()
        (job,) = folder.jobs
        assert (folder.error, list(job.problems), job.step) == (None, [], 3)


def test_a_run_s_own_folder_shows_that_run(tmp_path):
    start(tmp_path, "a").write(r.Step(step=1, time=1.0))
    folder = RunsFolder(tmp_path / "a")
    folder.poll()
    assert [(j.name, j.step) for j in folder.jobs] == [("a", 1)]


def test_what_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "events-0.jsonl.bak").mkdir()
    folder = RunsFolder(tmp_path)
    assert folder.poll() == [] and folder.jobs == []


def test_damaged_missing_and_newer_meta(tmp_path):
    for name in ("damaged", "missing", "newer"):
        start(tmp_path, name).write(r.Step(step=1, time=1.0))
    (tmp_path / "damaged/meta.json").write_text("{")
    (tmp_path / "missing/meta.json").unlink()
    newer = json.loads((tmp_path / "newer/meta.json").read_text())
    (tmp_path / "newer/meta.json").write_text(json.dumps({**newer, "schema": 7}))
    folder = RunsFolder(tmp_path)
    folder.poll()
    problems = {job.run_id: job.problems for job in folder.jobs}
    assert problems["damaged"] == ["meta.json is damaged"]
    assert problems["missing"] == ["meta.json is missing"]
    assert "newer keras-mp (schema 7" in problems["newer"][0]
    assert all(job.step == 1 for job in folder.jobs)  # the records are read all the same


def test_newer_journal_and_damaged_lines_are_said(tmp_path):
    writer = start(tmp_path, "a")
    with open(tmp_path / "a/events-0.jsonl", "ab") as file:
        file.write(b"garbage\n")
    writer.write(r.Step(step=1, time=1.0))
    writer.write(r.Start(time=2.0, schema=3))
    folder = RunsFolder(tmp_path)
    folder.poll()
    (job,) = folder.jobs
    assert job.step == 1 and job.corrupt == 1
    assert any("newer keras-mp (schema 3" in p for p in job.problems)
    assert "1 damaged line was passed over" in job.problems


def test_names_from_the_disk_are_inert(tmp_path):
    start(tmp_path, "a", name="\x1b[2Jevil\u202e")
    os.rename(tmp_path / "a", os.fsencode(tmp_path) + b"/\xff\x1b[31m")
    folder = RunsFolder(tmp_path)
    folder.poll()
    (job,) = folder.jobs
    for text in (job.name, job.run_id):
        assert "\x1b" not in text and "\u202e" not in text
        text.encode()  # printable: no lone surrogate


def test_replaced_journal_is_folded_anew(tmp_path):
    writer = start(tmp_path, "a")
    for step in range(1, 50):
        writer.write(r.Step(step=step, time=float(step)))
    folder = RunsFolder(tmp_path)
    folder.poll()
    version = folder.jobs[0].version
    (tmp_path / "a/events-0.jsonl").write_text(json.dumps(encode(r.Step(step=7, time=1.0))) + "\n")
    folder.poll()
    (job,) = folder.jobs
    assert list(job.series["step"]) == [7] and job.version > version and job.name == "a"


def test_ranks_join_under_one_run(tmp_path):
    start(tmp_path, "a", rank=0, world_size=2).write(r.Step(step=1, time=1.0, loss=0.5))
    other = JournalWriter(claim_run(tmp_path, "a", shared=True), rank=1)
    other.start(r.Meta(run_id="a", name="a", started=1.0, host="h", pid=2, rank=1, world_size=2))
    other.write(r.Step(step=1, time=1.0, loss=0.9))
    folder = RunsFolder(tmp_path)
    folder.poll()
    (job,) = folder.jobs
    assert sorted(job.ranks) == [0, 1] and job.loss == 0.5 and job.meta.pid == 1


def test_long_journal_shows_its_latest_state_first_and_its_history_later(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_runs, "PREVIEW_ABOVE", 20_000)
    monkeypatch.setattr(journal_runs, "PREVIEW_BYTES", 2_000)
    monkeypatch.setattr(journal_runs, "TURN_BYTES", 5_000)
    writer = start(tmp_path, "a")
    for step in range(1, 2001):
        writer.write(r.Step(step=step, time=float(step), loss=1.0))
    folder = RunsFolder(tmp_path)
    folder.poll(seconds=0.0)
    (preview,) = folder.jobs
    assert preview.step == 2000 and 0 < preview.loading < 1 and folder.loading
    assert len(preview.series) < 100
    writer.write(r.Step(step=2001, time=2001.0))
    folder.poll(seconds=0.0)
    assert folder.jobs[0].step == 2001  # it stays the latest while the history is read
    for _ in range(1000):
        if not folder.loading:
            break
        folder.poll(seconds=0.0)
    (job,) = folder.jobs
    assert job is not preview and job.loading == 1.0 and job.version > preview.version
    np.testing.assert_array_equal(job.series["step"], np.arange(1, 2002))


def test_whoever_is_in_a_hurry_sees_every_job_before_any_history(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_runs, "LATEST_ABOVE", 2_000)
    for name in ("a", "b", "c"):
        writer = start(tmp_path, name)
        for step in range(1, 301):
            writer.write(r.Step(step=step, time=float(step), loss=1.0))
    folder = RunsFolder(tmp_path)
    folder.poll(seconds=600.0, hurry=True)
    assert [job.step for job in folder.jobs] == [300, 300, 300]
    assert all(0 < len(job.series) < 100 and job.loading < 1 for job in folder.jobs)
    assert folder.catching_up
    folder.poll(seconds=600.0, hurry=True)
    assert [len(job.series) for job in folder.jobs] == [300, 300, 300]
    assert not folder.loading and not folder.catching_up


def test_unreadable_file_does_not_hold_up_the_others(tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/events-0.jsonl").mkdir()
    start(tmp_path, "good").write(r.Step(step=4, time=1.0))
    folder = RunsFolder(tmp_path)
    began = time.monotonic()
    folder.poll(None)
    assert time.monotonic() - began < 5
    jobs = {job.run_id: job for job in folder.jobs}
    assert jobs["good"].step == 4
    assert any("cannot be read" in p for p in jobs["bad"].problems)


def benchmark():
    """The maker of long journals: a real run's lines, counted on."""
    path = Path(__file__).parents[3] / "benchmarks/telemetry.py"
    spec = importlib.util.spec_from_file_location("benchmarks_telemetry", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_gigabyte_shows_its_latest_state_in_two_seconds(tmp_path):
    made = benchmark()
    made.write_long(tmp_path / "a", 5_000_000, made.LIKE)
    assert (tmp_path / "a/events-0.jsonl").stat().st_size > 10**9
    began = time.process_time()
    folder = RunsFolder(tmp_path)
    folder.poll(seconds=1.0)
    spent = time.process_time() - began
    (job,) = folder.jobs
    with open(tmp_path / "a/events-0.jsonl", "rb") as file:
        file.seek(-3000, os.SEEK_END)
        last = file.read().splitlines()
    steps = [x["step"] for x in map(json.loads, last[1:]) if x["kind"] == "step"]
    assert job.step == steps[-1] and job.loading < 1 and job.loss is not None
    assert spent < 2.0  # the promise itself, in processor time


@pytest.mark.slow
def test_a_million_records_are_folded_whole_in_bounded_memory(tmp_path):
    made = benchmark()
    turns = made.write_long(tmp_path / "a", 1_000_000, made.LIKE)
    folder = RunsFolder(tmp_path)
    folder.poll(None)
    (job,) = folder.jobs
    real = RunsFolder(made.LIKE)
    real.poll(None)
    (once,) = real.jobs
    assert job.records == 1_000_001 and job.corrupt == 0 and job.loading == 1.0
    # Each turn but the last, which is cut, has all skipped steps of the real run.
    assert (turns - 1) * once.overflow_count <= job.overflow_count <= turns * once.overflow_count
    assert len(job.series) <= 200_000 and len(job.overflows) <= 20_000
    assert job.series["step"][0] <= once.series["step"][3]  # thinned, and from its beginning
    assert np.all(np.diff(job.series["step"]) > 0)
