"""The devices screen on journals of real runs and a fake NVML."""

import pytest
from helpers.dashboard import screen_text
from helpers.nvml import FakeGpu, FakeNvml

from tui.devices import DeviceReader
from tui.screens.devices import DevicesScreen
from tui.screens.job import JobScreen
from tui.screens.jobs import JobsScreen

SIZE = (120, 40)
GB = 10**9


def machine(*gpus, **options):
    return DeviceReader(FakeNvml(*gpus, **options), host="host")


async def open_devices(app, pilot):
    app.look_now()
    await pilot.pause()
    await pilot.press("v")
    await pilot.pause()
    assert isinstance(app.screen, DevicesScreen)
    return "\n".join(screen_text(app))


async def test_each_gpu_with_its_jobs_and_what_is_left(runs, monkeypatch):
    monkeypatch.chdir(runs.path.parent)
    runs.add("killed", "exhausted")
    app = runs.app(since="killed")
    (job,) = [j for j in app.reader.look(None).jobs if j.name == "killed"]
    pid = job.meta.pid
    gpu = FakeGpu(processes={pid: 38 * GB, 4: 3 * GB})
    reader = machine(gpu, FakeGpu(name="NVIDIA L4", busy=3))
    app = runs.app(since="killed", devices=reader, paths=["runs"])
    async with app.run_test(size=SIZE) as pilot:
        shown = await open_devices(app, pilot)
        assert "GPU0 H200" in shown
        assert "61.2/141 GB" in shown
        assert "87 %" in shown
        assert "61 °C · 412 W" in shown
        assert "others 23.2 GB" in shown, "61.2 in use, 38 of them by the job"
        assert "GPU1 L4" in shown
        (row,) = [r for r in screen_text(app) if r.strip().startswith("killed")]
        assert "GPU0" in row
        assert "38.0 GB" in row
        assert "2 GPUs 122/282 GB  45 %" in screen_text(app)[0]


async def test_at_80_columns_the_reason_is_whole_and_the_titles_too(runs):
    why = "NVML Shared Library Not Found, or a driver of another version than its own"
    app = runs.add("killed").app(alive=True, devices=machine(broken=why))
    async with app.run_test(size=(80, 24)) as pilot:
        shown = await open_devices(app, pilot)
        assert why in " ".join(shown.split())
        assert "room left" in shown
        assert "v devices" not in shown, "it is this screen"


async def test_without_a_gpu_the_reason_stands_there_and_no_zero(runs):
    app = runs.add("killed").app(devices=machine(broken="NVML Shared Library Not Found"))
    async with app.run_test(size=SIZE) as pilot:
        shown = await open_devices(app, pilot)
        assert "No GPU of NVIDIA's can be read here (NVML Shared Library Not Found)." in shown
        assert "GPU0" not in shown
        assert " 0 B" not in shown
        assert "this machine" in shown


async def test_only_jobs_that_hold_memory_are_listed_and_enter_opens_one(runs):
    app = runs.add("killed", "float32").app(since="killed", devices=machine(FakeGpu()))
    async with app.run_test(size=SIZE) as pilot:
        shown = await open_devices(app, pilot)
        assert "float32" not in shown, "it has ended"
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, JobScreen)
        assert app.screen.job.name == "killed"
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, DevicesScreen)
        await pilot.press("v", "escape")
        await pilot.pause()
        assert isinstance(app.screen, JobsScreen)


async def test_the_charts_show_the_last_minutes_from_nothing_to_all(runs):
    nvml = FakeNvml(FakeGpu(used=35 * GB, total=70 * GB, busy=0))
    app = runs.add("killed").app(devices=DeviceReader(nvml, host="host"))
    async with app.run_test(size=SIZE) as pilot:
        for second in range(60):
            nvml.gpus[0].busy = second
            app.clock.move(1)
            app.look_now()
        shown = await open_devices(app, pilot)
        assert "memory used  GPU0 50 %" in shown
        assert "busy  GPU0 59 %" in shown
        assert "59 s ago" in shown
        for label in ("100 %┤", "0 %┤"):
            assert label in shown


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("gpus", [0, 1, 8])
async def test_it_fits_the_terminal(runs, size, gpus):
    runs.add("killed", "exhausted", "thrashing", "nan-loss")
    app = runs.app(since="killed", devices=machine(*[FakeGpu() for _ in range(gpus)]))
    async with app.run_test(size=size) as pilot:
        await open_devices(app, pilot)
        assert "quit" in screen_text(app)[-1]
        assert sum("GPU" in row and "━" in row for row in screen_text(app)) == gpus
        for widget in app.screen.query("*"):
            if widget.display and widget.region.height:
                assert app.screen.region.contains_region(widget.region), widget


async def test_room_is_a_column_of_the_jobs_and_scarce_room_stands_out(runs):
    runs.add("killed")
    for total, role in ((141 * GB, "text"), (61.5 * GB, "bad")):
        reader = machine(FakeGpu(total=int(total)))
        reader._memory = lambda total=total: (int(total), int(total - 61.2 * GB))
        app = runs.app(devices=reader)
        async with app.run_test(size=(200, 60)) as pilot:
            app.look_now()
            await pilot.pause()
            (job,) = app.snapshot.jobs
            left = total - 61.2 * GB
            assert job.room[0] == pytest.approx(left)
            table = app.screen.query_one("#jobs")
            (cell,) = [
                piece
                for piece, place in zip(
                    app.screen._cells(0, table.plan), table.plan.places, strict=True
                )
                if place.column.key == "room"
            ]
            assert cell[1] == role
