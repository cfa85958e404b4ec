"""Stopping a job from the dashboard: a real process, and every reason not to."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
from helpers.dashboard import screen_text

from keras_mp.telemetry.process import is_alive, start_of
from tui import stopping
from tui.screens.stop import StopScreen
from tui.stopping import stop, why_not

HOST = socket.gethostname()
# A shell that runs the tests in the background has had them ignore ctrl+c, children included.
SLEEPER = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
print('up', flush=True)
time.sleep(600)
"""


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE)
    assert process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def job(runs, child):
    """A recorded job that is running, as if the child were its process."""
    (job,) = runs.add("killed").app().reader.look(None).jobs
    meta = replace(job.meta, host=HOST, pid=child.pid, process_started=start_of(child.pid))
    return replace(job, meta=meta)


@pytest.mark.parametrize(("key", "what"), [("i", signal.SIGINT), ("t", signal.SIGTERM)])
def test_the_process_gets_the_signal(job, child, key, what):
    assert why_not(job, is_alive) is None
    assert stop(job, key, is_alive) == f"Sent {what.name} to killed (process {child.pid})."
    assert child.wait(20) == -what or child.returncode in (1, 130)


def test_another_process_with_the_same_number_is_left_alone(job, child):
    older = replace(job, meta=replace(job.meta, process_started=job.meta.process_started - 100))
    assert "is not to be found" in stop(older, "t", is_alive)
    assert child.poll() is None


def test_a_job_elsewhere_or_over_is_left_alone(job, child, runs):
    far = replace(job, meta=replace(job.meta, host="gpu1"))
    assert "runs on another machine (gpu1)" in stop(far, "t", is_alive)
    (done,) = [j for j in runs.add("float32").app().reader.look(None).jobs if j.name == "float32"]
    over = replace(done, meta=job.meta)
    assert stop(over, "t", is_alive) == "float32 is over already."
    assert child.poll() is None


def test_what_the_system_refuses_is_said(job, monkeypatch):
    def refuse(pid, what):
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", refuse)
        said = stop(job, "t", is_alive)
    assert "belongs to somebody else" in said


@pytest.mark.parametrize(("key", "sent"), [("i", ["i"]), ("escape", []), ("q", []), ("K", [])])
async def test_the_dashboard_asks_before(runs, monkeypatch, key, sent):
    stopped = []
    monkeypatch.setattr(stopping, "why_not", lambda job, alive: None)
    monkeypatch.setattr(stopping, "stop", lambda job, key, alive: stopped.append(key) or "done")
    app = runs.add("killed").app()
    async with app.run_test(size=(80, 24)) as pilot:
        app.look_now()
        await pilot.pause()
        await pilot.press("K")
        await pilot.pause()
        assert isinstance(app.screen, StopScreen)
        assert "Stop killed (process" in "\n".join(screen_text(app))
        await pilot.press(key)
        await pilot.pause()
        assert not isinstance(app.screen, StopScreen)
        assert stopped == sent


async def test_a_job_that_cannot_be_stopped_is_told_at_once(runs):
    app = runs.add("killed").app()
    async with app.run_test(size=(80, 24)) as pilot:
        app.look_now()
        await pilot.pause()
        await pilot.press("K")
        await pilot.pause()
        assert not isinstance(app.screen, StopScreen)
        assert [n for n in app._notifications if "runs on another machine (host)" in n.message]
