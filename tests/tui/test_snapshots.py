"""What each screen looks like, as text. After a change on purpose: UPDATE_SNAPSHOTS=1 pytest."""

import os
from pathlib import Path

import pytest
from helpers.dashboard import RECORDED, VERDICTS, last_time, screen_text, settle
from helpers.nvml import FakeGpu, FakeNvml

from tui.app import MonitorApp
from tui.clock import SetClock
from tui.devices import DeviceReader

SNAPSHOTS = Path(__file__).parent / "snapshots"
SIZES = ((80, 24), (120, 40), (200, 60))
# Screen -> the run that is selected (None: the first), and keys that lead there from the jobs.
SCREENS = {
    "jobs": (None, ()),
    "jobs-sawtooth": ("sawtooth", ("s",)),
    "job": ("sawtooth", ("enter", "shift+left")),
    "compare": ("float16-scaled", ("c", "shift+left")),
    "numerics": ("underflow", ("n", "down", *["left"] * 9)),
    "replay": ("sawtooth", ("R", *["shift+left"] * 3)),
    "what-if": ("sawtooth", ("i", "down", "down", "right")),
    "devices": (None, ("v",)),
    "help": (None, ("?",)),
}


@pytest.fixture
def machine(tmp_path) -> DeviceReader:
    """Two GPUs and 16 GB of memory, as a test says them."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 15625000 kB\nMemAvailable: 3906250 kB\n")
    gpus = FakeGpu(processes={1003: 38 * 10**9}), FakeGpu(used=2 * 10**9, busy=0)
    return DeviceReader(FakeNvml(*gpus), tmp_path, host="host")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("screen", SCREENS)
async def test_screen(screen, size, machine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    run, keys = SCREENS[screen]
    Path("runs").mkdir()
    sources = [VERDICTS / run] if run == "underflow" else list(RECORDED.iterdir())
    for source in sources:
        Path("runs", source.name).symlink_to(source)
    now = max(map(last_time, sources)) + 3600
    app = MonitorApp(
        ["runs"], clock=SetClock(now), alive=lambda *_: None, live=False, devices=machine
    )
    async with app.run_test(size=size) as pilot:
        app.look_now()
        await pilot.pause()
        if run is not None:
            app.screen.select(f"runs\0{run}")
            await pilot.pause()
        for key in keys:
            await pilot.press(key)
        await settle(app, pilot)
        shown = "\n".join(screen_text(app)) + "\n"
    path = SNAPSHOTS / f"{screen}-{size[0]}x{size[1]}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown)
    assert path.exists(), f"no snapshot yet: run with UPDATE_SNAPSHOTS=1 and look at {path.name}"
    assert shown == path.read_text()
