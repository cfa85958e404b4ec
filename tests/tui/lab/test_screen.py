"""The lab in a terminal of 80 x 24: keys, what they lead to, and no backend loaded."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.dashboard import RECORDED, Runs, screen_text

from keras_mp.cli import main
from keras_mp.numerics.histogram import shares
from keras_mp.telemetry.runs import RunsFolder
from tui.lab.app import LabApp
from tui.lab.screen import PAGES, LabScreen
from tui.screens.help import HelpScreen

SIZE = (80, 24)
SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
# Name of a snapshot -> keys that lead there.
VIEWS = {
    "bits": (),
    "step": ("2", "l"),
    "scale": ("3", *["right"] * 10),
    "scale-steps": ("3", "d", "i", "e"),
    "memory": ("4", "right"),
    "ops": ("5", "down"),
    "results": ("6",),
    "results-v100": ("6", "right"),
    "results-time-line": ("6", "left"),
}


@pytest.mark.parametrize("name", VIEWS)
async def test_snapshot(name):
    """After a change on purpose: UPDATE_SNAPSHOTS=1 pytest."""
    import os

    app = LabApp(charset="braille")
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press(*VIEWS[name])
        await pilot.pause()
        shown = "\n".join(screen_text(app)) + "\n"
    path = SNAPSHOTS / f"lab-{name}-80x24.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(shown)
    assert path.exists(), f"no snapshot yet: run with UPDATE_SNAPSHOTS=1 and look at {path.name}"
    assert shown == path.read_text()


async def test_a_terminal_that_is_too_small_is_told_how_large_it_must_be():
    app = LabApp()
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.pause()
        shown = " ".join(" ".join(screen_text(app)).split())
        assert "80 x 24 or more; this one has 60 x 20. Enlarge it, or press q." in shown
        assert "monitor" not in shown  # which would not show the lab


async def test_pages_by_number_and_by_tab_and_round_the_end():
    app = LabApp()
    async with app.run_test(size=SIZE) as pilot:
        for number, page in enumerate(PAGES, start=1):
            await pilot.press(str(number))
            assert app.screen.page.TITLE == page.TITLE
        await pilot.press("tab")
        assert app.screen.page.TITLE == "Bits"
        await pilot.press("shift+tab")
        assert app.screen.page.TITLE == "Results"


async def test_a_number_is_typed_and_a_wrong_one_is_answered():
    app = LabApp()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("enter", *"65504", "enter")
        await pilot.pause()
        assert "65504" in screen_text(app)[2]
        await pilot.press("enter", *"q1", "enter")  # q is typed here, and does not quit
        await pilot.pause()
        text = "\n".join(screen_text(app))
        assert "Expected a number" in text and "'q1'" in text
        assert "65504" in screen_text(app)[2]
        await pilot.press("right")
        await pilot.pause()
        assert "Expected a number" not in "\n".join(screen_text(app))
        assert "inf" in screen_text(app)[2]


async def test_escape_gives_up_typing():
    app = LabApp()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("enter", "7", "escape")
        await pilot.press("right")
        assert app.screen.page.value == pytest.approx(0.10003662)
        assert isinstance(app.screen, LabScreen)


async def test_a_key_of_another_page_is_not_this_pages():
    app = LabApp()
    async with app.run_test(size=SIZE) as pilot:
        scale = app.screen._pages[2]
        await pilot.press("d")  # the Scale page's
        assert not scale.stepping
        await pilot.press("3", "d")
        assert scale.stepping


async def test_the_help_has_this_pages_keys():
    app = LabApp()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("2", "question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        text = "\n".join(screen_text(app))
        assert "Leave out float32 masters" in text and "Double or halve" not in text


async def test_the_help_of_the_lab_alone_names_no_key_that_needs_jobs():
    app = LabApp()
    async with app.run_test(size=(80, 40)) as pilot:
        await pilot.press("question_mark")
        await pilot.pause()
        text = "\n".join(screen_text(app))
        assert "The next theme" in text and "Leave.\n" in re.sub(" +\n", "\n", text)
        assert "GPUs and memory" not in text and "The lab:" not in text
        assert "jobs go on" not in text and "back to the jobs" not in text


async def test_escape_leaves_the_lab_alone():
    app = LabApp()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("escape")
        await pilot.pause()
        assert not app.is_running
    assert app.return_code == 0


async def test_a_click_on_a_page_opens_it():
    app = LabApp()
    async with app.run_test(size=SIZE) as pilot:
        line = screen_text(app)[0]
        await pilot.click(offset=(line.index("Memory") + 1, 0))
        await pilot.pause()
        assert app.screen.page.TITLE == "Memory"


async def test_every_key_of_every_page_does_something():
    """A key that is named in the footer and changes nothing would be a lie."""
    app = LabApp()
    views = [*((str(n),) for n in range(1, len(PAGES) + 1)), ("3", "d")]
    async with app.run_test(size=SIZE) as pilot:
        for lead in views:
            await pilot.press(*lead)
            page = app.screen.page
            for key in page.current_keys():
                name = key.keys.split(",")[0]
                if page.TITLE == "Step" and name == "space":
                    page.press("backspace")
                if name in ("up", "left", "0"):  # from somewhere one can go back from
                    page.press("right")
                    page.press("down")
                    page.press("right")
                if page.TITLE == "Results":
                    page.view, page.top = "V100", 3
                before = [list(r) for r in page.rows(78, 21, app.look)]
                await pilot.press(name)
                await pilot.pause()
                asked = app.screen._input.display
                changed = before != [list(r) for r in page.rows(78, 21, app.look)]
                assert asked or changed, f"{page.TITLE}: {name}"
                if asked:
                    await pilot.press("escape")
                if name == "d":
                    await pilot.press("d")  # back to the view whose keys these are


async def test_from_the_dashboard_and_back(tmp_path):
    app = Runs(tmp_path).add("float32").app()
    async with app.run_test(size=SIZE) as pilot:
        app.look_now()
        await pilot.pause()
        below = app.screen
        app.push_screen(LabScreen())
        await pilot.pause()
        assert "keras-mp lab" in screen_text(app)[0]
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is below


RUN = """
import asyncio, sys
from tui.lab.app import LabApp

