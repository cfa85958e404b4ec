"""Looks at the journals and makes snapshots. Used from one thread only, the feed's."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keras_mp.telemetry.health import Alive, Verdict, verdict
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.process import is_alive
from keras_mp.telemetry.runs import RunsFolder
from tui.clock import Clock, WallClock
from tui.devices import NO_DEVICES, DeviceReader, Devices
from tui.places import open_places
from tui.skips import skips_of
from tui.snapshot import JobView, Snapshot, Table, view

# A job is judged again after this long, sooner only where something happened to it: a verdict looks
# back over a job's history, and costs as much as fifty of its records.
JUDGE_SECONDS = 1.0
# What nobody looks at is shown anew (for sorting and counting) after this long, and judged again
# where nothing happened to it after that many times as long.
UNSEEN_SECONDS, UNSEEN_PATIENCE = 1.0, 3.0


@dataclass
class _Known:
    """The last view made of a job, and what it was made from.

    ``judged`` is when its verdict was reached, by the clock and by the job's own last record;
    ``made`` is when the view was.
    """

    job: Job
    version: int
    happened: tuple[object, ...]
    judged: tuple[float, float]
    made: float
    shown: JobView
    skips: Table


def _happened(job: Job) -> tuple[object, ...]:
    """What changes a verdict at once; the rest of it only moves with time."""
    good = job.loss is None or math.isfinite(job.loss)
    counts = (len(job.problems), len(job.alerts), job.resumed, job.overflow_count, job.skipped)
    return job.meta, job.end, good, job.nan_step, job.step > 0, *counts


class Reader:
    """The journals under some folders, as snapshots.

    Args:
        paths: Folders of runs, single runs, or ``host:folder``.
        clock: What time it is. alive: Whether a process lives (``keras_mp.telemetry.process``).
        devices: Reads this machine's GPUs and memory.

    Attributes:
        behind: Whether history is still being read after the last look.
        acknowledged: Key of a job -> its ``nan_step`` that the user has seen. Replaced as a whole
            by the app, never changed in place.
        in_view: Keys of the jobs on the screen, likewise; None: all of them. What others say is
            read and shown up to a second later.
    """

    def __init__(
        self,
        paths: Sequence[str],
        clock: Clock | None = None,
        alive: Alive = is_alive,
        devices: DeviceReader | None = None,
    ):
        self._devices = devices or DeviceReader()
        self._folders = open_places(paths)
        self._clock, self._alive = clock or WallClock(), alive
        self._known: dict[str, _Known] = {}
        self.behind = False
        self.acknowledged: dict[str, int] = {}
        self.in_view: frozenset[str] | None = None
        self._looked_at_all = float("-inf")
        self._now = NO_DEVICES

    def look(self, seconds: float | None = 0.2) -> Snapshot:
        """One look at the disk, reading for about ``seconds`` (None: all there is)."""
        behind = False
        errors: list[str] = []
        jobs: dict[str, JobView] = {}
        seen = self._only_seen(seconds)
        self._now = replace(self._devices.read(self._clock.now()), elsewhere=self._elsewhere())
        for path, folder in self._folders.items():
            try:
                folder.poll(seconds, True, seen.get(path, ()) if seen is not None else None)
            except Exception as error:
                errors.append(_fault(path, error))
            # Not who used up the time: on a busy machine every look would.
            behind |= folder.catching_up
            if folder.error:
                errors.append(folder.error)
            # What a host that is away did since cannot be judged: its jobs stay as they were.
            heard = None
            if not isinstance(folder, RunsFolder) and folder.away:
                heard = folder.last_heard
            for job in folder.jobs:
                key = f"{path}\0{job.run_id}"
                try:
                    jobs[key] = self._view(key, path, job, heard)
                except Exception as error:
                    errors.append(_fault(job.name, error))
                    if key in self._known:
                        jobs[key] = self._known[key].shown
        self._known = {key: known for key, known in self._known.items() if key in jobs}
        self.behind = behind
        now = self._clock.now()
        every = tuple(jobs.values())
        return Snapshot(now, every, errors, self.behind, self._now)

    def _only_seen(self, seconds: float | None) -> dict[str, set[str]] | None:
        """Folder -> the runs to look at now; None for all of them, once a second at least."""
        in_view, now = self.in_view, time.monotonic()
        waited = now - self._looked_at_all
        if in_view is None or seconds is None or self.behind or waited >= UNSEEN_SECONDS - 0.05:
            self._looked_at_all = now
            return None
        seen: dict[str, set[str]] = {}
        for key in in_view:
            path, _, run = key.partition("\0")
            seen.setdefault(path, set()).add(run)
        return seen

    def _elsewhere(self) -> tuple[Devices, ...]:
        """The devices of the other hosts that answer, each once."""
        told = (f.devices for f in self._folders.values() if not isinstance(f, RunsFolder))
        return tuple({d.host: d for d in told if d is not None}.values())

    def close(self) -> None:
        """End what runs for hosts elsewhere."""
        self._devices.close()
        for folder in self._folders.values():
            if not isinstance(folder, RunsFolder):
                folder.close()

    def _view(self, key: str, path: str, job: Job, heard: float | None = None) -> JobView:
        known, away = self._known.get(key), heard is not None
        now = self._clock.now() if heard is None else heard
        if known is None or known.job is not job or known.shown.away != away:
            return self._make(key, path, job, now, away, None)
        same = known.version == job.version
        if not same and self._can_wait(key, known, now):
            return known.shown
        if known.happened == _happened(job) and self._still_true(key, job, known, now):
            if same:
                return known.shown
            return self._make(key, path, job, now, away, known, known.shown.verdict)
        made = self._make(key, path, job, now, away, known)
        if same and made.verdict == known.shown.verdict:
            self._known[key].shown = known.shown
            return known.shown
        return made

    def _can_wait(self, key: str, known: _Known, now: float) -> bool:
        unseen = self.in_view is not None and key not in self.in_view
        fresh = 0 <= now - known.made < UNSEEN_SECONDS
        return unseen and fresh and known.happened == _happened(known.job)

    def _still_true(self, key: str, job: Job, known: _Known, now: float) -> bool:
        """Whether the last verdict needs no second thought yet."""
        verdict = known.shown.verdict
        if verdict.nan == "was" and self.acknowledged.get(key) == job.nan_step:
            return False
        if known.version == job.version and job.end is not None:
            return True
        # By the job's own clock too: a replay, and a test, may set ours.
        clock, last = known.judged
        seen = self.in_view is None or key in self.in_view
        limit = JUDGE_SECONDS * (1.0 if seen else UNSEEN_PATIENCE)
        return 0 <= now - clock < limit and (job.last_time or 0.0) - last < limit

    def _make(
        self,
        key: str,
        path: str,
        job: Job,
        now: float,
        away: bool,
        known: _Known | None,
        judged: Verdict | None = None,
    ) -> JobView:
        """A new view of the job, with this verdict or a new one."""
        when = known.judged if known is not None else (now, 0.0)
        if judged is None:
            judged = verdict(job, now, alive=self._alive, acknowledged=self.acknowledged.get(key))
            when = (now, job.last_time or 0.0)
        skips = skips_of(job, known.skips if known is not None and known.job is job else None)
        before = known.shown if known is not None and known.job is job else None
        shown = view(job, key, path, judged, skips, away, self._now, before)
        self._known[key] = _Known(job, job.version, _happened(job), when, now, shown, skips)
        return shown


def _fault(name: str, error: Exception) -> str:
    """A journal that nobody foresaw must not end the watch over the others, nor do so unseen."""
    said = f"{type(error).__name__}: {error}"
    return f"{name} cannot be shown, which is a fault of keras-mp's ({said})"


def place_name(path: str) -> str:
    """How a folder is called on the screen: below the home folder with a tilde."""
    try:
        return str(Path("~") / Path(path).relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return path
