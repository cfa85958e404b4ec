"""``keras-mp`` as a user calls it: in a process of its own."""

import json
import os
import pty
import subprocess
import sys
import time

import pytest

from keras_mp.telemetry import process
from keras_mp.telemetry import records as r
from keras_mp.telemetry.folders import claim_run
from keras_mp.telemetry.journal import JournalWriter


def keras_mp(*args, **env) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "keras_mp.cli", *map(str, args)],
        capture_output=True,
        env={**os.environ, **env},
        timeout=120,
    )


def write_job(runs, folder, *records, **about):
    """A real writer's journal of a job that this very process runs."""
    writer = JournalWriter(claim_run(runs, folder))
    writer.start(
        r.Meta(
            **{
                "run_id": folder,
                "name": folder,
                "started": time.time(),
                "host": process.HOST,
                "pid": os.getpid(),
                "process_started": process.own_start(),
                **about,
            }
        )
    )
    for record in records:
        writer.write(record)
    writer.close()


def healthy(**values):
    return r.Step(**{"step": 564, "time": time.time(), "epoch": 11, "loss": 0.0011, "samples": 1310,
                     "seconds": 1.0, "scale": 2.0**15, "skipped": 0, "applied": 564,
                     "good_steps": 10, **values})  # fmt: skip


SCALER = {"dynamic": True, "growth_interval": 2000, "min_scale": 2.0**-14, "max_scale": 2.0**24}


def test_once_prints_the_table_with_every_column(tmp_path):
    done = r.End(step=564, time=time.time(), status="done")
    hits = r.Result(step=564, time=time.time(), values={"hits": 0.703})
    memory = r.Memory(step=564, time=time.time(), process_resident=620_000_000)
    write_job(tmp_path, "digits", healthy(), memory, done, hits, policy="mixed_float16",
              scaler=SCALER, planned_steps=564, planned_epochs=12)  # fmt: skip
    result = keras_mp("monitor", tmp_path, "--once")
    header, row, _, said = result.stdout.decode().splitlines()
    columns = ["job", "state", "policy", "epoch", "step", "loss", "scale", "skip", "samples/s"]
    assert header.split() == [*columns, "mem", "ETA", "hits"]
    assert row.split() == ["digits", "done", "mixed_float16", "12/12", "564/564", "0.0011", "2¹⁵",
                           "0", "%", "1.31k", "620", "MB", "–", "0.703"]  # fmt: skip
    assert said.strip() == "digits: healthy: no skip in the last 564 steps"
    assert result.returncode == 0 and result.stderr == b""


def test_json_says_the_same_and_is_ascii(tmp_path):
    write_job(tmp_path, "模型", healthy(loss=float("nan")), policy="mixed_float16", scaler=SCALER)
    result = keras_mp("monitor", tmp_path, "--json", LC_ALL="C", PYTHONIOENCODING="ascii")
    content = json.loads(result.stdout.decode("ascii"))
    (job,) = content["jobs"]
    assert (job["name"], job["step"], job["scale"], job["loss"]) == ("模型", 564, 32768.0, "nan")
    assert job["memory"] is None and job["severity"] == "error" and job["nan"] == "now"
    assert content["exit_status"] == result.returncode == 2


@pytest.mark.parametrize(
    ("last", "about", "status"),
    [
        ({}, {"scaler": SCALER}, 0),
        ({"scale": None, "skipped": None, "applied": None}, {"policy": "mixed_float16"}, 1),
        ({"loss": float("inf")}, {"scaler": SCALER}, 2),
        (None, {}, 2),
    ],
)
def test_exit_status_is_the_health(tmp_path, last, about, status):
    # Made here: a record made when the tests were collected may be minutes old, of a stalled job.
    failed = r.End(step=1, time=1.0, status="failed", reason="boom")
    write_job(tmp_path, "a", failed if last is None else healthy(**last), **about)
    assert keras_mp("monitor", tmp_path, "--once").returncode == status


def test_nothing_to_read_is_status_three_and_a_sentence(tmp_path):
    for path, words in [(tmp_path / "no", "does not exist"), (tmp_path, "no runs in")]:
        for form in ("--once", "--json"):
            result = keras_mp("monitor", path, form)
            assert result.returncode == 3
            assert words in (result.stderr + result.stdout).decode()
            assert b"Traceback" not in result.stderr
    (tmp_path / "a").mkdir()
    (tmp_path / "a/events-0.jsonl").write_bytes(b'{"kind":"start","schema":99,"time":1.0}\n')
    result = keras_mp("monitor", tmp_path, "--once")
    assert result.returncode == 3 and "newer keras-mp" in result.stdout.decode()


def test_corrupt_journal_is_shown_with_a_warning(tmp_path):
    write_job(tmp_path, "a", healthy(), scaler=SCALER)
    with open(tmp_path / "a/events-0.jsonl", "ab") as file:
        file.write(b"\x00\xff garbage\n")
    result = keras_mp("monitor", tmp_path, "--once")
    assert result.returncode == 1 and "1 damaged line was passed over" in result.stdout.decode()


