"""The writer: each record is on disk at once; trouble with the disk never reaches the caller."""

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from keras_mp.telemetry import folders, journal
from keras_mp.telemetry import records as r
from keras_mp.telemetry.journal import JournalWriter
from keras_mp.telemetry.runs import RunsFolder
from keras_mp.telemetry.tail import JournalFile


def a_meta(**values) -> r.Meta:
    return r.Meta(**{"run_id": "a", "name": "a", "started": 1.0, "host": "h", "pid": 1, **values})


def step(number: int) -> r.Step:
    return r.Step(step=number, time=float(number))


def read(folder) -> list:
    return JournalFile(folder / "events-0.jsonl").read()


def python(code: str, *args, **kwargs) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


WRITE_FOREVER = """
    import sys
    from keras_mp.telemetry.journal import JournalWriter
    from keras_mp.telemetry import records as r
    writer = JournalWriter(sys.argv[1])
    first = int(sys.argv[2])
    writer.start(r.Meta(run_id="a", name="a", started=1.0, host="h", pid=1), first - 1)
    print("go", flush=True)
    for number in range(first, 10**9):
        writer.write(r.Step(step=number, time=float(number), loss=1.0 / number))
        if number % 500 == 0:
            print(number, flush=True)
"""


def test_first_line_says_the_schema_and_each_record_is_a_line(tmp_path):
    writer = JournalWriter(tmp_path / "a")
    assert writer.start(a_meta())
    assert writer.write(step(1)) and writer.write(r.End(step=1, time=2.0, status="done"))
    first, second, third = (tmp_path / "a/events-0.jsonl").read_text().splitlines()
    assert json.loads(first)["kind"] == "start" and json.loads(first)["schema"] == 1
    assert json.loads(second) == {"kind": "step", "step": 1, "time": 1.0, "steps": 1}
    assert json.loads(third) == {"kind": "end", "step": 1, "time": 2.0, "status": "done"}
    assert json.loads((tmp_path / "a/meta.json").read_text())["name"] == "a"
    assert [p.name for p in (tmp_path / "a").iterdir() if p.name.startswith(".")] == []


def test_nonfinite_numbers_come_back_as_they_were(tmp_path):
    writer = JournalWriter(tmp_path / "a")
    writer.start(a_meta())
    metrics = {"a": float("inf"), "b": float("-inf")}
    writer.write(r.Step(step=1, time=1.0, loss=float("nan"), metrics=metrics))
    text = (tmp_path / "a/events-0.jsonl").read_text()
    assert '"nan"' in text and "NaN" not in text and "Infinity" not in text
    record = read(tmp_path / "a")[1]
    assert record.loss != record.loss and record.metrics == metrics


def test_one_write_a_record_and_no_thread(tmp_path, monkeypatch):
    writer = JournalWriter(tmp_path / "a")
    writer.start(a_meta())
    calls = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: calls.append(data) or real(fd, data))
    threads = threading.active_count()
    for number in range(1, 21):
        writer.write(step(number))
    assert len(calls) == 20 and all(data.endswith(b"\n") for data in calls)
    assert threading.active_count() == threads


def test_buffer_holds_back_and_flushes_in_one_write(tmp_path, monkeypatch):
    writer = JournalWriter(tmp_path / "a", buffer=1000.0)
    writer.start(a_meta())
    calls = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: calls.append(data) or real(fd, data))
    for number in range(1, 21):
        writer.write(step(number))
    assert calls == [] and len(read(tmp_path / "a")) == 1
    writer.close()
    assert len(calls) == 1 and len(read(tmp_path / "a")) == 21


def test_resumed_run_appends_and_says_from_where(tmp_path):
    for base in (0, 3):
        writer = JournalWriter(tmp_path / "a")
        writer.start(a_meta(), base)
        for number in range(base + 1, base + 4):
            writer.write(step(number))
        writer.close()
    got = read(tmp_path / "a")
    assert [x.step for x in got] == [0, 1, 2, 3, 3, 4, 5, 6]
    assert isinstance(got[4], r.Start)


