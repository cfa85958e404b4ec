"""The numerics screen on journals of real runs."""

import csv

import pytest
from helpers.dashboard import screen_text

from keras_mp.numerics.rows import Row
from tui.screens.job import JobScreen
from tui.screens.jobs import JobsScreen
from tui.screens.numerics import NumericsScreen

SIZE = (120, 40)
LAYERS = ["hidden0", "hidden1", "hidden2", "heat_map"]


async def open_numerics(app, pilot, *keys):
    app.look_now()
    await pilot.pause()
    await pilot.press(*keys, "n")
    await pilot.pause()
    assert isinstance(app.screen, NumericsScreen)
    return app.screen


def shown(app):
    return "\n".join(screen_text(app))


def strips(screen):
    """Layer -> its heat strip."""
    table = screen.query_one("#heat")
    out = {}
    for y, name in enumerate(table.keys):
        text = table.render_line(y).text
        out[name] = text[len(name) :].strip().split()[0]
    return out


def bars(screen):
    return screen.query_one("#exponents").text()


def record(job, layer, tensor="gradient"):
    (found,) = [n for n in job.numerics if n.layer == layer and n.tensor == tensor]
    return found


async def test_layers_stand_in_the_order_of_the_forward_pass_with_what_they_lose(runs):
    app = runs.add("underflow").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_numerics(app, pilot)
        assert screen.query_one("#heat").keys == LAYERS
        strip = strips(screen)["hidden1"]
        assert strip[0] == "█", "the first scale was too low"
        assert strip[-1] == "·", "the last one saves all"
        dark = "·░▒▓█"
        assert dark.index(strip[0]) > dark.index(strip[len(strip) // 2]) > dark.index(strip[-1])
        job = app.snapshot.jobs[0]
        told = Row.of_record(record(job, "hidden1")).shares("float16")
        (row,) = [r for r in screen_text(app) if r.strip().startswith("hidden1 ")][:1]
        assert f"{round(told.subnormal * 100)} %" in row or f"{told.subnormal * 100:.1f} %" in row
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, JobsScreen)


async def test_the_arrows_move_the_scale_and_all_figures_follow(runs):
    app = runs.add("underflow").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_numerics(app, pilot)
        job = app.snapshot.jobs[0]
        row = Row.of_record(record(job, "hidden0"))
        own = row.scale
        before = bars(screen)
        await pilot.press(*["left"] * 11)
        assert screen.scale == own / 2**11
        after = bars(screen)
        assert after != before
        assert after[-3:] == before[-3:], "the format's limits stand still"
        lost = row.shares("float16", screen.scale).lost_of_nonzero
        assert lost > 0.01
        assert f"lost {lost * 100:.0f} %" in after[1] or f"lost {lost * 100:.1f} %" in after[1]
        assert "2⁴" in after[1]
        await pilot.press("right")
        assert screen.scale == own / 2**10
        await pilot.press("0")
        assert screen.scale is None
        assert bars(screen) == before


async def test_down_shows_another_layer(runs):
    app = runs.add("underflow").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_numerics(app, pilot)
        assert bars(screen)[0].startswith("hidden0")
        await pilot.press("down", "down")
        assert bars(screen)[0].startswith("hidden2")
        await pilot.press("end")
        assert bars(screen)[0].startswith("heat_map")


async def test_tab_goes_through_the_kinds(runs):
    app = runs.add("underflow").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_numerics(app, pilot)
        seen = [screen.kind]
        for _ in range(2):
            await pilot.press("tab")
            seen.append(screen.kind)
        assert seen == ["gradient", "weight_gradient", "activation"]
        assert "activations in float16" in shown(app)
        before = bars(screen)
        await pilot.press("left")
        assert bars(screen) == before, "a loss scale does not act on activations"
        await pilot.press("tab")
        assert screen.kind == "gradient"
        await pilot.press("tab")
        assert "sequential/hidden0/kernel" in screen.query_one("#heat").keys


async def test_f_looks_through_another_format(runs):
    app = runs.add("underflow").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_numerics(app, pilot)
        row = Row.of_record(record(app.snapshot.jobs[0], "hidden0"))
        for name in ("bfloat16", "float8_e5m2", "float8_e4m3"):
            await pilot.press("f")
            assert screen.format == name
            room = row.headroom(name)
            assert f"room {room:.1f} doublings" in bars(screen)[1]
        assert "as recorded: float16" in shown(app), "the strips cannot follow"
        await pilot.press("f")
        assert screen.format == "float16"


async def test_m_shows_headroom_in_the_strips(runs):
    app = runs.add("underflow").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_numerics(app, pilot)
        lost = strips(screen)
        await pilot.press("m")
        assert strips(screen) != lost
        assert "doublings to overflow" in shown(app)
        assert set(strips(screen)["hidden0"]) == {"·"}, "far from overflow all the time"


async def test_s_puts_the_worst_first(runs):
    app = runs.add("underflow").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_numerics(app, pilot)
        await pilot.press(*["left"] * 12, "s")
        job = app.snapshot.jobs[0]
        lost = [
            Row.of_record(record(job, name)).shares("float16", screen.scale).lost_of_nonzero
            for name in screen.query_one("#heat").keys
        ]
        assert lost == sorted(lost, reverse=True)
        assert lost[0] > lost[-1]
        await pilot.press("s")
        assert screen.query_one("#heat").keys == LAYERS


async def test_without_numerics_it_says_how_to_get_them(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_numerics(app, pilot)
        assert "records no numerics" in shown(app)
        assert "numerics=True" in shown(app)
        await pilot.press("left", "tab", "f", "s", "m", "0", "e", "down")
        await pilot.pause()
        assert isinstance(app.screen, NumericsScreen)


async def test_it_opens_from_the_job_and_goes_back_there(runs):
    app = runs.add("underflow").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_numerics(app, pilot, "enter")
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, JobScreen)


async def test_new_looks_appear_while_the_job_runs(runs):
    path = runs.add("underflow").path / "underflow" / "events-0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))
    app = runs.app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_numerics(app, pilot)
        before = strips(screen)["hidden0"]
        assert "█" in before
        path.write_bytes(b"".join(lines))
        app.look_now()
        await pilot.pause()
        after = strips(screen)["hidden0"]
        assert len(after) == len(before)
        assert after.count("·") > before.count("·")


async def test_the_figures_can_be_exported(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = runs.add("underflow").app()
    async with app.run_test(size=SIZE) as pilot:
        screen = await open_numerics(app, pilot)
        await pilot.press("left", "e")
        await pilot.pause()
        rows = list(csv.DictReader((tmp_path / "underflow-numerics.csv").read_text().splitlines()))
        assert [row["name"] for row in rows] == LAYERS
        told = Row.of_record(record(app.snapshot.jobs[0], "hidden0")).shares(
            "float16", screen.scale
        )
        assert float(rows[0]["lost"]) == told.lost
        assert float(rows[0]["scale"]) == screen.scale


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("name", ["underflow", "sawtooth"])
async def test_it_fits_the_terminal(runs, size, name):
    app = runs.add(name).app()
    async with app.run_test(size=size) as pilot:
        screen = await open_numerics(app, pilot)
        assert "quit" in screen_text(app)[-1]
        for widget in screen.query("*"):
            if widget.display and widget.region.height:
                assert screen.region.contains_region(widget.region), widget
