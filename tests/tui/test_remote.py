"""Hosts over ssh. A fake ssh on the PATH runs the far command here, in a shell as sshd does."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.dashboard import last_time, row_of, screen_text
from helpers.nvml import FakeGpu, FakeNvml

from keras_mp.telemetry.relay import Relay
from tui.app import MonitorApp
from tui.clock import SetClock
from tui.devices import DeviceReader
from tui.far_devices import FarDevices, encode
from tui.places import parse
from tui.remote import RemoteRuns, command

FAKE = """#!{python}
import os, subprocess, sys
arguments = sys.argv[1:]
host, far = arguments[arguments.index("--") + 1:]
with open({log!r}, "a") as log:
    log.write(host + "\\n")
if os.path.exists({down!r}):
    print("ssh: connect to host " + host + " port 22: No route to host", file=sys.stderr)
    sys.exit(255)
print("Welcome to " + host + "!", flush=True)
os.chdir({home!r})
os.execv("/bin/sh", ["sh", "-c", far])
"""


class Host:
    """A machine elsewhere: a folder here, and whether it answers."""

    def __init__(self, path: Path):
        self.home = path / "home"
        self.runs = self.home / "runs"
        self.runs.mkdir(parents=True)
        self.down, self.log = path / "down", path / "log"
        tools = path / "bin"
        tools.mkdir()
        fake = FAKE.format(
            python=sys.executable, log=str(self.log), down=str(self.down), home=str(self.home)
        )
        self._tool(tools / "ssh", fake)
        main = "import sys; from keras_mp.cli import main; sys.exit(main(sys.argv[1:]))"
        self._tool(tools / "keras-mp", f"#!{sys.executable}\n{main}\n")
        self.path = f"{tools}:{os.environ['PATH']}"

    @staticmethod
    def _tool(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def calls(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def host(tmp_path, monkeypatch):
    host = Host(tmp_path)
    monkeypatch.setenv("PATH", host.path)
    return host


@pytest.fixture
def remote(request):
    opened = []

    def start(path="runs", name="gpu1"):
        opened.append(RemoteRuns(name, path))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def wait(until, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_places_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse("gpu1:runs") == ("gpu1", "runs")
    assert parse("me@gpu1.lan:/data/my runs") == ("me@gpu1.lan", "/data/my runs")
    assert parse("[fe80::1]:runs") == ("fe80::1", "runs")
    assert parse("runs") is None
    assert parse("/data/runs") is None
    assert parse("-oProxyCommand=evil:runs") is None, "an option of ssh is no host"
    assert parse("C:\\runs") is None, "a drive of Windows is no host"
    (tmp_path / "a:b").mkdir()
    assert parse("a:b") is None, "a folder that exists here is one"


@pytest.mark.parametrize(
    "path", ["a b", "$(touch pwned)", "'; touch pwned; '", "-x", "`touch pwned`"]
)
def test_a_path_cannot_run_anything_else_there(host, path):
    (host.home / path).mkdir(parents=True, exist_ok=True)
    *ssh, far = command("gpu1", path)
    assert ssh[-2:] == ["--", "gpu1"]
    child = subprocess.run(
        ["sh", "-c", far.replace("--since -", "--once --since -")],
        input=b"{}\n",
        cwd=host.home,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert child.stdout.startswith(b"{}"), child.stderr
    assert not (host.home / "pwned").exists()


def test_runs_of_another_machine_are_the_same_runs(host, remote, runs):
    shutil.copytree(runs.add("sawtooth").path / "sawtooth", host.runs / "sawtooth")
    far = remote()
    far.settle(20)
    (job,) = far.jobs
    from keras_mp.telemetry.runs import RunsFolder

    here = RunsFolder(runs.path)
    here.poll(None)
    assert (job.name, job.step, job.records) == ("sawtooth", 564, here.jobs[0].records)
    assert job.series["loss"].tolist() == here.jobs[0].series["loss"].tolist()
    assert far.error is None


def test_it_follows_a_journal_that_grows(host, remote, runs):
    source = runs.add("sawtooth").path / "sawtooth"
    lines = (source / "events-0.jsonl").read_bytes().splitlines(keepends=True)
    (host.runs / "job").mkdir()
    shutil.copy(source / "meta.json", host.runs / "job")
    journal = host.runs / "job" / "events-0.jsonl"
    journal.write_bytes(b"".join(lines[:30]) + lines[30][:10])
    far = remote()
    far.settle(20)
    assert far.jobs[0].step < 564
    with open(journal, "ab") as file:
        file.write(lines[30][10:] + b"".join(lines[31:]))
    wait(lambda: far.poll(None) is not None and far.jobs[0].step == 564)


def test_a_killed_relay_is_started_again_where_it_ended(host, remote, runs):
    shutil.copytree(runs.add("float32").path / "float32", host.runs / "float32")
    far = remote()
    far.settle(20)
    first = far._child
    os.killpg(first.pid, signal.SIGKILL)
    wait(lambda: far._child is not first and not far.away)
    assert host.calls() == 2
    shutil.copytree(runs.add("sawtooth").path / "sawtooth", host.runs / "sawtooth")
    wait(lambda: far.poll(None) is not None and len(far.jobs) == 2)
    wait(lambda: far.poll(None) is not None and {j.step for j in far.jobs} == {564})
    (again,) = [job for job in far.jobs if job.name == "float32"]
    assert again.resumed == 0
    assert again.corrupt == 0


def test_a_host_that_is_down_is_said_with_the_reason(host, remote):
    host.down.touch()
    far = remote()
    far.settle(20)
    assert "gpu1:runs is unreachable" in far.error
    assert "No route to host" in far.error
    assert far.poll() == []
    host.down.unlink()
    wait(lambda: not far.away)
    assert far.error is None


def answers(host, script):
    """Another ssh, that does this."""
    ssh = Path(host.path.split(":")[0]) / "ssh"
    ssh.write_text(f"#!/bin/sh\n{script}\n")


def test_a_login_that_hangs_is_given_up_and_tried_again(host, remote, monkeypatch):
    answers(host, f"echo once >> {host.log}; exec sleep 600")
    monkeypatch.setattr("tui.remote.CONNECT_SECONDS", 0.2)
    far = remote()
    assert far.error == "gpu1:runs: connecting …"
    wait(lambda: far.poll() == [] and "gpu1:runs is unreachable: no answer" in far.error)
    wait(lambda: far.poll() == [] and host.calls() >= 2)


def test_once_does_not_wait_for_a_login_that_hangs(host, remote):
    answers(host, "exec sleep 600")
    far = remote()
    far.settle(0.2)
    assert "gpu1:runs is unreachable: no answer within" in far.error


@pytest.mark.parametrize("noise", ["hello", "[1, 2]", "\\033[31m"])
def test_whoever_only_makes_noise_is_no_relay(host, remote, noise):
    answers(host, f"exec yes '{noise}'")
    far = remote()
    wait(lambda: "no relay of keras-mp's" in far.error)


def test_what_a_host_complains_of_cannot_drive_the_terminal(host, remote):
    answers(host, "printf 'go \\033[2J away\\n' >&2; exit 1")
    far = remote()
    wait(lambda: "go \ufffd[2J away" in far.error)


def test_a_folder_that_is_missing_there_is_said(host, remote):
    far = remote("nowhere")
    far.settle(20)
    assert far.error == "gpu1: nowhere cannot be read (No such file or directory)"


@pytest.mark.parametrize(
    "name",
    ["../evil/events-0.jsonl", "run/../../x", "/etc/passwd", "run/other.txt", "events-0.jsonl"],
)
def test_the_far_end_cannot_write_outside_the_copy(host, remote, name, tmp_path):
    far = remote()
    with pytest.raises(ValueError, match="no journal"):
        far._place(name)


def test_a_frame_larger_than_its_file_says_is_refused(host, remote):
    far = remote()
    with pytest.raises(ValueError, match="impossible size"):
        far._take({"file": "a/meta.json", "offset": 0, "size": 1 << 40}, None)


def test_the_relay_sends_only_what_is_new(runs):
    runs.add("float32")
    whole = list(Relay(runs.path).frames())
    sizes = {frame.file: len(frame.data) for frame in whole}
    journal = "float32/events-0.jsonl"
    assert sizes[journal] == (runs.path / journal).stat().st_size
    rest = list(Relay(runs.path, {journal: sizes[journal] - 100}).frames())
    assert {f.file: (f.offset, len(f.data)) for f in rest}[journal] == (sizes[journal] - 100, 100)
    relay = Relay(runs.path)
    list(relay.frames())
    assert list(relay.frames()) == []


async def test_the_dashboard_keeps_the_last_known_state_of_a_host_that_goes_away(host, runs):
    shutil.copytree(runs.add("killed").path / "killed", host.runs / "killed")
    runs.add("float32")
    now = last_time(runs.path / "killed") + 1
    app = MonitorApp(
        ["gpu1:runs", str(runs.path)],
        clock=SetClock(now),
        alive=lambda *_: None,
        live=False,
    )
    far = app.reader._folders["gpu1:runs"]
    async with app.run_test(size=(120, 40)) as pilot:
        far.settle(20)
        far.last_heard = now + 1e9  # the host's clock and ours are set by this test
        app.look_now()
        await pilot.pause()
        rows = [row for row in screen_text(app) if "killed" in row and "mixed" in row]
        assert len(rows) == 2, "one here, one there"
        host.down.touch()
        os.killpg(far._child.pid, signal.SIGKILL)
        wait(lambda: far.error is not None and "No route to host" in far.error)
        far.last_heard = now
        app.clock.move(3600)
        app.look_now()
        await pilot.pause()
        shown = "\n".join(screen_text(app))
        assert "gpu1:runs is unreachable" in shown
        away = [row for row in screen_text(app) if "killed" in row and "?" in row]
        assert len(away) == 1
        assert "stalled" not in away[0], "nobody knows"
        assert "218/564" in away[0]
        assert " done " in row_of(app, "float32")


def test_once_reads_another_machine_too(host, runs):
    shutil.copytree(runs.add("float32").path / "float32", host.runs / "float32")
    code = "import sys; from keras_mp.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "monitor", "--json", "gpu1:runs"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    found = json.loads(done.stdout)
    assert found["runs"] == "gpu1:runs"
    assert [job["name"] for job in found["jobs"]] == ["float32"]
    host.down.touch()
    away = subprocess.run(
        [sys.executable, "-c", code, "monitor", "--once", "gpu1:runs"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert away.returncode == 3
    assert "unreachable" in away.stderr


PYNVML = """
import sys
sys.path.insert(0, {helpers!r})
from nvml import FakeGpu, FakeNvml

