"""The dashboard loads no backend, and the library no dashboard."""

import subprocess
import sys

from helpers.dashboard import RECORDED

HEAVY = ("keras", "tensorflow", "torch", "jax", "flax", "tensorboard")

RUN = f"""
import asyncio, sys
from tui.app import MonitorApp

async def main():
    app = MonitorApp([{str(RECORDED)!r}], live=False)
    async with app.run_test(size=(120, 40)) as pilot:
        app.look_now()
        await pilot.press("down", "s", "question_mark")
        assert app.snapshot.jobs

asyncio.run(main())
print([name for name in {HEAVY!r} if name in sys.modules])
"""


def test_the_dashboard_runs_without_keras_or_a_backend():
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_command_line_loads_the_dashboard_only_to_show_it():
    code = (
        "import sys, keras_mp, keras_mp.cli\n"
        "keras_mp.cli.build_parser()\n"
        "print([n for n in sys.modules if n.split('.')[0] in ('tui', 'textual', 'rich')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
