"""Whatever happens to a journal: its reader never raises or hangs, and loses no complete line."""

import json
import os
import random
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_mp
from keras_mp.telemetry import records as r
from keras_mp.telemetry.health import verdict
from keras_mp.telemetry.report import as_json, as_table, look
from keras_mp.telemetry.runs import RunsFolder
from keras_mp.telemetry.tail import JournalFile

RECORDED = Path(__file__).parents[2] / "recorded/runs"
STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def python(code: str, *args) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# One process starts the killed ones by fork: a hundred interpreters would take minutes.
KILLED_AT_RANDOM_BYTES = """
    import os, random, signal, sys, time
    from pathlib import Path
    from keras_mp.telemetry import records as r
    from keras_mp.telemetry.journal import JournalWriter
    from keras_mp.telemetry.tail import JournalFile

    folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
    write, replace, dice = os.write, os.replace, random.Random(7)
    meta = r.Meta(run_id="a", name="a", started=1.0, host="h", pid=1)

    def killed(first, tell, left):
        def dying_write(descriptor, data):
            nonlocal left
            if left < len(data):
                write(descriptor, data[:left])
                os.kill(os.getpid(), signal.SIGKILL)
            left -= len(data)
            return write(descriptor, data)

        def dying_replace(source, target):
            if left < 30:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)

        os.write, os.replace = dying_write, dying_replace
        writer = JournalWriter(folder, max_bytes=3000)
        writer.start(meta, first - 1)
        write(tell, b"s")
        for number in range(first, 10**6):
            writer.write(r.Step(step=number, time=float(number), loss=1.0 / number))
            write(tell, b"x")  # the caller goes on: this one must not be lost

    done = torn = begun = 0
    for _ in range(rounds):
        left = dice.randrange(1, 2500)
        out, tell = os.pipe()
        child = os.fork()
        if child == 0:
            killed(done + 1, tell, left)
        os.close(tell)
        told = 0
        while block := os.read(out, 65536):
            told += block.count(b"x")
            begun += block.count(b"s")
        os.close(out)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
        places = sorted(folder.glob("events-0*.jsonl"),
                        key=lambda p: int((p.name + ".0").split(".")[1].replace("jsonl", "0")))
        readers = [JournalFile(path) for path in places]
        steps, starts = [], 0
        for record in (x for f in readers for x in f.read()):
            if isinstance(record, r.Start):  # what lies behind it is done again
                steps = [n for n in steps if n <= record.step]
                starts += not record.continues
            elif isinstance(record, r.Step):
                steps.append(record.step)
        assert steps == list(range(1, len(steps) + 1)), "lost or twice"
        assert starts >= begun, "the line behind a torn one was lost"
        assert len(steps) in (done + told, done + told + 1), (len(steps), done, told)
        done, torn = len(steps), sum(f.corrupt for f in readers)
    print(done, torn, len(places))
"""


def test_killed_a_hundred_times_at_random_bytes(tmp_path):
    ended = python(KILLED_AT_RANDOM_BYTES, tmp_path / "a", 100)
    assert ended.returncode == 0, ended.stderr
    steps, torn, files = map(int, ended.stdout.split())
    assert steps > 300 and torn > 30 and files > 3  # it was killed within lines, and resumed
    folder = RunsFolder(tmp_path)
    folder.poll(None)
    (job,) = folder.jobs
    assert list(job.series["step"]) == list(range(1, steps + 1)) and job.resumed >= 50


WRITER = """
    import sys
    from keras_mp.telemetry import records as r
    from keras_mp.telemetry.journal import JournalWriter
    writer = JournalWriter(sys.argv[1])
    writer.start(r.Meta(run_id="a", name="a", started=1.0, host="h", pid=1))
    print("go", flush=True)
    sys.stdin.readline()
    for number in range(1, 3001):
        writer.write(r.Step(step=number, time=1.0, metrics={sys.argv[2]: float(number)}))
"""


def test_two_processes_in_one_file_tear_no_line(tmp_path):
    writers = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(WRITER), tmp_path / "a", name],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in ("one", "two")
    ]  # fmt: skip
    for writer in writers:
        writer.stdout.readline()
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
    reader = JournalFile(tmp_path / "a/events-0.jsonl")
    steps = [x for x in reader.read() if isinstance(x, r.Step)]
    assert reader.corrupt == 0
    for name in ("one", "two"):
        assert [x.step for x in steps if name in x.metrics] == list(range(1, 3001))