async def main():
    app = LabApp()
    async with app.run_test(size=(80, 24)) as pilot:
        for key in "123456":
            await pilot.press(key, "right", "down")

asyncio.run(main())
print([n for n in ("keras", "tensorflow", "torch", "jax", "ml_dtypes") if n in sys.modules])
"""


def test_the_lab_loads_no_backend():
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_without_a_terminal_the_command_says_so(capsys):
    assert main(["lab"]) == 2
    assert "needs a terminal" in capsys.readouterr().err


def test_a_run_without_numerics_is_said(capsys, tmp_path):
    runs = Runs(tmp_path).add("float32")
    assert main(["lab", "--run", str(runs.path)]) == 3
    assert "numerics=True" in capsys.readouterr().err
    assert main(["lab", "--run", str(tmp_path / "nowhere")]) == 3
    assert "nowhere: there is no such folder" in capsys.readouterr().err


VERDICTS = RECORDED.parent / "verdicts"


async def test_a_recorded_runs_gradients_come_first_on_the_scale_page():
    """`underflow` lost gradients in float16, and its journal says which: the lab shows the same."""
    folder = RunsFolder(VERDICTS / "underflow")
    folder.poll(seconds=None)
    (job,) = folder.jobs
    numerics = tuple(job.numerics.values())
    app = LabApp(job.name, numerics, page="Scale")
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        assert f"all gradients   {job.name}, its newest" in screen_text(app)[2]
        page = app.screen.page
        for record in numerics:
            if record.tensor == "gradient" and record.format == "float16":
                (source,) = [
                    s
                    for s in page.sources
                    if s.title == f"gradient at {record.layer}" and "demo" not in s.where
                ]
                told = shares(source.histogram, "float16", record.scale)
                assert told.lost == pytest.approx(record.lost, abs=1e-3)
                assert told.overflow == pytest.approx(record.overflow, abs=1e-3)


async def test_from_the_dashboard_with_the_selected_job(tmp_path):
    import shutil

    shutil.copytree(VERDICTS / "underflow", tmp_path / "underflow")
    app = Runs(tmp_path).app()
    async with app.run_test(size=(120, 40)) as pilot:
        app.look_now()
        await pilot.pause()
        await pilot.press("L", "3")
        await pilot.pause()
        assert "all gradients   underflow" in "\n".join(screen_text(app))


def test_the_command_takes_a_run_with_numerics(capsys):
    assert main(["lab", "scale", "--run", str(VERDICTS / "underflow")]) == 2
    assert "needs a terminal" in capsys.readouterr().err  # and not: no numerics