def test_killed_at_any_moment_the_journal_reads_and_a_resumed_run_appends(tmp_path):
    folder = tmp_path / "a"
    first, told = 1, 0
    for round_ in range(4):
        process = python(WRITE_FOREVER, folder, first)
        for _ in range(2 + round_):
            line = process.stdout.readline().strip()
            told = told if line == "go" else int(line)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        reader = JournalFile(folder / "events-0.jsonl")
        steps = [x.step for x in reader.read() if isinstance(x, r.Step)]
        assert steps == list(range(1, len(steps) + 1))  # nothing lost, nothing twice
        assert len(steps) >= told  # all that was written before it was told of
        assert reader.corrupt == 0
        first = len(steps) + 1


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_torn_line_harms_no_neighbour_after_a_resume(tmp_path, cut):
    writer = JournalWriter(tmp_path / "a")
    writer.start(a_meta())
    for number in (1, 2):
        writer.write(step(number))
    writer.close()
    path = tmp_path / "a/events-0.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    again = JournalWriter(tmp_path / "a")
    again.start(a_meta(), 1)
    again.write(step(2))
    again.write(step(3))
    reader = JournalFile(path)
    whole = cut == 1  # only its line end was missing
    assert [x.step for x in reader.read()] == [0, 1, *([2] if whole else []), 1, 2, 3]
    assert reader.corrupt == (0 if whole else 1)


def test_full_disk_is_said_once_and_counted_and_told_when_it_has_room_again(tmp_path, caplog):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "events-0.jsonl").symlink_to("/dev/full")
    writer = JournalWriter(folder)
    with caplog.at_level(logging.WARNING, "keras_mp"):
        assert not writer.start(a_meta())
        for number in range(1, 11):
            assert not writer.write(step(number))
    assert len(caplog.records) == 1 and "No space left" in caplog.text
    assert "Training goes on" in caplog.text
    assert (writer.lost, writer.written) == (11, 0)
    (folder / "events-0.jsonl").unlink()
    writer._retry_at = 0.0  # the second until the next attempt is over
    assert writer.write(step(11))
    kinds = [x.kind for x in read(folder)]
    assert kinds == ["start", "alert", "step"]
    assert "11 records before this one" in read(folder)[1].message
    assert json.loads((folder / "meta.json").read_text())["name"] == "a"


def test_file_size_limit_keeps_what_is_written_and_raises_nothing(tmp_path):
    process = python(
        """
        import resource, sys
        from keras_mp.telemetry.journal import JournalWriter
        from keras_mp.telemetry import records as r
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        writer = JournalWriter(sys.argv[1])
        writer.start(r.Meta(run_id="a", name="a", started=1.0, host="h", pid=1))
        for number in range(1, 101):
            writer.write(r.Step(step=number, time=float(number)))
        print(writer.written, writer.lost)
        """,
        tmp_path / "a",
    )
    out, err = process.communicate(timeout=60)
    written, lost = map(int, out.split())
    assert process.returncode == 0 and written + lost == 100 and lost > 0
    assert err.count("File too large") == 1
    steps = [x.step for x in read(tmp_path / "a") if isinstance(x, r.Step)]
    assert steps == list(range(1, written + 1))


