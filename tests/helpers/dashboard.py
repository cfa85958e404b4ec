"""The dashboard on journals of real runs (`make record`), at a moment that the test sets."""

import contextlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from textual.pilot import Pilot
from textual.worker import WorkerCancelled

from tui.app import MonitorApp
from tui.clock import SetClock

RECORDED = Path(__file__).parents[1] / "recorded" / "runs"
VERDICTS = RECORDED.parent / "verdicts"


def last_time(run: Path) -> float:
    """When the run wrote its last record."""
    return json.loads((run / "events-0.jsonl").read_bytes().splitlines()[-1])["time"]


class Runs:
    """A folder with copies of recorded runs."""

    def __init__(self, path: Path):
        self.path = path

    def add(self, *names: str) -> "Runs":
        for name in names:
            source = RECORDED / name
            source = source if source.exists() else VERDICTS / name
            shutil.copytree(source, self.path / name)
        return self

    def app(
        self,
        after: float = 1.0,
        alive: bool | None = True,
        since: str | None = None,
        paths: Sequence[str] | None = None,
        **options,
    ) -> MonitorApp:
        """The dashboard, ``after`` seconds after the last record (of the run ``since``)."""
        runs = [self.path / since] if since else [p.parent for p in self.path.glob("*/meta.json")]
        now = max(map(last_time, runs), default=0.0) + after
        return MonitorApp(
            paths or [str(self.path)],
            clock=SetClock(now),
            alive=lambda pid, started, host: alive,
            live=False,
            **options,
        )


def screen_text(app: MonitorApp) -> list[str]:
    """What the terminal shows, a string a row."""
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]


def row_of(app: MonitorApp, name: str) -> str:
    """The row of the jobs table that names the job."""
    table = app.screen.query_one("#jobs")
    rows = [table.render_line(y).text for y in range(table.size.height)]
    found = [row for row in rows if name in row]
    assert len(found) == 1, f"{name} in {rows}"
    return found[0]


async def settle(app: MonitorApp, pilot: Pilot[None]) -> None:
    """Until the screens' threads are done and what they posted is drawn."""
    for _ in range(3):
        while app.workers:
            with contextlib.suppress(WorkerCancelled):  # a newer one has taken its place
                await app.workers.wait_for_complete()
                break
            await pilot.pause(0.01)
        await pilot.pause()
