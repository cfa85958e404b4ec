"""The dashboard in a real terminal, with tmux as the terminal."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.dashboard import RECORDED

EXAMPLE = Path(__file__).parents[2] / "examples" / "digit_heatmap.py"


def test_the_screens_follow_the_keys_and_the_size(tmux, tmp_path):
    settings = tmp_path / "dashboard.json"
    terminal = tmux("monitor", str(RECORDED), KERAS_MP_DASHBOARD=str(settings))
    terminal.wait_for("jobs", "quit", "sawtooth")
    terminal.press("End", "Enter")
    terminal.wait_for("step time", "one chart")
    terminal.press("R")
    terminal.wait_for("paused", "speed")
    terminal.press("Escape", "Escape")
    terminal.wait_for("filter", "details")
    terminal.press("v")
    terminal.wait_for("this machine", "memory used")
    terminal.press("Escape")
    terminal.wait_for("filter", "details")
    terminal.resize(79, 20)
    terminal.wait_for("this one has 79 x 20")
    terminal.resize(100, 30)
    terminal.wait_for("jobs", "quit")
    terminal.press("?")
    terminal.wait_for("Everywhere")
    terminal.press("x", "q")
    assert terminal.exit_status() == 0


@pytest.mark.slow
@pytest.mark.backend
def test_a_job_that_is_training(tmux, tmp_path):
    """From the first step to the end, seen with a person's eyes: the screen alone."""
    runs = tmp_path / "runs"
    terminal = tmux("monitor", str(runs), KERAS_MP_DASHBOARD=str(tmp_path / "settings.json"))
    terminal.wait_for("does not exist")
    command = [sys.executable, str(EXAMPLE), "--runs", str(runs), "--name", "digits"]
    command += ["--policy", "mixed_float16", "--scale", "dynamic", "--epochs", "3"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
    job = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        terminal.wait_for("digits", "running", "mixed_float16", "2¹⁵", seconds=300)
        first = step(terminal.text())
        terminal.wait(lambda text: step(text) > first, "a later step", seconds=120)
        assert "needs you" not in terminal.screen()[0]
        terminal.press("Enter")
        terminal.wait_for("digits · ", "loss", "step time", "dynamic from 2¹⁵")
        terminal.press("Escape")
        terminal.wait_for(" done ", "141/141", seconds=300)
        assert job.wait(60) == 0
        terminal.press("q")
        assert terminal.exit_status() == 0
    finally:
        job.kill()
        job.wait()


def step(text: str) -> int:
    found = re.search(r"digits.*?(\d+)/141", text)
    return int(found[1]) if found else 0
