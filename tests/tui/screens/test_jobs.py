"""The jobs screen on journals of real runs."""

import os
import re
import shutil
from dataclasses import replace

import pytest
from helpers.dashboard import RECORDED, last_time, row_of, screen_text, settle
from rich.cells import cell_len
from textual import events

from tui import job_cells
from tui.app import MonitorApp
from tui.clock import SetClock
from tui.drawing.raster import ASCII, CHARSETS
from tui.job_columns import trouble_first
from tui.look import Look
from tui.screens.help import HelpScreen
from tui.screens.jobs import JobsScreen
from tui.screens.small import SmallScreen

SIZE = (120, 40)


async def open_on(app, pilot):
    app.look_now()
    await pilot.pause()


def text(app):
    return "\n".join(screen_text(app))


def part(app, selector):
    return "\n".join(app.screen.query_one(selector).text())


async def select(app, pilot, name):
    table = app.screen.query_one("#jobs")
    table.select(next(i for i, key in enumerate(table.keys) if key.endswith(f"\0{name}")))
    await pilot.pause()


@pytest.mark.parametrize(
    ("name", "alive", "state", "words"),
    [
        ("float16-scaled", True, "done", "done at step 564"),
        ("float16-unscaled", True, "done", "float16 without a loss scale"),
        ("sawtooth", True, "done", "healthy"),
        ("thrashing", True, "running", "thrashing: "),
        ("collapsing", True, "running", "collapsing: the last "),
        ("exhausted", True, "running", "exhausted: steps are skipped even at the smallest scale"),
        ("nan-loss", True, "running", "the loss is nan since step 14"),
        ("killed", False, "dead", "dead: process "),
        ("failed", True, "failed", "failed at step 120"),
    ],
)
async def test_each_job_is_judged_in_words(runs, name, alive, state, words):
    app = runs.add(name).app(after=3.0, alive=alive)
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        # The machine that recorded was busy: a running job may have been slow just then.
        shown = row_of(app, name).replace(" slow ", " running ")
        assert f" {state} " in shown
        verdict = part(app, "#verdict")
        assert verdict.startswith(name)
        assert words in verdict


async def test_a_silent_job_is_stalled_by_its_own_pace(runs):
    runs.add("killed")
    app = runs.app(after=3.0)
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        assert app.snapshot.jobs[0].verdict.state in ("running", "slow")
        app.clock.move(60)
        app.look_now()
        await pilot.pause()
        assert " stalled " in row_of(app, "killed")
        assert "silent for 1 min 03" in part(app, "#verdict")