CLAIM = """
    import sys, time
    from keras_mp.telemetry.folders import claim_run
    print("go", flush=True)
    sys.stdin.readline()
    print(claim_run(sys.argv[1], "gan").name, flush=True)
    sys.stdin.readline()
"""


def test_jobs_of_one_name_that_start_in_one_instant_get_a_folder_each(tmp_path):
    jobs = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(CLAIM), tmp_path],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]  # fmt: skip
    for job in jobs:
        job.stdout.readline()
    for job in jobs:
        job.stdin.write("\n")
        job.stdin.flush()
    names = {job.stdout.readline().strip() for job in jobs}
    for job in jobs:
        job.kill()
        job.communicate()
    assert names == {"gan", "gan-2", "gan-3", "gan-4"}
    assert keras_mp.Run(tmp_path, name="gan").folder.endswith("gan")  # killed: free again


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_lines_written_into_each_other_cost_only_themselves(tmp_path_factory, data):
    lines = [b'{"kind":"step","step":%d,"time":1.0}\n' % i for i in range(1, 25)]
    content = b"".join(lines)
    cut = data.draw(st.integers(0, len(content)))
    foreign = data.draw(st.binary(max_size=60))
    path = tmp_path_factory.mktemp("mixed") / "events-0.jsonl"
    path.write_bytes(content[:cut] + foreign + content[cut:])
    got = {x.step for x in JournalFile(path).read() if isinstance(x, r.Step)}
    hit = content[:cut].count(b"\n") + 1
    whole = cut == 0 or content[cut - 1 : cut] == b"\n"
    expected = set(range(1, 25)) - {hit}
    assert expected <= got
    if whole and foreign.endswith(b"\n"):
        assert hit in got or hit == 25


PERMISSION = """
    import os, sys
    from pathlib import Path
    from keras_mp.telemetry import journal, records as r
    from keras_mp.telemetry.journal import JournalWriter
    from keras_mp.telemetry.runs import RunsFolder
    if os.getuid() == 0:
        os.setuid(65534)  # root may do anything
    runs = Path(sys.argv[1])
    journal.RETRY_SECONDS = 0.0
    writer = JournalWriter(runs / "a", max_bytes=2000)
    writer.start(r.Meta(run_id="a", name="a", started=1.0, host="h", pid=1))
    folder, number = RunsFolder(runs), 0
    def write(count):
        global number
        for _ in range(count):
            number += 1
            writer.write(r.Step(step=number, time=float(number)))
    write(10)
    folder.poll(None)
    os.chmod(runs / "a", 0o500)       # no further file can be made
    write(100)
    lost = writer.lost
    os.chmod(runs / "a/events-0.jsonl", 0o000)
    folder.poll(None)
    (job,) = folder.jobs
    print(lost, job.step, sum("cannot be read" in p for p in job.problems))
    os.chmod(runs / "a/events-0.jsonl", 0o600)
    os.chmod(runs / "a", 0o700)
    write(10)
    folder.poll(None)
    (job,) = folder.jobs
    told = sum(alert.code == "records_lost" for alert in job.alerts)
    print(writer.lost, job.step, len(job.problems), told)
"""


