"""The folder of runs: runs appear, grow and go, and nothing that lies there raises."""

import json
import os
import time

import numpy as np
import pytest

from keras_mp.telemetry import records as r
from keras_mp.telemetry import runs
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
    monkeypatch.setattr(runs, "PREVIEW_ABOVE", 20_000)
    monkeypatch.setattr(runs, "PREVIEW_BYTES", 2_000)
    monkeypatch.setattr(runs, "TURN_BYTES", 5_000)
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


@pytest.mark.slow
def test_a_gigabyte_shows_its_latest_state_in_two_seconds(tmp_path):
    writer = start(tmp_path, "a")
    line = json.dumps(encode(r.Step(step=1, time=1.0, loss=0.5, metrics={"m": 1.0}))) + "\n"
    block = line.encode() * 10_000
    with open(tmp_path / "a/events-0.jsonl", "ab") as file:
        while file.tell() < 10**9:
            file.write(block)
    writer.write(r.Step(step=77, time=9.0))
    began = time.process_time()
    folder = RunsFolder(tmp_path)
    folder.poll(seconds=1.0)
    assert folder.jobs[0].step == 77
    assert time.process_time() - began < 2.0  # the promise itself, in processor time
