"""What each screen looks like, as text. After a change on purpose: UPDATE_SNAPSHOTS=1 pytest."""

import os
from pathlib import Path

import pytest
from helpers.dashboard import RECORDED, last_time, screen_text

from tui.app import MonitorApp
from tui.clock import SetClock

SNAPSHOTS = Path(__file__).parent / "snapshots"
SIZES = ((80, 24), (120, 40), (200, 60))
# Screen -> keys that lead there from the jobs screen.
SCREENS = {"jobs": (), "jobs-sawtooth": ("s", "end", "up", "up", "up", "up"), "help": ("?",)}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("screen", SCREENS)
async def test_screen(screen, size, monkeypatch):
    monkeypatch.chdir(RECORDED.parent)
    now = max(map(last_time, RECORDED.iterdir())) + 3600
    app = MonitorApp(["runs"], clock=SetClock(now), alive=lambda *_: None, live=False)
    async with app.run_test(size=size) as pilot:
        app.look_now()
        await pilot.pause()
        await pilot.press(*SCREENS[screen])
        await pilot.pause()
        shown = "\n".join(screen_text(app)) + "\n"
    path = SNAPSHOTS / f"{screen}-{size[0]}x{size[1]}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown)
    assert path.exists(), f"no snapshot yet: run with UPDATE_SNAPSHOTS=1 and look at {path.name}"
    assert shown == path.read_text()