def test_permission_lost_midway_and_given_back(tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    runs.chmod(0o777)
    for path in runs.parents:
        if path.stat().st_uid == os.getuid():
            path.chmod(path.stat().st_mode | 0o055)
    ended = python(PERMISSION, runs)
    assert ended.returncode == 0, ended.stderr
    before, after = (list(map(int, line.split())) for line in ended.stdout.splitlines())
    lost, seen, said = before
    assert lost > 0 and seen >= 10 and said == 1
    assert after == [lost, 120, 0, 1]
    assert ended.stderr.count("cannot write to") == 1


def test_a_clock_that_jumps_makes_no_window_negative_and_loses_none(tmp_path, monkeypatch):
    dice, real = random.Random(3), time.time
    monkeypatch.setattr(time, "time", lambda: real() + dice.uniform(-1e7, 1e7))
    with keras_mp.Run(tmp_path, name="a", every=2, planned_steps=100) as run:
        for _ in range(40):
            run.step(loss=1.0, samples=4)
    monkeypatch.undo()
    folder = RunsFolder(tmp_path)
    folder.poll(None)
    (job,) = folder.jobs
    windows = [x for x in JournalFile(tmp_path / "a/events-0.jsonl").read() if x.kind == "step"]
    assert job.step == 40 and all(w.seconds > 0 for w in windows)
    assert job.samples_per_second > 0 and not job.eta_seconds  # it has ended
    assert verdict(job, real()).state == "done"


def hostile():
    """Lines of real journals, damaged as a disk, a hand or an enemy would."""
    lines = [
        line
        for path in sorted(RECORDED.glob("*/events-0.jsonl"))
        for line in path.read_bytes().splitlines(keepends=True)[:40]
    ]
    number = st.sampled_from(
        [b"1e999", b"-1", b"9007199254740993", b"9" * 400, b'"nan"', b'"-inf"', b"null", b"true",
         b"[[[[1]]]]", b'"\\u001b[2J\\u202e\\ud800"', b'{"a":{"b":[]}}', b"-0.0", b"1e-320"]
    )  # fmt: skip

    def damaged(args):
        line, kind, place, junk = args
        at = place % (len(line) or 1)
        if kind == "cut":
            return line[:at] + b"\n"
        if kind == "flip":
            return line[:at] + bytes([line[at] ^ (1 + place % 255)]) + line[at + 1 :]
        if kind == "value":  # another value behind one of its keys
            keys = list(re.finditer(rb'": ', line))
            if keys:
                end = keys[place % len(keys)].end()
                rest = re.sub(rb'^("[^"]*"|[^,}\]]*)', b"", line[end:], count=1)
                return line[:end] + junk + rest
        return line

    return st.lists(
        st.tuples(st.sampled_from(lines), st.sampled_from(["as it is", "cut", "flip", "value"]),
                  st.integers(0, 10_000), number).map(damaged),
        max_size=60,
    )  # fmt: skip


@given(hostile(), st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_no_journal_stops_the_fold_the_verdict_or_the_table(tmp_path_factory, lines, meta):
    runs = tmp_path_factory.mktemp("runs")
    (runs / "a").mkdir()
    (runs / "a/events-0.jsonl").write_bytes(b"".join(lines))
    if meta:
        (runs / "a/meta.json").write_bytes(meta)
    folder = RunsFolder(runs)
    began = time.process_time()
    folder.poll(None)
    report = look(folder, time.time())
    table, text = as_table(report), as_json(report)
    json.loads(text)
    assert not STEERING.search(table) and time.process_time() - began < 10
    (job,) = folder.jobs
    complete = sum(line.endswith(b"\n") and line.strip() != b"" for line in lines)
    assert job.records + job.corrupt <= complete + 60


def test_a_hostile_journal_is_shown_inert(tmp_path):
    evil = "\x1b]0;owned\x07\x1b[2Jx\u202egpj.exe\r\nrm -rf"
    with keras_mp.Run(tmp_path, name=evil, every=1) as run:
        run.step(loss=1.0, metrics={evil: 1.0})
        run.result(**{evil: 2.0})
    (place,) = tmp_path.iterdir()
    (place / "meta.json").write_text(
        json.dumps({**json.loads((place / "meta.json").read_text()), "name": evil, "policy": evil,
                    "argv": [evil], "versions": {evil: evil}})
    )  # fmt: skip
    folder = RunsFolder(tmp_path)
    folder.poll(None)
    report = look(folder, time.time())
    for text in (as_table(report), as_json(report)):
        assert not STEERING.search(text) and "\x1b" not in text
    assert "gpj.exe" in as_table(report)


@pytest.mark.parametrize("name", ["two words", "نموذج لغوي", "模型—大", "a\u0301e\u0301", "🧪 run"])
def test_names_of_all_scripts_come_through_whole(tmp_path, name):
    with keras_mp.Run(tmp_path, name=name) as run:
        run.step(loss=1.0)
    folder = RunsFolder(tmp_path)
    folder.poll(None)
    (job,) = folder.jobs
    assert job.name == name and (tmp_path / name).is_dir()
    assert name in as_table(look(folder, time.time()))