@pytest.mark.parametrize(
    "args",
    [["monitor", "--once", "--json"], ["monitor", "--fps", "0"], ["monitor", "--fps", "x"],
     ["nonsense"], []],
)  # fmt: skip
def test_wrong_use_is_status_two(args):
    result = keras_mp(*args)
    assert result.returncode == 2 and b"usage:" in result.stderr


def test_help_is_the_manual():
    text = keras_mp("--help").stdout.decode()
    assert "monitor" in text and "exit status: 0 well" in text
    assert "folder of runs" in keras_mp("monitor", "--help").stdout.decode()
    assert keras_mp("--version").stdout.startswith(b"keras-mp ")


def test_locale_without_the_signs_gets_ascii(tmp_path):
    write_job(tmp_path, "é", healthy(), scaler=SCALER)
    result = keras_mp("monitor", tmp_path, "--once", PYTHONIOENCODING="ascii", LC_ALL="C")
    text = result.stdout.decode("ascii")
    assert "2^15" in text and result.returncode == 0
    assert "–" in keras_mp("monitor", tmp_path, "--once", PYTHONIOENCODING="utf-8").stdout.decode()


def test_without_unicode_the_columns_stay_straight(tmp_path):
    write_job(tmp_path, "数字識別", healthy(scale=2.0**-14), scaler=SCALER)
    write_job(tmp_path, "plain", healthy(scale=None))
    rows = keras_mp("monitor", tmp_path, "--once", PYTHONIOENCODING="ascii").stdout.splitlines()
    title, first, second = (row.decode() for row in rows[:3])
    assert {"????", "plain"} == {first.split()[0], second.split()[0]}
    assert "2^-14" in first + second
    for column in ("state", "policy"):
        assert {row[title.index(column) - 1] for row in (first, second)} == {" "}
    for column in ("scale", "skip", "mem"):
        end = title.index(column) + len(column)
        assert {row[end : end + 1] for row in (first, second)} == {" "}
        assert " " not in {row[end - 1] for row in (first, second)}, f"all end under {column}"


def test_the_pace_of_a_job_that_broke_off_is_no_rate(tmp_path):
    failed = r.End(step=564, time=time.time(), status="failed", reason="out of memory")
    write_job(tmp_path, "a", healthy(), failed, scaler=SCALER)
    title, row = keras_mp("monitor", tmp_path, "--once").stdout.decode().splitlines()[:2]
    end = title.index("samples/s") + len("samples/s")
    assert row[end - 1] == "–"


@pytest.mark.parametrize("form", ["--once", "--json"])
def test_output_that_cannot_be_written_is_said_in_a_sentence(tmp_path, form):
    write_job(tmp_path, "a", healthy(), scaler=SCALER)
    command = [sys.executable, "-m", "keras_mp.cli", "monitor", str(tmp_path), form]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=120)
    assert result.returncode == 2
    assert b"Traceback" not in result.stderr
    assert b"cannot be written: No space left on device" in result.stderr


def test_a_closed_output_leaves_the_exit_status(tmp_path):
    write_job(tmp_path, "a", healthy(), scaler=SCALER)
    command = f"{sys.executable} -m keras_mp.cli monitor {tmp_path} --once >&-"
    result = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, timeout=120)
    assert (result.returncode, result.stderr) == (0, b"")


def test_no_escape_sequence_in_what_is_printed(tmp_path):
    write_job(tmp_path, "a", healthy(), scaler=SCALER, name="\x1b[31mred\x1b[0m")
    assert b"\x1b" not in keras_mp("monitor", tmp_path, "--once").stdout


def test_no_terminal_is_said():
    result = keras_mp("monitor")
    assert result.returncode == 2 and b"--once" in result.stderr


def test_missing_textual_names_the_extra(tmp_path):
    (tmp_path / "textual.py").write_text("raise ImportError('no textual here')")
    parent, child = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "keras_mp.cli", "monitor", str(tmp_path)],
        stdin=child,
        stderr=child,
        stdout=child,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        timeout=60,
    )
    os.close(child)
    said = os.read(parent, 4096).decode()
    os.close(parent)
    assert done.returncode == 2 and "pip install 'keras-mp[tui]'" in said


def test_reader_that_goes_away_is_no_error(tmp_path):
    for i in range(30):
        write_job(tmp_path, f"job{i}", healthy(), scaler=SCALER)
    command = f"{sys.executable} -m keras_mp.cli monitor {tmp_path} --json"
    result = subprocess.run(
        ["sh", "-c", f"{command} | head -c 10"], capture_output=True, timeout=60
    )
    assert result.stderr == b""


def test_no_command_loads_a_backend(tmp_path):
    write_job(tmp_path, "a", healthy(), scaler=SCALER)
    code = """
import sys
from keras_mp import cli
cli.main(["monitor", sys.argv[1], "--json"])
bad = {"keras", "torch", "tensorflow", "jax", "textual"} & {m.split(".")[0] for m in sys.modules}
print(bad, file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True)
    assert result.stderr.decode().strip() == "set()"
