import json
import shutil

import numpy as np
import pytest
from helpers.dashboard import RECORDED

import tui.reader
from tui.clock import SetClock
from tui.reader import Reader, place_name


def reader_on(runs, **options):
    app = runs.app(**options)
    return app.reader, app.clock


def test_a_snapshot_does_not_change_afterwards(runs):
    runs.add("sawtooth")
    path = runs.path / "sawtooth" / "events-0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    reader, _ = reader_on(runs)
    path.write_bytes(b"".join(lines[:50]))
    (early,) = reader.look(None).jobs
    loss = early.points["loss"].copy()
    scales, overflows = len(early.scales), len(early.overflows)
    with open(path, "ab") as file:
        file.write(b"".join(lines[50:]))
    (late,) = reader.look(None).jobs
    assert len(late.points) > len(early.points)
    assert np.array_equal(early.points["loss"], loss)
    assert (len(early.scales), len(early.overflows)) == (scales, overflows)
    with pytest.raises(ValueError, match="read-only"):
        late.points["loss"][0] = 0.0


def test_a_job_that_did_not_change_is_the_same_object(runs):
    reader, _ = reader_on(runs.add("float32", "sawtooth"))
    first, second = reader.look(None), reader.look(None)
    assert [a is b for a, b in zip(first.jobs, second.jobs, strict=True)] == [True, True]


@pytest.mark.parametrize("scale", ['"inf"', '"nan"', "0.0", "-2.0"])
def test_numerics_at_a_scale_that_is_none_are_judged_as_unscaled(runs, scale):
    journal = runs.add("healthy").path / "healthy" / "events-0.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "numerics" and "scale" in line:
            line["scale"] = json.loads(scale)
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    snapshot = reader_on(runs)[0].look(None)
    (job,) = snapshot.jobs
    assert job.numerics and not snapshot.errors


def test_a_journal_that_nobody_foresaw_does_not_end_the_watch(runs, monkeypatch):
    reader, _ = reader_on(runs.add("float32", "killed"))

    def judge(job, *args, **kwargs):
        if job.name == "killed":
            raise ZeroDivisionError("a fault")
        return judged(job, *args, **kwargs)

    judged = tui.reader.verdict
    monkeypatch.setattr(tui.reader, "verdict", judge)
    snapshot = reader.look(None)
    assert [job.name for job in snapshot.jobs] == ["float32"]
    assert snapshot.errors == [
        "killed cannot be shown, which is a fault of keras-mp's (ZeroDivisionError: a fault)"
    ]
    monkeypatch.undo()
    assert len(reader.look(None).jobs) == 2 and not reader.look(None).errors


def test_silence_alone_changes_the_verdict(runs):
    reader, clock = reader_on(runs.add("killed"))
    (before,) = reader.look(None).jobs
    clock.move(600)
    (after,) = reader.look(None).jobs
    assert before.verdict.state in ("running", "slow")
    assert after.verdict.state == "stalled"
    assert after.points is before.points or len(after.points) == len(before.points)


def test_a_nan_of_the_past_is_left_out_once_it_is_acknowledged(runs):
    reader, _ = reader_on(runs.add("nan-batches"))
    (before,) = reader.look(None).jobs
    assert 76 <= before.nan_step < 100, "as tests/recorded/record.py planted them"
    assert before.verdict.nan == "was"
    reader.acknowledged = {before.key: before.nan_step}
    (after,) = reader.look(None).jobs
    assert after.verdict.nan == "no"


def test_runs_of_the_same_name_in_two_folders_are_two_jobs(runs, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "float32").symlink_to(runs.add("float32").path / "float32")
    snapshot = Reader([str(runs.path), str(other)], SetClock(0.0)).look(None)
    assert [job.name for job in snapshot.jobs] == ["float32", "float32"]
    assert len({job.key for job in snapshot.jobs}) == 2


