"""What the dashboard loads: no backend ever, and little before its first frame."""

import subprocess
import sys

from helpers.dashboard import RECORDED

HEAVY = ("keras", "tensorflow", "torch", "jax", "flax", "tensorboard")

USED = f"""
import asyncio, sys
from tui.app import MonitorApp

async def main():
    app = MonitorApp([{str(RECORDED)!r}], live=False)
    async with app.run_test(size=(120, 40)) as pilot:
        app.look_now()
        await pilot.press("down", "s", "question_mark")
        assert app.snapshot.jobs

asyncio.run(main())
print(*sys.modules)
"""

FIRST_FRAME = """
import asyncio, sys
import keras_mp.cli, tui.app, tui.settings
keras_mp.cli.build_parser(only="monitor").parse_args(["monitor", sys.argv[1]])

async def main():
    app = tui.app.MonitorApp([sys.argv[1]], live=False)
    app.snapshot = app.reader.look(None)
    assert app.snapshot.jobs
    async with app.run_test(size=(120, 40)):
        print(*sys.modules)

asyncio.run(main())
"""

# What other keys, other jobs or other hosts need is imported when they come.
LATER = (
    *("psutil", "pynvml", "tui.lab", "tui.commands", "tui.remote", "tui.pair"),
    *("tui.screens.job", "tui.screens.compare", "tui.screens.numerics", "tui.screens.replay"),
    *("tui.screens.what_if", "tui.screens.devices", "tui.screens.stop", "tui.numerics"),
    *("keras_mp.telemetry.number_health", "keras_mp.telemetry.event_runs", "keras_mp.scaling"),
    *("keras_mp.numerics.suggest", "keras_mp.numerics.histogram", "keras_mp.policies"),
    *("textual.widgets._data_table", "textual.widgets._markdown", "pygments", "markdown_it"),
)


def loaded(code: str, *arguments: str) -> set[str]:
    """Modules of a fresh process after ``code``, which prints them."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_dashboard_runs_without_keras_or_a_backend():
    modules = loaded(USED)
    assert not modules & set(HEAVY) and "tui.screens.help" in modules


def test_the_first_frame_loads_nothing_that_it_does_not_show(runs):
    modules = loaded(FIRST_FRAME, str(runs.add("float32").path))
    assert {"tui.screens.jobs", "textual", "numpy"} <= modules
    assert not [m for m in modules if f"{m}.".startswith(tuple(f"{x}." for x in LATER))]


def test_what_a_job_needs_is_loaded_for_it(runs):
    modules = loaded(FIRST_FRAME, str(runs.add("healthy").path))
    assert "keras_mp.telemetry.number_health" in modules


def test_the_command_line_loads_the_dashboard_only_to_show_it():
    code = "import sys, keras_mp, keras_mp.cli\nkeras_mp.cli.build_parser()\nprint(*sys.modules)"
    modules = loaded(code)
    assert not {m.split(".")[0] for m in modules} & {"tui", "textual", "rich"}
