"""Filter, pin, hide, group, acknowledge; and what the dashboard remembers of it."""

import json

import pytest
from helpers.dashboard import row_of, screen_text
from textual.color import Color

from tui.arrangement import Arrangement
from tui.filter import parse
from tui.themes import THEMES

SIZE = (120, 40)


def names(app):
    return [key.split("\0")[1] for key in app.screen.query_one("#jobs").keys]


async def open_on(app, pilot):
    app.look_now()
    await pilot.pause()


@pytest.fixture
def some(runs):
    return runs.add("float32", "exhausted", "sawtooth", "thrashing")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {"float32", "exhausted", "sawtooth", "thrashing"}),
        ("saw", {"sawtooth"}),
        ("SAW", {"sawtooth"}),
        ("mixed", {"exhausted", "sawtooth", "thrashing"}),
        ("policy:^float", {"float32"}),
        ("state:done|running|slow", {"float32", "exhausted", "sawtooth", "thrashing"}),
        ("mixed -state:running|slow", {"sawtooth"}),
        ("job:t", {"float32", "exhausted", "sawtooth", "thrashing"}),
        ("nothing-like-it", set()),
        ("[", set()),
        ("scale:2⁻³", {"exhausted"}),
    ],
)
def test_the_filter_matches_words_columns_and_regular_expressions(some, words, expected):
    jobs = some.app(since="thrashing").reader.look(None).jobs
    assert {job.name for job in jobs if parse(words)(job)} == expected


async def test_slash_filters_while_typing_and_escape_clears(some):
    app = some.app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("slash", *"saw")
        await pilot.pause()
        assert names(app) == ["sawtooth"]
        assert "3 hidden" in screen_text(app)[0]
        await pilot.press("enter", "down")
        assert names(app) == ["sawtooth"]
        await pilot.press("slash", "x", "x")
        await pilot.pause()
        assert names(app) == []
        assert "matches the filter 'sawxx'" in "\n".join(screen_text(app))
        await pilot.press("escape")
        await pilot.pause()
        assert len(names(app)) == 4
        assert app.screen.query_one("#jobs").has_focus


async def test_a_pinned_job_stands_first_and_passes_the_filter(some):
    app = some.app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        assert names(app)[0] == "exhausted"
        await pilot.press("end", "p")
        await pilot.pause()
        pinned = names(app)[0]
        assert pinned in ("float32", "sawtooth")
        assert row_of(app, pinned).startswith("▸↑")
        await pilot.press("slash", *"thrash")
        await pilot.pause()
        assert names(app) == [pinned, "thrashing"]
        await pilot.press("escape", "home", "p")
        await pilot.pause()
        assert names(app)[0] == "exhausted"


async def test_ended_jobs_can_be_hidden_but_not_the_failed_one(runs):
    app = runs.add("float32", "failed", "exhausted").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("h")
        await pilot.pause()
        assert set(names(app)) == {"failed", "exhausted"}
        assert "1 hidden" in screen_text(app)[0]
        await pilot.press("h")
        await pilot.pause()
        assert set(names(app)) == {"float32", "failed", "exhausted"}


async def test_all_hidden_says_why(runs):
    app = runs.add("float32", "sawtooth").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("h")
        await pilot.pause()
        assert "None of 2 jobs is still running." in "\n".join(screen_text(app))


