import pytest
from helpers.dashboard import screen_text

from tui.screens.compare import CompareScreen
from tui.screens.jobs import JobsScreen

SIZE = (120, 40)


async def open_on(app, pilot):
    app.look_now()
    await pilot.pause()


async def test_c_puts_a_job_beside_its_float32_twin(runs):
    app = runs.add("float32", "float16-scaled").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("c")
        await pilot.pause()
        assert isinstance(app.screen, CompareScreen)
        shown = "\n".join(screen_text(app))
        assert "as fast as float32" in shown
        assert "at step 564" in shown
        assert "emulated" in shown
        for title in ("loss by step", "loss by time", "samples/s", "process memory"):
            assert title in shown
        roles = {
            role for view in app.screen.query(".chart") for row in view._shown for _, role in row
        }
        assert {"line", "line2"} <= roles
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, JobsScreen)


async def test_space_marks_the_jobs_to_compare(runs):
    app = runs.add("float32", "float16-scaled", "float16-unscaled").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("space", "space", "space", "c")
        await pilot.pause()
        assert len(app.screen.jobs) == 3
        legend = "\n".join(app.screen.query_one("#legend").text())
        for name in ("float32", "float16-scaled", "float16-unscaled"):
            assert name in legend
        assert "as fast as" not in legend, "three jobs are no pair"


async def test_without_a_twin_it_says_what_to_do(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("c")
        await pilot.pause()
        assert isinstance(app.screen, JobsScreen)
        assert [n for n in app._notifications if "Mark two jobs" in n.message]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_it_fits_the_terminal(runs, size):
    app = runs.add("float32", "float16-scaled").app()
    async with app.run_test(size=size) as pilot:
        await open_on(app, pilot)
        await pilot.press("c", "l")
        await pilot.pause()
        assert "quit" in screen_text(app)[-1]
        for widget in app.screen.query("*"):
            if widget.display and widget.region.height:
                assert app.screen.region.contains_region(widget.region), widget
