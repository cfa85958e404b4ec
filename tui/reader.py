"""Looks at the journals and makes snapshots. Used from one thread only, the feed's."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_mp.telemetry.health import Alive, verdict
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.process import is_alive
from tui.clock import Clock, WallClock
from tui.remote import RemoteRuns, open_places
from tui.snapshot import JobView, Snapshot, Table, view

# A job that says nothing new is judged again after this long: only its silence can have changed.
JUDGE_SECONDS = 1.0


class _Known:
    """The last view made of a job, and what it was made from."""

    def __init__(self, job: Job, version: int, judged: float, shown: JobView, skips: Table):
        self.job, self.version, self.judged = job, version, judged
        self.shown, self.skips = shown, skips


class Reader:
    """The journals under some folders, as snapshots.

    Args:
        paths: Folders of runs, single runs, or ``host:folder``.
        clock: What time it is. alive: Whether a process lives (``keras_mp.telemetry.process``).

    Attributes:
        behind: Whether history is still being read after the last look.
        acknowledged: Key of a job -> its ``nan_step`` that the user has seen. Replaced as a whole
            by the app, never changed in place.
    """

    def __init__(self, paths: Sequence[str], clock: Clock | None = None, alive: Alive = is_alive):
        self._folders = open_places(paths)
        self._clock, self._alive = clock or WallClock(), alive
        self._known: dict[str, _Known] = {}
        self.behind = False
        self.acknowledged: dict[str, int] = {}

    def look(self, seconds: float | None = 0.2) -> Snapshot:
        """One look at the disk, reading for about ``seconds`` (None: all there is)."""
        behind = False
        errors: list[str] = []
        jobs: dict[str, JobView] = {}
        for path, folder in self._folders.items():
            began = time.monotonic()
            folder.poll(seconds, hurry=True)
            # Busy journals are never read to their very end; behind is who used up the time.
            behind |= seconds is not None and time.monotonic() - began >= seconds
            behind |= any(job.loading < 1 for job in folder.jobs)
            if folder.error:
                errors.append(folder.error)
            # What a host that is away did since cannot be judged: its jobs stay as they were.
            heard = folder.last_heard if isinstance(folder, RemoteRuns) and folder.away else None
            for job in folder.jobs:
                key = f"{path}\0{job.run_id}"
                jobs[key] = self._view(key, path, job, heard)
        self._known = {key: known for key, known in self._known.items() if key in jobs}
        self.behind = behind
        now = self._clock.now()
        return Snapshot(time=now, jobs=tuple(jobs.values()), errors=errors, behind=self.behind)

    def close(self) -> None:
        """End what runs for hosts elsewhere."""
        for folder in self._folders.values():
            if isinstance(folder, RemoteRuns):
                folder.close()

    def _view(self, key: str, path: str, job: Job, heard: float | None = None) -> JobView:
        known, away = self._known.get(key), heard is not None
        now = self._clock.now() if heard is None else heard
        same = known is not None and known.job is job and known.version == job.version
        same = same and known is not None and known.shown.away == away
        if same and known is not None:
            seen = self.acknowledged.get(key)
            settled = job.end is not None or now - known.judged < JUDGE_SECONDS
            if settled and (known.shown.verdict.nan != "was" or seen != job.nan_step):
                return known.shown
        judged = verdict(job, now, alive=self._alive, acknowledged=self.acknowledged.get(key))
        if same and known is not None and known.shown.verdict == judged:
            known.judged = now
            return known.shown
        skips = _skips(job, known)
        shown = view(job, key, path, judged, skips, away)
        self._known[key] = _Known(job, job.version, now, shown, skips)
        return shown


def _skips(job: Job, known: _Known | None) -> Table:
    """Where steps were skipped; made again only when there are others."""
    last = float(job.overflows[-1].step) if job.overflows else np.nan
    if known is not None and known.job is job:
        before = known.skips
        if len(before) == len(job.overflows) and (not len(before) or before["step"][-1] == last):
            return before
    columns = {
        "step": np.array([o.step for o in job.overflows], dtype=np.float64),
        "time": np.array([o.time for o in job.overflows], dtype=np.float64),
    }
    return Table(columns)


def place_name(path: str) -> str:
    """How a folder is called on the screen: below the home folder with a tilde."""
    try:
        return str(Path("~") / Path(path).relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return path
