"""Other loss scale settings on runs that were recorded."""

import pytest
from helpers.dashboard import RECORDED, screen_text, settle

from keras_mp.scaling.presets import PRESETS
from keras_mp.telemetry.history import history_of
from keras_mp.telemetry.replay import what_if
from tui.recording import Recording
from tui.screens.jobs import JobsScreen
from tui.screens.what_if import WhatIfScreen
from tui.what_if import FIELDS

SIZE = (120, 40)


async def open_on(app, pilot):
    app.look_now()
    await pilot.pause()
    await pilot.press("i")
    await settle(app, pilot)
    assert isinstance(app.screen, WhatIfScreen)
    return app.screen


def shown(app):
    return "\n".join(screen_text(app))


@pytest.fixture(scope="module")
def history():
    recording = Recording(RECORDED / "sawtooth")
    return history_of(recording.of_lead(), recording.meta)


async def test_its_own_setting_gives_the_run_back(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_on(app, pilot)
        job = app.snapshot.jobs[0]
        assert screen.outcome.wasted == screen.outcome.recorded == job.skipped
        assert list(screen.outcome.overflows) == job.skips["step"].tolist()
        assert f"{job.skipped} of 564 steps wasted" in shown(app)
        assert "no estimate in it" in shown(app)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, JobsScreen)


async def test_tab_goes_through_the_presets_and_zero_comes_home(runs, history):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_on(app, pilot)
        seen = []
        for _ in PRESETS:
            await pilot.press("tab")
            await settle(app, pilot)
            seen.append(screen.setting)
            assert screen.config == PRESETS[screen.setting]
            assert screen.outcome == what_if(history, screen.config)
        assert seen == list(PRESETS)
        await pilot.press("0")
        await settle(app, pilot)
        assert screen.config == history.config


async def test_the_arrows_change_a_field_and_the_answer_follows(runs, history):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_on(app, pilot)
        at = [field.name for field in FIELDS].index("growth_interval")
        await pilot.press(*["down"] * at, "right", "right", "right")
        await settle(app, pilot)
        assert screen.config.growth_interval == 8 * history.config.growth_interval == 240
        assert screen.outcome == what_if(history, screen.config)
        assert screen.outcome.wasted < history.skipped, "fewer growths, fewer overflows"
        assert "its own, changed" in shown(app)
        assert "240 clean steps" in shown(app)
        await pilot.press("left", "left", "left", "left")
        await settle(app, pilot)
        assert screen.config.growth_interval == 15
        assert screen.outcome.wasted > history.skipped


async def test_a_value_that_is_no_setting_is_not_taken(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_on(app, pilot)
        at = [field.name for field in FIELDS].index("hysteresis")
        await pilot.press(*["down"] * at, "left", "left")
        await settle(app, pilot)
        assert screen.config.hysteresis == 1
        await pilot.press("right")
        await settle(app, pilot)
        assert screen.config.hysteresis == 2


async def test_a_run_without_single_skips_says_why_there_is_no_answer(runs):
    app = runs.add("float32").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_on(app, pilot)
        await pilot.press("tab", "right", "down", "0")
        await settle(app, pilot)
        assert "quit" in screen_text(app)[-1]
        if screen.outcome is None:
            assert "needs" in shown(app)
        else:
            assert screen.outcome.recorded == 0


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_it_fits_the_terminal(runs, size):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=size) as pilot:
        screen = await open_on(app, pilot)
        await pilot.press("tab")
        await settle(app, pilot)
        assert "quit" in screen_text(app)[-1]
        for widget in screen.query("*"):
            if widget.display and widget.region.height:
                assert screen.region.contains_region(widget.region), widget