async def test_the_columns_of_a_scaled_job(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        row = row_of(app, "sawtooth").split()
        (job,) = app.snapshot.jobs
        titles = app.screen.query_one("#titles").text()[0].split()
        assert " ".join(titles) == "job state policy step loss scale skip samples/s mem ETA"
        assert row[0] == "▸"
        assert row[2:5] == ["done", "mixed_float16", "564/564"]
        assert row[6].startswith("2")
        assert float(row[5]) == pytest.approx(job.loss, rel=1e-3)
        assert row[7] == f"{100 * job.overflow_count / 564:.1f}"
        assert row[-1] == "–", "what has ended has no ETA"


async def test_a_running_job_has_an_eta(runs):
    app = runs.add("killed").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        (job,) = app.snapshot.jobs
        assert 0 < job.eta_seconds < 3600
        assert not row_of(app, "killed").rstrip().endswith("–")


async def test_a_measure_of_its_own_stands_beside_a_finished_job(runs):
    app = runs.add("数字-bfloat16").app()
    async with app.run_test(size=(200, 60)) as pilot:
        await open_on(app, pilot)
        (job,) = app.snapshot.jobs
        assert f"hits {job.results['hits']:.3g}" in row_of(app, "bfloat16")
        assert "hits 0." in part(app, "#verdict")


async def test_a_job_without_a_scale_shows_dashes_and_says_so(runs):
    app = runs.add("float32").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        assert row_of(app, "float32").split()[5:8].count("–") >= 1
        assert "no loss scale" in part(app, "#chart0")
        assert "nothing to report" not in part(app, "#events"), "its end is an event"


async def test_trouble_comes_first_and_what_is_over_last(runs):
    app = runs.add("float32", "exhausted", "thrashing", "sawtooth").app(since="thrashing")
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        names = [key.split("\0")[1] for key in app.screen.query_one("#jobs").keys]
        assert names[:2] == ["exhausted", "thrashing"]
        assert set(names[2:]) == {"float32", "sawtooth"}
        assert app.screen.selected.name == "exhausted"
        assert row_of(app, "exhausted").startswith("▸!")
        assert row_of(app, "thrashing").startswith(" ·")
        assert row_of(app, "float32").startswith("  ")
        assert "4 jobs · 2 running · 1 needs you" in part(app, "#status")


async def test_the_scale_is_drawn_on_octaves_with_a_tick_under_each_skip(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        rows = app.screen.query_one("#chart0").text()
        (job,) = app.snapshot.jobs
        assert job.overflow_count > 3
        assert rows[0].startswith("scale  2")
        assert f"{job.overflow_count} skips" in rows[0]
        labels = [row.split("┤")[0].strip() for row in rows if "┤" in row]
        assert labels
        assert all(label.startswith("2") and label != "2" for label in labels)
        base = next(row for row in rows if "└" in row)
        width = len(base) - base.index("└") - 1
        start, stop = job.scales["step"][0], job.scales["step"][-1]
        expected = {
            min(int((step - start) / (stop - start) * width), width - 1)
            for step in job.skips["step"]
        }
        drawn = {at - base.index("└") - 1 for at, c in enumerate(base) if c == "┴"}
        assert drawn == expected


async def test_nan_is_marked_and_counted_as_trouble(runs):
    app = runs.add("nan-loss").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        assert " nan " in row_of(app, "nan-loss")
        assert "×" in part(app, "#chart1")
        assert "loss  nan" in part(app, "#chart1")


async def test_loss_and_rate_are_drawn_with_their_last_values(runs):
    app = runs.add("float32").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        (job,) = app.snapshot.jobs
        for chart, value in (("#chart1", job.loss), ("#chart2", job.samples_per_second)):
            title = part(app, chart).splitlines()[0].split()
            shown = title[1].replace("k", "e3")
            assert float(shown) == pytest.approx(value, rel=1e-2)
            assert any(0x2800 < ord(c) < 0x2900 for c in part(app, chart))


def test_of_the_jobs_in_trouble_those_that_go_on_come_first(runs):
    app = runs.add("failed", "nan-loss").app(since="nan-loss")
    running, over = sorted(app.reader.look(None).jobs, key=trouble_first)
    assert (running.name, over.name) == ("nan-loss", "failed")
    assert running.verdict.needs_you and over.verdict.needs_you
    assert over.meta.started > running.meta.started, "the newer one would come first otherwise"


async def test_overflows_are_listed_latest_first_with_their_layer(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        (job,) = app.snapshot.jobs
        rows = [row for row in part(app, "#events").splitlines() if "→" in row]
        steps = [int(row.split("step ")[1].split()[0].replace(",", "")) for row in rows]
        assert steps == sorted(steps, reverse=True)
        assert steps[0] == job.overflows[-1].step
        assert job.overflows[-1].layer in rows[0]
        assert "(backward)" in rows[0] or "(loss)" in rows[0]


async def test_arrows_show_the_next_job(runs):
    app = runs.add("float32", "exhausted", "thrashing").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        seen = [app.screen.selected.name]
        for _ in range(2):
            await pilot.press("down")
            seen.append(app.screen.selected.name)
            assert part(app, "#verdict").startswith(seen[-1])
        assert sorted(seen) == ["exhausted", "float32", "thrashing"]
        await pilot.press("up")
        assert app.screen.selected.name == seen[1]
        await pilot.press("home")
        assert app.screen.selected.name == seen[0]


async def test_the_mouse_selects_sorts_and_presses_keys(runs):
    app = runs.add("float32", "exhausted", "thrashing").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.click("#jobs", offset=(5, 2))
        assert app.screen.selected.name == "float32"
        titles = app.screen.query_one("#titles").text()[0]
        await pilot.click("#titles", offset=(titles.index("loss"), 0))
        await pilot.pause()
        assert "loss▴" in app.screen.query_one("#titles").text()[0]
        bar = app.screen.query_one("#keys").text()[0]
        await pilot.click("#keys", offset=(bar.index("keys") + 1, 0))
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)


async def test_the_key_right_after_the_one_that_closes_the_help_is_answered(runs):
    """Both lie in the queue before either has been looked at, as from a paste or a slow line."""
    app = runs.add("float32", "sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("home", "question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        first = app.screen_stack[0].selected.name
        for key in ("x", "j"):
            app.post_message(events.Key(key, key))
        await pilot.pause()
        await pilot.pause()
        assert isinstance(app.screen, JobsScreen)
        assert app.screen.selected.name != first, "j has moved the cursor"


async def test_l_opens_the_lab_and_escape_leaves_it(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("L")
        await pilot.pause()
        assert type(app.screen).__name__ == "LabScreen"
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, JobsScreen)


async def test_sorting_by_column_and_back(runs):
    app = runs.add("float32", "exhausted", "sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        jobs = {job.key: job for job in app.snapshot.jobs}

        def column(name):
            return [getattr(jobs[key], name) for key in app.screen.query_one("#jobs").keys]

        await pilot.press("s")
        assert column("name") == sorted(column("name"))
        while "loss" not in app.screen.arrangement.sort:
            await pilot.press("s")
        assert column("loss") == sorted(column("loss"))
        await pilot.press("r")
        assert column("loss") == sorted(column("loss"), reverse=True)
        await pilot.press("s")
        assert app.screen.arrangement.sort == "scale"
        assert column("scale")[-1] is None, "what is not known comes last"
        await pilot.press("r")
        assert column("scale")[-1] is None, "in either direction"
        await pilot.press("S")
        assert app.screen.arrangement.sort == "loss"
        await pilot.press("t")
        assert app.screen.arrangement.sort is None
        assert column("name")[0] == "exhausted"


@pytest.mark.parametrize("loss", [1.2e308, -1.2e294, 123456789.0, -5e-324, 1.5])
@pytest.mark.parametrize("short, width", [(False, 8), (True, 7)])
def test_no_loss_is_so_large_that_its_exponent_is_cut(runs, loss, short, width):
    (job,) = runs.add("float32").app().reader.look(None).jobs
    text, _ = job_cells.loss(replace(job, loss=loss), short)
    assert len(text) <= width and float(text) == pytest.approx(loss, rel=0.2)


@pytest.mark.parametrize("done", [7, 1050, 12_400, 123_456, 9_999_999])
@pytest.mark.parametrize("planned", [9_650, 1_250_000])
def test_steps_done_and_planned_fit_their_column(runs, done, planned):
    (job,) = runs.add("float32").app().reader.look(None).jobs
    job = replace(job, step=done, planned_steps=planned)
    for short, width in ((False, 11), (True, 9)):
        text, _ = job_cells.step(job, short)
        assert len(text) <= width
        assert value_of(text.split("/")[0]) == pytest.approx(done, rel=0.05)
        assert value_of(text.split("/")[1]) == pytest.approx(planned, rel=0.05)


def value_of(count):
    return float(count.rstrip("kM")) * {"k": 1e3, "M": 1e6}.get(count[-1], 1)


async def test_a_job_that_cannot_be_read_says_so_at_any_width(runs):
    (runs.path / "empty").mkdir()
    (runs.path / "empty" / "events-0.jsonl").touch()
    for size, word in ((SIZE, " unreadable "), ((80, 24), " no data ")):
        app = runs.app()
        async with app.run_test(size=size) as pilot:
            await open_on(app, pilot)
            assert word in row_of(app, "empty")


@pytest.mark.parametrize("moved", [False, True])
async def test_the_cursor_waits_at_the_top_for_the_first_jobs(runs, moved):
    app = runs.add("float32", "sawtooth", "exhausted").app()
    async with app.run_test(size=SIZE) as pilot:
        whole = app.reader.look(None)
        early = [job for job in whole.jobs if job.name != "exhausted"]
        app.snapshot = replace(whole, jobs=early, behind=True)
        app.screen.show()
        await pilot.press(*["down"] * moved)
        chosen = app.screen.job.name
        app.snapshot = whole
        app.screen.show()
        assert app.screen.job.name == (chosen if moved else "exhausted")
        app.snapshot = replace(whole, jobs=early)  # later on it stays with its job
        app.screen.show()
        before = app.screen.job.name
        app.snapshot = whole
        app.screen.show()
        assert app.screen.job.name == before


async def test_a_long_place_keeps_its_end_and_its_space(runs, tmp_path):
    place = tmp_path / ("x" * 90) / "these-runs"
    place.parent.mkdir()
    runs.add("float32", "exhausted").path.rename(place)
    app = runs.app(paths=[str(place)])
    async with app.run_test(size=(80, 24)) as pilot:
        await open_on(app, pilot)
        assert re.search(r"keras-mp   ….*these-runs   2 jobs", screen_text(app)[0])


async def test_details_can_be_hidden_to_see_more_jobs(runs):
    app = runs.add("float32", "exhausted").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        before = app.screen.query_one("#jobs").size.height
        await pilot.press("d")
        assert app.screen.query_one("#jobs").size.height > before
        assert not app.screen.query_one("#details").display
        await pilot.press("d")
        await pilot.pause()
        assert app.screen.query_one("#jobs").size.height == before
        assert "scale" in part(app, "#chart0")


async def test_help_shows_every_key_and_any_key_closes_it(runs):
    app = runs.add("float32").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("question_mark")
        shown = text(app)
        for key in (*app.screen_stack[0].KEYS, *app.KEYS):
            assert key.text in shown
        await pilot.press("x")
        assert isinstance(app.screen, JobsScreen)


async def test_a_key_for_a_help_that_lies_under_another_screen_closes_neither(runs):
    app = runs.add("float32").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("question_mark")
        help_screen = app.screen
        await pilot.resize_terminal(40, 10)
        await pilot.pause(0.2)
        assert isinstance(app.screen, SmallScreen)
        help_screen.close()
        await pilot.pause()
        assert isinstance(app.screen, SmallScreen)
        await pilot.resize_terminal(*SIZE)
        await pilot.pause(0.2)
        await pilot.press("x")
        await pilot.pause()
        assert isinstance(app.screen, JobsScreen)


async def test_q_quits(runs):
    app = runs.add("float32").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("q")
        await pilot.pause()
        assert not app.is_running


async def test_runs_that_start_and_end_appear_and_change(runs):
    app = runs.add("float32").app(since="float32")
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        assert "1 job ·" in part(app, "#status")
        # The first part of a real journal, as it lay on the disk while the job was training.
        source = runs.add("sawtooth").path / "sawtooth"
        lines = (source / "events-0.jsonl").read_bytes().splitlines(keepends=True)
        (source / "events-0.jsonl").write_bytes(b"".join(lines[:60]) + lines[60][:25])
        app.look_now()
        await pilot.pause()
        assert "2 jobs" in part(app, "#status")
        assert not [word for word in (" done ", " failed ") if word in row_of(app, "sawtooth")]
        with open(source / "events-0.jsonl", "ab") as file:
            file.write(lines[60][25:] + b"".join(lines[61:]))
        app.look_now()
        await pilot.pause()
        assert " done " in row_of(app, "sawtooth")
        assert "564/564" in row_of(app, "sawtooth")
        shutil.rmtree(source)
        app.look_now()
        await pilot.pause()
        assert "sawtooth" not in text(app)


async def test_a_quiet_dashboard_repaints_nothing(runs, monkeypatch):
    app = runs.add("float32", "exhausted").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.pause(0.1)
        painted = []
        for widget in app.screen.query("*"):
            monkeypatch.setattr(widget, "refresh", lambda *a, **k: painted.append(a))
        app.look_now()
        assert painted == []


# Bad input.


async def test_a_folder_without_runs_says_what_to_do(runs):
    app = runs.app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        assert "No runs in" in text(app)
        assert "keras_mp.Monitor" in text(app)
        runs.add("float32")
        app.look_now()
        await pilot.pause()
        assert "No runs in" not in text(app)
        assert " done " in row_of(app, "float32")


async def test_a_folder_that_does_not_exist_is_named_and_may_appear(runs):
    missing = runs.path / "later"
    app = runs.app(paths=[str(missing)])
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        assert "does not exist" in text(app)
        missing.mkdir()
        shutil.copytree(runs.add("float32").path / "float32", missing / "float32")
        app.look_now()
        await pilot.pause()
        assert "does not exist" not in text(app)
        assert "float32" in row_of(app, "float32")


async def test_a_newer_journal_is_refused_in_a_sentence(runs):
    path = runs.add("float32", "sawtooth").path / "float32" / "events-0.jsonl"
    path.write_text(path.read_text().replace('"schema":1', '"schema":99', 1))
    app = runs.app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await select(app, pilot, "float32")
        assert "newer keras-mp" in part(app, "#verdict")
        assert " done " in row_of(app, "sawtooth"), "its neighbour is shown"


async def test_a_damaged_journal_shows_what_is_whole(runs):
    path = runs.add("float32").path / "float32" / "events-0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[5] = b'{"kind": "step", \xff\xfe garbage\n'
    path.write_bytes(b"".join(lines))
    app = runs.app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        assert " done " in row_of(app, "float32")
        assert "1 damaged line was passed over" in part(app, "#verdict")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_folder_that_may_not_be_read_is_named(runs):
    folder = runs.add("float32").path / "float32"
    folder.chmod(0)
    app = runs.app()
    try:
        async with app.run_test(size=SIZE) as pilot:
            await open_on(app, pilot)
            assert "cannot be read" in text(app)
    finally:
        folder.chmod(0o755)


async def test_an_empty_run_folder_is_starting_not_broken(runs):
    folder = runs.add("float32").path / "float32"
    (folder / "events-0.jsonl").write_bytes(b"")
    app = MonitorApp([str(runs.path)], clock=SetClock(0.0), live=False)
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        assert "float32" in row_of(app, "float32")
        assert "no steps yet" in part(app, "#chart1")


@pytest.mark.parametrize("size", [(79, 24), (80, 23), (30, 10)])
async def test_a_terminal_too_small_gets_a_sentence(runs, size):
    app = runs.add("float32").app()
    async with app.run_test(size=size) as pilot:
        await open_on(app, pilot)
        assert isinstance(app.screen, SmallScreen)
        shown = " ".join(" ".join(screen_text(app)).split())
        assert f"needs a terminal of 80 x 24 or more; this one has {size[0]} x {size[1]}" in shown
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        app.look_now()
        await pilot.pause()
        assert " done " in row_of(app, "float32")
        await pilot.resize_terminal(*size)
        await pilot.pause()
        assert isinstance(app.screen, SmallScreen)


async def test_without_unicode_everything_is_ascii(runs, monkeypatch):
    app = runs.add("sawtooth", "exhausted", "数字-bfloat16").app()
    app.look = Look(unicode=False, charset=ASCII)
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await select(app, pilot, "sawtooth")
        shown = text(app)
        assert shown.isascii()
        assert "2^" in row_of(app, "sawtooth")
        assert "2^" in part(app, "#chart0")
        assert "enter job" in text(app), "a < would be another key"
        await pilot.press("question_mark")
        await pilot.pause()
        assert text(app).isascii()
        await pilot.press(*["pagedown"] * 3)
        await pilot.pause()
        assert ".:+#@" in text(app), "the signs of the strips as they are drawn here"


@pytest.mark.parametrize(
    ("run", "keys"),
    [
        ("sawtooth", ("enter",)),
        ("float16-scaled", ("c",)),
        ("underflow", ("n", "left", "down")),
        ("underflow", ("n", "tab", "m")),
        ("sawtooth", ("R", "shift+left")),
        ("sawtooth", ("i", "tab")),
        ("sawtooth", ("v",)),
    ],
)
async def test_without_unicode_every_screen_is_ascii_and_keeps_its_columns(runs, run, keys):
    runs.add("sawtooth", "float32", "float16-scaled", "underflow")
    widths = []
    for look in (Look(), Look(unicode=False, charset=ASCII)):
        app = runs.app()
        app.look = look
        async with app.run_test(size=SIZE) as pilot:
            await open_on(app, pilot)
            await select(app, pilot, run)
            for key in keys:
                await pilot.press(key)
                await settle(app, pilot)
            widths.append([cell_len(row) for row in screen_text(app)])
            if not look.unicode:
                assert text(app).isascii(), [x for x in screen_text(app) if not x.isascii()]
    assert max(widths[1]) <= SIZE[0]
    assert len(widths[0]) == len(widths[1])


async def test_without_colour_trouble_is_still_a_sign_and_a_word(runs, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = runs.add("exhausted", "float32").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        assert row_of(app, "exhausted").startswith("▸!")
        grey = {
            segment.style.color.triplet
            for strip in app.screen._compositor.render_strips()
            for segment in strip
            if segment.style and segment.style.color and segment.style.color.triplet
        }
        assert all(len(set(triplet)) == 1 for triplet in grey)


@pytest.mark.parametrize("charset", sorted(CHARSETS))
async def test_each_charset_draws(runs, charset):
    app = runs.add("sawtooth").app(charset=charset)
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        rows = app.screen.query_one("#chart1").text()[1:-2]
        drawn = {c for row in rows for c in row.split("┤")[-1]} - {" "}
        assert drawn
        assert drawn <= set(CHARSETS[charset].characters)


async def test_a_name_in_another_script_keeps_the_columns(runs):
    app = runs.add("数字-bfloat16", "float32").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        starts = [
            cell_len(row_of(app, name).split(" done ")[0]) for name in ("数字-bfloat16", "float32")
        ]
        assert starts[0] == starts[1]


async def test_a_name_cannot_drive_the_terminal(runs):
    meta = runs.add("float32").path / "float32" / "meta.json"
    meta.write_text(meta.read_text().replace('"name": "float32"', '"name": "a\\u001b[2Jb\\nc"'))
    app = runs.app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        assert "\x1b" not in text(app)
        assert "[2Jb" in text(app)


def test_the_recording_is_real_and_small():
    size = sum(p.stat().st_size for p in RECORDED.rglob("*") if p.is_file())
    assert size < 500_000
    for run in RECORDED.iterdir():
        assert last_time(run) > 0
        assert '"host": "host"' in (run / "meta.json").read_text()


async def test_a_help_longer_than_the_screen_can_be_read_to_its_end(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=(80, 24)) as pilot:
        await open_on(app, pilot)
        await pilot.press("question_mark")
        await pilot.pause()
        assert "more below" in text(app)
        assert "a dynamic scale" not in text(app)
        seen = text(app)
        for _ in range(8):
            await pilot.press("pagedown")
            seen += text(app)
        assert isinstance(app.screen, HelpScreen)
        assert "the end" in text(app)
        words = " ".join(seen.split())
        for key in (*app.screen_stack[0].KEYS, *app.KEYS):
            assert not key.text or key.text.split()[0] in words
        assert "a dynamic scale skips" in words
        await pilot.press("up", "x")
        await pilot.pause()
        assert isinstance(app.screen, JobsScreen)


async def test_y_copies_the_screen(runs):
    app = runs.add("sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("y")
        await pilot.pause()
        assert "sawtooth · healthy" in app.clipboard
        assert "┴" in app.clipboard, "the charts with it"
