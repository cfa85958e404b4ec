import csv

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


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_each_figure_of_a_job_has_a_title(runs, size):
    app = runs.add("float32", "float16-scaled").app()
    async with app.run_test(size=size) as pilot:
        await open_on(app, pilot)
        await pilot.press("c")
        await pilot.pause()
        titles, *rows = app.screen.query_one("#legend").text()[:3]
        (row,) = [row for row in rows if "float16-scaled" in row]
        for title, value in (("loss", "9.6" if size[0] == 80 else "0.000958"), ("scale", "2¹⁵")):
            end = titles.index(title) + len(title)
            assert row[:end].split()[-1].startswith(value), f"{value} ends under {title}"
        assert "smp/s" in titles or "samples/s" in titles


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


def ends(view):
    return view.text()[-1].split()


async def test_zoom_cursor_and_pan_move_all_charts_together(runs):
    app = runs.add("float32", "float16-scaled").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("c")
        await pilot.pause()
        by_step, by_time = app.screen.query_one("#chart0"), app.screen.query_one("#chart1")
        before = ends(by_step), ends(by_time)
        await pilot.press("shift+left", "shift+left")
        stop = 564
        assert app.screen.windows["step"].cursor == pytest.approx(stop - 0.2 * (stop - 1), rel=0.01)
        title = by_step.text()[0]
        loss = [job.points["loss"] for job in app.screen.jobs]
        assert title.count("·") == 1, "a value for each job"
        shown = [float(word) for word in title.split("at")[0].replace("·", "").split()[3:]]
        assert all(values.min() <= x <= values.max() for x, values in zip(shown, loss, strict=True))
        await pilot.press("plus", "plus")
        after = ends(by_step), ends(by_time)
        assert after[0] != before[0]
        assert after[1] != before[1]
        span = app.screen.windows["step"].span
        await pilot.press("comma")
        assert app.screen.windows["step"].span[0] < span[0]
        by_step.post_message(by_step.Wheeled(0.5, 1))
        by_time.post_message(by_time.Pointed(0.5))
        await pilot.pause()
        await pilot.press("0")
        assert app.screen.windows["step"].span is None
        assert (ends(by_step), ends(by_time)) == before


async def test_the_losses_can_be_exported_by_step(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = runs.add("float32", "float16-scaled").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("c", "e")
        await pilot.pause()
        rows = list(csv.DictReader((tmp_path / "keras-mp-compare.csv").read_text().splitlines()))
        for job in app.screen.jobs:
            told = [float(row[job.name]) for row in rows if row[job.name]]
            assert told == job.points["loss"].tolist()