fake = FakeNvml(FakeGpu(used=100_000_000_000, processes={{{pid}: 90_000_000_000}}))
NVMLError, NVML_TEMPERATURE_GPU = fake.NVMLError, fake.NVML_TEMPERATURE_GPU
globals().update({{name: getattr(fake, name) for name in dir(fake) if name.startswith("nvmlD")}})
nvmlInit, nvmlShutdown = fake.nvmlInit, fake.nvmlShutdown
"""


async def test_the_gpus_of_another_host_come_with_its_jobs(host, runs, tmp_path, monkeypatch):
    """The far end reads its own NVML; the job there is found by its pid, the one here is not."""
    source = runs.add("killed").path / "killed"
    meta = json.loads((source / "meta.json").read_text())
    here = socket.gethostname()
    (host.runs / "far").mkdir()
    shutil.copy(source / "events-0.jsonl", host.runs / "far")
    (host.runs / "far" / "meta.json").write_text(json.dumps(meta | {"host": here, "name": "far"}))
    modules = tmp_path / "modules"
    modules.mkdir()
    helpers = str(Path(__file__).parents[1] / "helpers")
    (modules / "pynvml.py").write_text(PYNVML.format(helpers=helpers, pid=meta["pid"]))
    monkeypatch.setenv("PYTHONPATH", str(modules))
    app = MonitorApp(
        ["gpu1:runs", str(runs.path)],
        alive=lambda *_: True,
        live=False,
        devices=DeviceReader(FakeNvml(broken="none here"), host="laptop"),
    )
    far = app.reader._folders["gpu1:runs"]
    async with app.run_test(size=(140, 40)) as pilot:
        far.settle(20)
        wait(lambda: far.devices is not None)
        app.look_now()
        await pilot.pause()
        assert app.snapshot.devices.host == "laptop"
        (there,) = app.snapshot.devices.elsewhere
        assert (there.host, there.gpus[0].used) == (here, 100_000_000_000)
        rooms = {job.name: job.room for job in app.snapshot.jobs}
        assert rooms["far"][1] is not None, "what the far machine has left"
        assert rooms["killed"] == (None, None), "nobody tells of its host"
        await pilot.press("v")
        await pilot.pause()
        shown = "\n".join(screen_text(app))
        assert f"{here}: GPU0" in shown, "the job's device"
        assert "100/141 GB" in shown
        assert "No GPU of NVIDIA's can be read here (none here)." in shown
        host.down.touch()
        os.killpg(far._child.pid, signal.SIGKILL)
        wait(lambda: far.away)
        assert far.devices is None, "what a host had before it went away is no reading"


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {"host": 3},
        {"host": "a", "gpus": [3, {"index": "0"}, {"index": 0, "used": -1, "utilisation": 7}]},
        {"host": "a\x1b[2J", "gpus": 3, "machine": [], "reason": {}},
        {"host": "a", "machine": {"used": float("nan"), "total": 1e400, "cores": 10**30}},
        {"host": "a", "gpus": [{"index": 0, "processes": {"x": 1, "-3": 1, "7": "much"}}] * 1000},
    ],
)
def test_whatever_a_far_end_says_of_its_devices_is_checked(said):
    devices = FarDevices().take(said, 100.0)
    if devices is None:
        return
    assert "\x1b" not in devices.host
    assert len(devices.gpus) <= 64
    for gpu in devices.gpus:
        assert gpu.used is None
        assert gpu.utilisation is None
        assert gpu.processes in ({}, {7: None})
    machine = devices.machine
    assert (machine.used, machine.total, machine.cores) == (None, None, None)


def test_devices_survive_the_journey():
    told = DeviceReader(FakeNvml(FakeGpu(processes={3: 5, 4: None})), host="gpu1").read(100.0)
    sent = json.loads(json.dumps(encode(told)))
    arrived = FarDevices().take(sent, 100.0)
    assert arrived.host == "gpu1"
    assert replace(arrived.gpus[0], history=told.gpus[0].history) == told.gpus[0]
    assert arrived.gpus[0].history["utilisation"].tolist() == [0.87]
