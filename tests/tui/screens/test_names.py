"""Names of any length and script: what is wrong with a job is not cut for the sake of its name."""

import json
from contextlib import asynccontextmanager

import pytest
from helpers.dashboard import screen_text, settle
from rich.cells import cell_len

SIZE = (80, 24)
LONG = {
    "a sweep's": "resnet50-imagenet-mixed_float16-lr0.001-bs256-" * 4 + "seed1",
    "Chinese": "数字識別模型混合精度訓練實驗" * 5,
    "with spaces": "run  of   my  own " * 8,
}


def call(runs, run, name):
    path = runs.add(run).path / run / "meta.json"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps(meta | {"name": name}, ensure_ascii=False))


def said(app, selector):
    """What a widget says, as one text."""
    return " ".join(" ".join(app.screen.query_one(selector).text()).split())


@asynccontextmanager
async def after(runs, *keys):
    """The dashboard on these runs when the keys have been pressed."""
    app = runs.app()
    async with app.run_test(size=SIZE) as pilot:
        app.look_now()
        await pilot.pause()
        await pilot.press(*keys)
        await settle(app, pilot)
        yield app


@pytest.fixture(params=sorted(LONG))
def long_name(request):
    return LONG[request.param]


@pytest.mark.parametrize("keys", [(), ("enter",), ("R",)], ids=["jobs", "job", "replay"])
async def test_the_verdict_and_the_advice_are_whole_at_80_columns(runs, long_name, keys):
    call(runs, "thrashing", long_name)
    async with after(runs, *keys) as app:
        verdict = app.snapshot.jobs[0].verdict
        assert verdict.sentence in said(app, "#verdict")
        assert verdict.advice in said(app, "#verdict")
        assert long_name.split()[0][:5] in said(app, "#verdict")
        assert max(map(cell_len, screen_text(app))) <= SIZE[0]


async def test_names_that_differ_at_their_end_can_be_told_apart(runs):
    call(runs, "float32", "sequential-20261130-040509")
    call(runs, "sawtooth", "sequential-20261130-181207")
    app = runs.app()
    async with app.run_test(size=SIZE) as pilot:
        app.look_now()
        await pilot.pause()
        table = app.screen.query_one("#jobs")
        shown = {table.render_line(y).text[2:].split()[0] for y in range(2)}
        assert shown == {"seque…40509", "seque…81207"}


async def test_a_pair_is_compared_whatever_its_names(runs, long_name):
    call(runs, "float32", f"{long_name} a")
    call(runs, "float16-scaled", f"{long_name} b")
    async with after(runs, "c") as app:
        legend = said(app, "#legend")
        assert "as fast as" in legend
        assert "process memory · loss equal at step 564" in legend
        assert "mixed_bfloat16 on a CPU that has it." in legend


@pytest.mark.parametrize(
    ("run", "keys", "whole"),
    [
        ("underflow", ("n",), "gradients in float16 · lost to underflow · scale 2¹⁵"),
        ("thrashing", ("i",), "what if the loss scale had been its own?"),
    ],
)
async def test_titles_keep_what_is_said_behind_the_name(runs, long_name, run, keys, whole):
    call(runs, run, long_name)
    async with after(runs, *keys) as app:
        title = screen_text(app)[2]
        assert title.endswith(whole)
        assert long_name[:3] in title