def test_groups_keep_folders_together(runs, tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    for folder, job in ((first, "float32"), (second, "exhausted"), (first, "thrashing")):
        folder.mkdir(exist_ok=True)
        (folder / job).symlink_to(runs.path / job)
    runs.add("float32", "exhausted", "thrashing")
    jobs = runs.app(paths=[str(second), str(first)]).reader.look(None).jobs
    plain = [job.name for job in Arrangement().apply(jobs)]
    grouped = [job.name for job in Arrangement(grouped=True).apply(jobs)]
    assert plain == ["exhausted", "thrashing", "float32"]
    assert grouped == ["thrashing", "float32", "exhausted"]


async def test_a_nan_stays_until_it_is_acknowledged(runs, tmp_path):
    file = tmp_path / "settings.json"
    app = runs.add("nan-batches").app(settings=file)
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        verdict = app.screen.query_one("#verdict")
        assert "the loss was not finite at step" in verdict.text()[0]
        assert row_of(app, "nan-batches").startswith("▸·")
        await pilot.press("a")
        app.look_now()
        await pilot.pause()
        assert "not finite" not in verdict.text()[0]
        assert "the loss was not finite" not in "\n".join(verdict.text())
    again = runs.app(settings=file)
    async with again.run_test(size=SIZE) as pilot:
        await open_on(again, pilot)
        assert "the loss was not finite" not in "\n".join(again.screen.query_one("#verdict").text())


async def test_a_nan_that_lasts_cannot_be_waved_away(runs):
    app = runs.add("nan-loss").app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("a")
        app.look_now()
        await pilot.pause()
        assert row_of(app, "nan-loss").startswith("▸!")


async def test_choices_are_remembered(some, tmp_path):
    file = tmp_path / "deep" / "settings.json"
    app = some.app(settings=file)
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("s", "r", "h", "o", "d", "p", "T")
        await pilot.pause()
        arranged = app.screen.arrangement
    kept = json.loads(file.read_text())
    assert kept["sort"] == "name"
    assert kept["reverse"] is True
    assert kept["hide_ended"] is True
    assert kept["grouped"] is True
    assert kept["details"] is False
    assert len(kept["pinned"]) == 1
    assert kept["theme"] == "keras-mp-light"
    again = some.app(settings=file)
    async with again.run_test(size=SIZE) as pilot:
        await open_on(again, pilot)
        assert again.theme == "keras-mp-light"
        assert again.screen.arrangement == arranged
        assert not again.screen.query_one("#details").display


@pytest.mark.parametrize(
    ("content", "word"),
    [("{", "cannot be read"), ("[]", "cannot be read"), ('{"sort": 3}', "wrong type")],
)
async def test_a_broken_settings_file_is_said_once_and_does_no_harm(runs, tmp_path, content, word):
    file = tmp_path / "settings.json"
    file.write_text(content)
    app = runs.add("float32").app(settings=file)
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        assert "float32" in row_of(app, "float32")
        assert [n.message for n in app._notifications if word in n.message]


@pytest.mark.parametrize("theme", [*THEMES, "textual-light", "no such theme"])
async def test_the_first_frame_has_the_remembered_colours(runs, tmp_path, theme):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"theme": theme}))
    app = runs.add("float32").app(settings=path)
    async with app.run_test(size=SIZE):
        wanted = app.get_theme(theme) or THEMES["keras-mp-dark"]
        assert app.theme == wanted.name
        variables = wanted.to_color_system().generate() | wanted.variables
        assert app.screen.styles.background == Color.parse(variables["background"])


async def test_unknown_keys_of_the_settings_file_are_kept(runs, tmp_path):
    file = tmp_path / "settings.json"
    file.write_text('{"of_the_future": 1, "theme": "no such theme"}')
    app = runs.add("float32").app(settings=file)
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("h")
        await pilot.pause()
    assert json.loads(file.read_text())["of_the_future"] == 1


async def test_settings_that_cannot_be_written_are_said_and_not_needed(runs, tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    app = runs.add("float32").app(settings=blocker / "settings.json")
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("h", "h")
        await pilot.pause()
        assert len([n for n in app._notifications if "cannot be" in n.message]) >= 1
        assert "float32" in row_of(app, "float32")


async def test_the_palette_does_by_name_what_keys_do(some):
    app = some.app()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press(*"theme: keras-mp-safe")
        await pilot.pause(0.5)
        await pilot.press("enter")
        await pilot.pause(0.3)
        assert app.theme == "keras-mp-safe"


async def test_each_theme_shows_the_same_words(some):
    app = some.app()
    seen = set()
    async with app.run_test(size=SIZE) as pilot:
        await open_on(app, pilot)
        for _ in range(3):
            await pilot.press("T")
            await pilot.pause()
            seen.add((app.theme, "\n".join(screen_text(app))))
    assert len({theme for theme, _ in seen}) == 3
    assert len({shown for _, shown in seen}) == 1
