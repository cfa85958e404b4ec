"""The job screen on journals of real runs."""

import csv

import pytest
from helpers.dashboard import screen_text

from tui.screens.job import JobScreen
from tui.screens.jobs import JobsScreen

SIZE = (120, 40)


async def open_job(app, pilot):
    app.look_now()
    await pilot.pause()
    await pilot.press("enter")
    await pilot.pause()
    assert isinstance(app.screen, JobScreen)


def chart(app, title):
    """(title row, all rows) of the chart whose title starts so."""
    for view in app.screen.query(".chart"):
        rows = view.text() if view.display else []
        if rows and rows[0].startswith(title):
            return rows[0].rstrip(), rows
    raise AssertionError(f"no chart {title!r} in {screen_text(app)}")


def labels(rows):
    return [row.split("┤")[0].strip() for row in rows if "┤" in row]


async def test_enter_shows_every_chart_of_the_job_and_escape_goes_back(runs):
    app = runs.add("sawtooth", "float32").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_job(app, pilot)
        name = app.screen.job.name
        for title in ("scale", "loss", "samples/s", "process memory", "step time"):
            chart(app, title)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, JobsScreen)
        assert app.screen.selected.name == name


async def test_the_gradient_norm_is_drawn_where_it_was_measured(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_job(app, pilot)
        title, rows = chart(app, "gradient norm")
        values = app.screen.job.points["grad_norm"]
        assert float(title.split()[-1]) == pytest.approx(values[values == values][-1], rel=1e-2)
        assert labels(rows)


async def test_the_configuration_is_told(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_job(app, pilot)
        facts = "\n".join(app.screen.query_one("#facts").text())
        assert "375,680 parameters" in facts
        assert "Adam" in facts
        assert "grows every 30 clean steps" in facts
        assert "keras 3." in facts
        assert "of all steps" in facts


async def test_the_cursor_reads_the_value_there(runs):
    app = runs.add("float32").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_job(app, pilot)
        points = app.screen.job.points
        await pilot.press("shift+left", "shift+left", "left")
        at = app.screen.window.cursor
        first, last = points["step"][0], points["step"][-1]
        assert at == pytest.approx(last - 0.21 * (last - first), rel=1e-6)
        nearest = points["loss"][abs(points["step"] - at).argmin()]
        title, rows = chart(app, "loss")
        assert float(title.split()[1]) == pytest.approx(nearest, rel=1e-3)
        assert "at" in title
        assert any("│" in row for row in rows)
        await pilot.press("0")
        title, rows = chart(app, "loss")
        assert "at" not in title.split()
        assert not any("│" in row for row in rows)


async def test_zoom_and_pan_change_what_is_shown_on_every_chart(runs):
    app = runs.add("float32").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_job(app, pilot)
        before = [chart(app, title)[1][-1].split() for title in ("loss", "samples/s")]
        await pilot.press("plus", "plus")
        after = [chart(app, title)[1][-1].split() for title in ("loss", "samples/s")]
        assert after != before
        assert after[0] == after[1], "both show the same steps"
        start, stop = app.screen.window.span
        await pilot.press("comma")
        assert app.screen.window.span[0] < start
        await pilot.press("full_stop", "full_stop")
        assert app.screen.window.span[1] > stop
        await pilot.press("minus", "minus", "minus")
        assert app.screen.window.span is None


async def test_the_wheel_zooms_and_a_click_reads(runs):
    app = runs.add("float32").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_job(app, pilot)
        await pilot.click("#chart1", offset=(20, 5))
        assert app.screen.window.cursor is not None
        view = app.screen.query_one("#chart1")
        view.post_message(view.Wheeled(0.5, 1))
        await pilot.pause()
        start, stop = app.screen.window.span
        assert stop - start < 564


async def test_log_linear_and_time(runs):
    app = runs.add("float32").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_job(app, pilot)
        automatic = labels(chart(app, "samples/s")[1])
        await pilot.press("l")
        assert app.screen.window.log is True
        logarithmic = labels(chart(app, "samples/s")[1])
        assert logarithmic != automatic
        await pilot.press("l")
        assert labels(chart(app, "samples/s")[1]) == automatic, "linear, as before"
        await pilot.press("x")
        ends = chart(app, "loss")[1][-1]
        job = app.screen.job
        seconds = job.points["time"][-1] - job.started
        assert ends.split()[-1] in ("s",) or "min" in ends
        assert str(int(seconds) // 60) in ends or str(round(seconds)) in ends


async def test_tab_shows_one_chart_alone_and_then_all_again(runs):
    app = runs.add("float32").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_job(app, pilot)
        shown = [view for view in app.screen.query(".chart") if view.display]
        assert len(shown) > 3
        small = shown[0].size
        await pilot.press("tab")
        await pilot.pause()
        alone = [view for view in app.screen.query(".chart") if view.display]
        assert len(alone) == 1
        assert alone[0].size.width > 2 * small.width
        for _ in range(app.screen._count):
            await pilot.press("tab")
        await pilot.pause()
        assert len([view for view in app.screen.query(".chart") if view.display]) == len(shown)
        await pilot.press("tab", "escape")
        assert isinstance(app.screen, JobScreen), "escape leaves the one chart first"
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, JobsScreen)


async def test_up_and_down_go_to_the_neighbours(runs):
    app = runs.add("float32", "sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_job(app, pilot)
        first = app.screen.job.name
        await pilot.press("down")
        second = app.screen.job.name
        assert {first, second} == {"float32", "sawtooth"}
        assert app.screen.query_one("#verdict").text()[0].startswith(second)
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen.selected.name == second


async def test_a_job_that_goes_away_leaves_the_screen_standing(runs):
    app = runs.add("float32").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_job(app, pilot)
        for path in (runs.path / "float32").iterdir():
            path.unlink()
        (runs.path / "float32").rmdir()
        app.look_now()
        await pilot.press("left", "plus", "tab", "a", "e", "x", "down")
        await pilot.pause()
        assert app.screen.job is None
        assert "The job is gone" in "\n".join(screen_text(app))
        await pilot.press("escape", "escape")
        await pilot.pause()
        assert isinstance(app.screen, JobsScreen)


async def test_points_and_tables_can_be_exported(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = runs.add("float32").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_job(app, pilot)
        await pilot.press("e", "e", "w")
        await pilot.press("escape")
        await pilot.pause()
        await pilot.press("e")
        await pilot.pause()
        rows = list(csv.DictReader((tmp_path / "float32.csv").read_text().splitlines()))
        points = app.snapshot.jobs[0].points
        assert [float(row["loss"]) for row in rows] == points["loss"].tolist()
        assert (tmp_path / "float32-2.csv").exists(), "nothing is overwritten"
        assert "<svg" in (tmp_path / "keras-mp.svg").read_text()
        table = list(csv.DictReader((tmp_path / "keras-mp-jobs.csv").read_text().splitlines()))
        assert table[0]["job"] == "float32"
        assert table[0]["state"] == "done"


async def test_an_export_that_cannot_be_written_is_said(runs, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    app = runs.add("float32").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_job(app, pilot)
        await pilot.press("e")
        await pilot.pause()
        assert [n for n in app._notifications if "cannot be written" in n.message]
        assert isinstance(app.screen, JobScreen)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_it_fits_the_terminal(runs, size):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=size) as pilot:
        await open_job(app, pilot)
        shown = screen_text(app)
        assert "quit" in shown[-1]
        assert sum(view.display for view in app.screen.query(".chart")) >= 4
        for widget in app.screen.query("*"):
            if widget.display and widget.region.height:
                assert app.screen.region.contains_region(widget.region), widget