def test_skips_are_where_the_journal_says(runs):
    reader, _ = reader_on(runs.add("exhausted"))
    (job,) = reader.look(None).jobs
    assert job.skips["step"].tolist() == [o.step for o in job.overflows]
    assert job.overflow_count == len(job.skips) > 20
    assert job.skips["step"].min() == 321, "the first spoilt batch of tests/recorded/record.py"


def test_places_below_the_home_folder_are_abbreviated(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert place_name("/home/me/runs") == "~/runs"
    assert place_name("/data/runs") == "/data/runs"
    assert place_name("runs") == "runs"


def test_a_busy_journal_is_not_a_history_still_to_be_read(runs, monkeypatch):
    """Records that came during the look are for the next one: the feed must pause before it."""
    runs.add("float32")
    reader, _ = reader_on(runs)
    reader.look()
    path = runs.path / "float32" / "events-0.jsonl"
    folder = next(iter(reader._folders.values()))
    poll = folder.poll

    def poll_and_write(*how):
        out = poll(*how)
        with open(path, "ab") as file:
            file.write(path.read_bytes().splitlines(keepends=True)[1])
        return out

    monkeypatch.setattr(folder, "poll", poll_and_write)
    reader.look()
    assert folder.loading
    assert not reader.behind


def test_many_runs_come_a_few_at_a_time_and_all_of_them_come(runs):
    names = ["float32", "sawtooth", "killed", "failed", "thrashing"]
    runs.add(*names)
    reader, _ = reader_on(runs)
    seen = [len(reader.look(seconds=0.0).jobs) for _ in range(5)]
    assert seen == [1, 2, 3, 4, 5], "the first look does not wait for all of them"
    reader.look(None)
    assert {job.step for job in reader.look(None).jobs} == {564, 218, 120, 396}
    assert not reader.behind


def test_what_nobody_looks_at_is_read_a_little_later(runs):
    source = RECORDED / "sawtooth" / "events-0.jsonl"
    lines = source.read_bytes().splitlines(keepends=True)
    for name in ("seen", "unseen"):
        (runs.path / name).mkdir()
        (runs.path / name / "events-0.jsonl").write_bytes(b"".join(lines[:20]))
    reader, _ = reader_on(runs)
    keys = {job.run_id: job.key for job in reader.look(None).jobs}
    reader.in_view = frozenset([keys["seen"]])
    reader.look()

    def steps():
        return {job.run_id: job.step for job in reader.look().jobs}

    before = steps()
    for name in ("seen", "unseen"):
        with open(runs.path / name / "events-0.jsonl", "ab") as file:
            file.write(b"".join(lines[20:40]))
    now = steps()
    assert now["seen"] > before["seen"]
    assert now["unseen"] == before["unseen"]
    reader.in_view = None
    assert steps()["unseen"] == now["seen"]


def test_a_nan_is_judged_at_once_and_progress_after_a_second(runs):
    """The clock stands still: only the job's own records tell that time has passed."""
    lines = (RECORDED / "nan-loss" / "events-0.jsonl").read_bytes().splitlines(keepends=True)
    (runs.path / "job").mkdir()
    journal = runs.path / "job" / "events-0.jsonl"
    shutil.copy(RECORDED / "nan-loss" / "meta.json", runs.path / "job")
    steps = [n for n, line in enumerate(lines) if b'"step_time_p50"' in line]
    nan = next(n for n in steps if b'"loss":"nan"' in lines[n])
    reader = Reader([str(runs.path)], SetClock(json.loads(lines[nan])["time"]), lambda *_: True)

    def look(until):
        journal.write_bytes(b"".join(lines[:until]))
        (job,) = reader.look(None).jobs
        return job.verdict

    before = look(nan)
    assert before.nan == "no"
    assert look(nan + 1).nan == "now"
    soon = next(n for n in steps if n > nan)
    later = json.loads(lines[soon])["time"] - json.loads(lines[nan])["time"]
    assert later > 1.0, "the recording has records this far apart"
    (running,) = [said for said in look(soon + 1).findings if said.startswith("running")]
    assert running not in before.findings
