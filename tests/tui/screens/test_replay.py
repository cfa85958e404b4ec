"""Replaying runs that were recorded, with a time cursor."""

import pytest
from helpers.dashboard import screen_text, settle

from tui.screens.jobs import JobsScreen
from tui.screens.replay import ReplayScreen

SIZE = (120, 40)


async def open_replay(app, pilot, key="R"):
    app.look_now()
    await pilot.pause()
    await pilot.press(key)
    await settle(app, pilot)
    assert isinstance(app.screen, ReplayScreen)
    return app.screen


def words(screen):
    return screen.query_one("#timeline").text()[1]


async def test_it_opens_at_the_end_and_the_arrows_go_through_time(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_replay(app, pilot)
        recording = screen._recording
        assert recording.start == pytest.approx(app.snapshot.jobs[0].started)
        assert recording.stop == pytest.approx(app.snapshot.jobs[0].last_time)
        length = recording.stop - recording.start
        assert screen.time == recording.stop
        assert "step 564 of 564" in words(screen)
        await pilot.press("shift+left", "shift+left", "left", "left", "right")
        await settle(app, pilot)
        assert screen.time == pytest.approx(recording.stop - 0.21 * length)
        job = screen.job
        assert job.points["time"].max() <= screen.time
        assert f"step {job.step} of 564" in words(screen)
        verdict = "\n".join(screen.query_one("#verdict").text())
        assert f"step {job.step}" in verdict
        await pilot.press("home")
        await settle(app, pilot)
        assert screen.job.step == 0
        await pilot.press("end")
        await settle(app, pilot)
        assert screen.job.step == 564
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, JobsScreen)


async def test_the_charts_keep_the_whole_run_under_what_is_known_so_far(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_replay(app, pilot)
        before = screen.query_one("#chart1").text()
        await pilot.press(*["shift+left"] * 5)
        await settle(app, pilot)
        after = screen.query_one("#chart1").text()
        assert after[-1] == before[-1], "the same ends under it"
        middle = len(after[2]) // 2
        right = "".join(row[middle + 8 :] for row in after[1:-2])
        assert right.strip() == "", "what is to come is empty"
        assert "".join(row[middle + 8 :] for row in before[1:-2]).strip()


async def test_the_brackets_go_from_event_to_event(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_replay(app, pilot)
        times = app.snapshot.jobs[0].skips["time"]
        await pilot.press("left_square_bracket")
        assert screen.time == times[-1]
        await pilot.press("left_square_bracket", "left_square_bracket", "right_square_bracket")
        await settle(app, pilot)
        assert screen.time == times[-2]
        assert screen.job.overflow_count == len(times) - 1
        marks = screen.query_one("#timeline").text()[0]
        assert marks.count("┴") >= 10


async def test_it_plays_at_the_chosen_speed_and_stops_at_the_end(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_replay(app, pilot)
        start, stop = screen._recording.start, screen._recording.stop
        await pilot.press("space")
        assert screen.playing
        assert screen.time == start, "from the beginning, as it stood at the end"
        speed = screen.speed
        app.clock.move(1.0)
        screen.play_on()
        assert screen.time == pytest.approx(start + speed)
        await pilot.press("greater_than_sign")
        assert screen.speed > speed
        await pilot.press("less_than_sign", "less_than_sign")
        assert screen.speed < speed
        await pilot.press("space")
        held = screen.time
        app.clock.move(10.0)
        screen.play_on()
        assert screen.time == held
        await pilot.press("space")
        app.clock.move(1e6)
        screen.play_on()
        assert screen.time == stop
        screen.play_on()
        await settle(app, pilot)
        assert not screen.playing
        assert screen.job.step == 564


async def test_a_click_on_the_line_or_in_a_chart_goes_there(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_replay(app, pilot)
        start, stop = screen._recording.start, screen._recording.stop
        await pilot.click("#timeline", offset=(60, 0))
        assert screen.time == pytest.approx((start + stop) / 2, abs=0.02 * (stop - start))
        chart = screen.query_one("#chart1")
        chart.post_message(chart.Pointed(0.25))
        await settle(app, pilot)
        assert screen.job.step == pytest.approx(564 / 4, abs=10)


async def test_without_a_journal_it_says_so_and_goes_back(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        app.look_now()
        await pilot.pause()
        (runs.path / "sawtooth" / "events-0.jsonl").unlink()
        await pilot.press("R")
        await settle(app, pilot)
        assert isinstance(app.screen, JobsScreen)
        assert [n for n in app._notifications if "cannot be replayed" in n.message]


async def test_it_opens_from_the_job_screen_too_and_goes_back_there(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        app.look_now()
        await pilot.pause()
        await pilot.press("enter", "R")
        await settle(app, pilot)
        assert isinstance(app.screen, ReplayScreen)
        await pilot.press("tab", "escape", "escape")
        await pilot.pause()
        assert type(app.screen).__name__ == "JobScreen"


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_it_fits_the_terminal(runs, size):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=size) as pilot:
        screen = await open_replay(app, pilot)
        await pilot.press("shift+left")
        await settle(app, pilot)
        assert "quit" in screen_text(app)[-1]
        assert sum(view.display for view in screen.query(".chart")) >= 2
        for widget in screen.query("*"):
            if widget.display and widget.region.height:
                assert screen.region.contains_region(widget.region), widget
