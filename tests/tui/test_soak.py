"""Long watches and busy moments: memory stays bounded, and the screen whole."""

import shutil
import threading
import time

import pytest
from helpers.dashboard import RECORDED, screen_text
from helpers.long_run import LongRun

from keras_mp.telemetry import runs as runs_module
from tui.app import MonitorApp
from tui.clock import SetClock
from tui.screens.small import too_small

JOBS = 6
HOURS = 12


def resident() -> float:
    """MB of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


@pytest.mark.slow
async def test_twelve_hours_in_fast_motion_with_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(runs_module, "ALL_POINTS", 2_000 * JOBS)
    long = LongRun(RECORDED / "sawtooth")
    runs = tmp_path / "runs"
    for number in range(JOBS):
        (runs / f"job-{number}").mkdir(parents=True)
        shutil.copy(RECORDED / "sawtooth" / "meta.json", runs / f"job-{number}")
    clock = SetClock(long.first_time)
    app = MonitorApp([str(runs)], clock=clock, alive=lambda *_: True, live=False)
    after: dict[int, float] = {}
    rounds = 0
    async with app.run_test(size=(160, 45)) as pilot:
        for end, lines in long.rounds(HOURS * 3600):
            for number in range(JOBS):
                with open(runs / f"job-{number}" / "events-0.jsonl", "ab") as file:
                    file.write(lines)
            clock.move(end - clock.now())
            app.look_now()
            await pilot.pause()
            rounds += 1
            hour = int((end - long.first_time) // 3600)
            after.setdefault(hour, resident())
        assert hour >= HOURS
        for job in app.snapshot.jobs:
            assert job.step == rounds * long.steps
            assert job.overflow_count == rounds * long.skips
            assert len(job.points) <= 2_000
            assert job.points["step"][0] < long.steps, "the beginning is still there, thinner"
        table = app.screen.query_one("#jobs")
        assert len(table.keys) == JOBS
        assert "skips" in "\n".join(screen_text(app))
    assert after[HOURS] - after[HOURS // 2] < 15, after


async def test_resizing_while_records_come_in(tmp_path):
    """Every size between, with the feed running: whatever is drawn last fits the last size."""
    long = LongRun(RECORDED / "sawtooth")
    run = tmp_path / "runs" / "busy"
    run.mkdir(parents=True)
    shutil.copy(RECORDED / "sawtooth" / "meta.json", run)
    stop = threading.Event()

    def write():
        for _, lines in long.rounds(1e9):
            with open(run / "events-0.jsonl", "ab") as file:
                file.write(lines)
            if stop.wait(0.02):
                return

    writer = threading.Thread(target=write)
    writer.start()
    sizes = [(80, 24), (161, 60), (60, 12), (97, 31), (120, 45), (80, 60), (200, 24), (81, 25)]
    app = MonitorApp([str(tmp_path / "runs")], fps=30, alive=lambda *_: True)
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            for number, size in enumerate(sizes):
                await pilot.resize_terminal(*size)
                if number % 3 == 0:
                    await pilot.press("enter" if number % 2 else "escape")
            seen = app.snapshot.jobs[0].step if app.snapshot and app.snapshot.jobs else 0
            for size in ((80, 24), (40, 10), (200, 60)):
                await pilot.resize_terminal(*size)
                await settled(app, pilot)
                if not too_small(*size):
                    assert "quit" in screen_text(app)[size[1] - 1]
                    for widget in app.screen.query("*"):
                        if widget.display and widget.region.height:
                            assert app.screen.region.contains_region(widget.region), widget
            deadline = time.monotonic() + 30
            while app.snapshot.jobs[0].step <= seen and time.monotonic() < deadline:
                await pilot.pause(0.05)
            assert app.snapshot.jobs[0].step > seen, "the feed went on meanwhile"
    finally:
        stop.set()
        writer.join()


async def settled(app, pilot):
    for _ in range(5):
        await pilot.pause(0.02)
