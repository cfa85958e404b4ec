"""``keras-mp demo``: real jobs in processes of their own, with a terminal and without."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import psutil
import pytest

from keras_mp.cli import main
from keras_mp.commands import demo

DEMO = [sys.executable, "-m", "keras_mp.cli", "demo"]
PATIENCE = 300.0  # seconds; the machine may be busy with other tests


def jobs_of(process):
    """The demo's children that are alive."""
    return [child for child in process.children() if child.status() != psutil.STATUS_ZOMBIE]


def wait_until(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.backend
def test_without_a_terminal_it_trains_prints_the_table_and_exits_0(tmp_path, backend):
    done = subprocess.run(
        [*DEMO, "--backend", backend, "--runs", str(tmp_path), "--epochs", "2"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = dict(re.findall(r"^(\S+) +\| hits (\S+)$", done.stdout, re.MULTILINE))
    assert set(told) == set(demo.JOBS)
    header, *rows = done.stdout[done.stdout.index("  job ") :].splitlines()[:4]
    assert header.split()[-1] == "hits"
    for name, hits in told.items():
        (row,) = [row for row in rows if f" {name} " in row]
        assert float(row.split()[-1]) == pytest.approx(float(hits), abs=0.001)
        assert "done" in row
        assert "94/94" in row  # 2 epochs of 12,000 scenes in batches of 256
    (runs,) = tmp_path.iterdir()
    assert {path.name for path in runs.iterdir()} == set(demo.JOBS)  # a journal for each job


def test_a_job_that_fails_makes_the_demo_fail(tmp_path, capfd, monkeypatch):
    good = dict.fromkeys(demo.JOBS, ("--help",))
    monkeypatch.setattr(demo, "JOBS", good | {"float16-scaled": ("--scale", "eight")})
    assert main(["demo", "--runs", str(tmp_path)]) == 2
    said = capfd.readouterr()
    assert "float16-scaled   | " in said.out
    assert "--scale is none, dynamic or a number. Received: --scale=eight" in said.out
    assert said.err == "keras-mp demo: the job float16-scaled ended with status 2\n"
    monkeypatch.setattr(demo, "JOBS", good)
    monkeypatch.setattr(demo.time, "strftime", lambda form: "later")
    assert main(["demo", "--runs", str(tmp_path)]) == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_jobs_too(tmp_path, number, status):
    started = subprocess.Popen(
        [*DEMO, "--runs", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        # The suite may run in a shell's background, where SIGINT is ignored and stays so.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    process = psutil.Process(started.pid)
    wait_until(lambda: len(jobs_of(process)) == 3, "three jobs")
    jobs = jobs_of(process)
    started.send_signal(number)
    assert started.wait(PATIENCE) == status
    assert not [job for job in jobs if job.is_running()]


def test_a_job_that_ignores_its_signal_is_killed(monkeypatch):
    monkeypatch.setattr(demo, "SECONDS_TO_END", 0.2)
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True)"
    )
    with pytest.raises(RuntimeError, match="mine"), demo._children() as children:
        command = [sys.executable, "-c", f"{deaf}; time.sleep(600)"]
        children["deaf"] = subprocess.Popen(command, stdout=subprocess.PIPE)
        children["deaf"].stdout.readline()
        raise RuntimeError("mine")
    assert children["deaf"].returncode == -signal.SIGKILL
    children["deaf"].stdout.close()


def test_in_a_terminal_the_dashboard_shows_the_jobs_at_once(tmp_path):
    """In a real pty: the jobs stand there before Keras is loaded; quitting ends them."""
    leader, follower = pty.openpty()
    os.set_blocking(leader, False)
    started = subprocess.Popen(
        [*DEMO, "--runs", str(tmp_path)],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=os.environ | {"TERM": "xterm-256color", "LINES": "30", "COLUMNS": "120"},
        start_new_session=True,
    )
    os.close(follower)
    screen = bytearray()

    def read():
        if select.select([leader], [], [], 0.05)[0]:
            with contextlib.suppress(OSError):
                screen.extend(os.read(leader, 65536))
        return bytes(screen)

    wait_until(lambda: all(name.encode() in read() for name in demo.JOBS), "the jobs' names")
    jobs = jobs_of(psutil.Process(started.pid))
    assert len(jobs) == 3
    os.write(leader, b"q")
    wait_until(lambda: (read(), started.poll() is not None)[1], "the demo to end")
    while b"The same again" not in screen:
        read()
    os.close(leader)
    assert started.returncode == 0
    assert not [job for job in jobs if job.is_running()]
    assert b"ending the jobs that were still training" in screen
    (runs,) = tmp_path.iterdir()
    assert (runs / "float32.log").read_text().startswith("digit heat maps: float32")


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("mlxtend", "pip install 'keras-mp[demo]'"),
        ("torch", "pip install 'keras-mp[torch]'"),
    ],
)
def test_what_is_not_installed_is_said_before_anything_starts(
    tmp_path, capsys, monkeypatch, missing, says
):
    monkeypatch.setattr(demo, "installed", lambda name: name != missing)
    assert main(["demo", "--backend", "torch", "--runs", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_task_is_said_to_be_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "find_task", lambda: None)
    assert main(["demo", "--runs", str(tmp_path)]) == 2
    assert "Expected a clone with examples/" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["demo", "--runs", str(tmp_path / "file")]) == 2
    assert re.search(r"cannot make the folder .*file/demo-.*: Not a dir", capsys.readouterr().err)


@pytest.mark.parametrize("epochs", ["0", "-1", "many"])
def test_epochs_are_a_whole_number_from_1(epochs, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["demo", f"--epochs={epochs}"])
    assert f"expected a whole number from 1. Received: '{epochs}'" in capsys.readouterr().err


def test_an_unknown_backend_lists_the_known_ones(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["demo", "--backend", "theano"])
    assert "theano" in (said := capsys.readouterr().err)
    assert all(name in said for name in ("torch", "tensorflow", "jax"))