def test_read_only_folder_raises_nothing(tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    runs.chmod(0o555)
    for path in (runs, *runs.parents):  # a user without rights must still be able to get there
        if path.stat().st_uid == os.getuid() and path != runs:
            path.chmod(path.stat().st_mode | 0o055)
    process = python(
        """
        import os, sys
        from keras_mp.telemetry.journal import JournalWriter
        from keras_mp.telemetry import records as r
        if os.getuid() == 0:
            os.setuid(65534)  # root may write anywhere
        writer = JournalWriter(sys.argv[1])
        print(writer.start(r.Meta(run_id="a", name="a", started=1.0, host="h", pid=1)))
        print(writer.write(r.Step(step=1, time=1.0)), writer.lost)
        """,
        runs / "a",
    )
    out, err = process.communicate(timeout=60)
    assert out.split() == ["False", "False", "2"] and process.returncode == 0
    assert err.count("cannot write to") == 1


def test_runs_folder_that_is_a_file_raises_nothing(tmp_path, caplog):
    (tmp_path / "runs").write_text("not a folder")
    writer = JournalWriter(tmp_path / "runs/a")
    assert not writer.start(a_meta()) and not writer.write(step(1))
    assert len(caplog.records) == 1


def test_removed_folder_is_noticed_and_not_made_again(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(journal, "CHECK_SECONDS", 0.0)
    writer = JournalWriter(tmp_path / "a")
    writer.start(a_meta())
    writer.write(step(1))
    for path in (tmp_path / "a").iterdir():
        path.unlink()
    (tmp_path / "a").rmdir()
    assert not writer.write(step(2)) and not writer.write(step(3))
    writer._retry_at = 0.0
    assert not writer.write(step(4))
    assert "was removed" in caplog.text and len(caplog.records) == 1
    assert writer.lost == 3 and not (tmp_path / "a").exists()


def test_rotation_goes_on_in_further_files_and_reads_as_one(tmp_path):
    writer = JournalWriter(tmp_path / "a", max_bytes=2000)
    writer.start(a_meta())
    for number in range(1, 201):
        writer.write(step(number))
    writer.close()
    files = sorted(p.name for p in (tmp_path / "a").glob("events-*"))
    assert len(files) > 3 and files[0] == "events-0.1.jsonl"
    again = JournalWriter(tmp_path / "a", max_bytes=2000)  # a resumed run goes on at the end
    again.start(a_meta(), 200)
    again.write(step(201))
    folder = RunsFolder(tmp_path)
    folder.poll(None)
    (job,) = folder.jobs
    assert list(job.series["step"]) == list(range(1, 202))
    assert job.resumed == 1 and job.corrupt == 0


def test_many_threads_write_whole_lines(tmp_path):
    writer = JournalWriter(tmp_path / "a")
    writer.start(a_meta())

    def work(first):
        for number in range(first, first + 200):
            writer.write(step(number))

    threads = [threading.Thread(target=work, args=(1 + 200 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = [x.step for x in read(tmp_path / "a")[1:]]
    assert sorted(got) == list(range(1, 801))


def test_a_value_that_is_no_json_is_written_as_text_not_raised(tmp_path):
    writer = JournalWriter(tmp_path / "a")
    writer.start(a_meta(scaler={"odd": object(), "n": float("inf")}))
    assert "object" in (tmp_path / "a/meta.json").read_text()
    assert writer.write(r.Result(step=1, time=1.0, values={"a": 1.0}))


@pytest.mark.parametrize("name", ["a b", "نموذج", "模型", "x/../y", "..", "\x1b[2J", "a" * 500])
def test_any_name_becomes_one_folder_below_the_runs(tmp_path, name):
    folder = folders.claim_run(tmp_path, name)
    assert folder.parent == tmp_path
    writer = JournalWriter(folder)
    assert writer.start(a_meta(name=name, run_id=folder.name))
    writer.close()
    shown = RunsFolder(tmp_path)
    shown.poll()
    assert len(shown.jobs) == 1 and shown.jobs[0].step == 0


def test_a_second_live_job_of_the_same_name_gets_its_own_folder(tmp_path):
    first = JournalWriter(folders.claim_run(tmp_path, "gan"))
    second = JournalWriter(folders.claim_run(tmp_path, "gan"))
    assert [w.folder.name for w in (first, second)] == ["gan", "gan-2"]
    first.start(a_meta())
    first.close()
    assert folders.claim_run(tmp_path, "gan").name == "gan"  # after the first: it goes on there


def test_a_live_job_of_another_process_keeps_its_folder_and_a_dead_one_does_not(tmp_path):
    process = python(
        """
        import os, sys, time
        from keras_mp.telemetry import folders, process
        from keras_mp.telemetry.journal import JournalWriter
        from keras_mp.telemetry import records as r
        writer = JournalWriter(folders.claim_run(sys.argv[1], "gan"))
        writer.start(r.Meta(run_id="gan", name="gan", started=1.0, host=process.HOST,
                            pid=os.getpid(), process_started=process.own_start()))
        print("go", flush=True)
        time.sleep(600)
        """,
        tmp_path,
    )
    process.stdout.readline()
    other = folders.claim_run(tmp_path, "gan")
    assert other.name == "gan-2"
    process.kill()
    process.communicate()
    folders.release_run(other)
    assert folders.claim_run(tmp_path, "gan").name == "gan"
