"""The folder where runs appear, grow and end.

    from keras_mp.telemetry.runs import RunsFolder

    folder = RunsFolder("runs")
    while True:
        changed = folder.poll()           # one look at the disk: the jobs that changed since
        for job in folder.jobs:           # newest first
            print(job.name, job.step, job.loss, job.scale)

Poll from one thread. Nothing here raises for what lies on the disk: a folder that is missing is
``folder.error``, a journal that cannot be read is in ``job.problems``, both in sentences. A long
journal is read from its end first: its job shows the latest state at once (``job.loading`` < 1),
and is replaced by the whole one when the history has been read, some at each poll.
"""

import os
import time
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING

from keras_mp.telemetry.decode import inert
from keras_mp.telemetry.folders import MARK, META_FILE, parse_events_file
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.journal_runs import JournalRun
from keras_mp.telemetry.series import MAX_POINTS

if TYPE_CHECKING:
    from keras_mp.telemetry.event_runs import EventRun

    Kind = type[JournalRun] | type[EventRun]

# Points of all jobs together (about 120 bytes each), and of one job at least.
ALL_POINTS, LEAST_POINTS = 400_000, 2_000
# A job that writes a thousand records a second is this far ahead of a reader that pauses a second.
BUSY_BYTES = 512 << 10
# How often a folder without a run is searched for event files in the folders inside it.
DEEPER_SECONDS = 5.0


class RunsFolder:
    """All runs under ``path`` (or the one run that ``path`` itself is).

    Args:
        path: Folder with one folder a run. It may appear later.

    Attributes:
        error: Why the folder cannot be read, in a sentence; None while it can.
        version: Changes when a run appears or goes.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.error: str | None = None
        self.version = 0
        self._hurried = False
        self._entries: dict[str, JournalRun | EventRun] = {}
        self._no_runs: dict[str, float] = {}  # folder -> when to look into it again

    @property
    def jobs(self) -> list[Job]:
        """All jobs, the latest started first."""
        shown = [entry.shown() for entry in self._entries.values() if entry.looked_at]
        return sorted(shown, key=lambda job: (-_began(job), job.run_id))

    @property
    def loading(self) -> bool:
        """Whether some history is still to be read."""
        return any(entry.preview is not None or entry.behind() for entry in self._entries.values())

    @property
    def catching_up(self) -> bool:
        """Whether there is history to read, beyond what busy jobs write between two looks."""
        entries = self._entries.values()
        return any(
            not entry.looked_at or entry.preview is not None or entry.behind() > BUSY_BYTES
            for entry in entries
        )

    def poll(
        self,
        seconds: float | None = 0.2,
        hurry: bool = False,
        only: Container[str] | None = None,
    ) -> list[Job]:
        """One look at the disk.

        Args:
            seconds: About how long to read at most; the rest comes at the next call. None reads
                all there is.
            hurry: When the time is up, leave whole runs for the next call, which begins with them;
                a run is among the jobs once it has been looked at. The first such call reads the
                ends of journals alone. Without, each has its turn.
            only: Look at the runs of these ids alone; the others wait for another call.

        Returns:
            The jobs that are new or have changed.
        """
        if only is None:
            self._find()
        self._share_memory()
        until = None if seconds is None else time.monotonic() + seconds
        latest, self._hurried = hurry and until is not None and not self._hurried, True
        changed: list[Job] = []
        for name in list(self._entries):
            entry = self._entries[name]
            if only is not None and entry.job.run_id not in only:
                continue
            if entry.poll(until, latest):
                changed.append(entry.shown())
            entry.looked_at = True
            if hurry and until is not None:
                self._entries[name] = self._entries.pop(name)  # behind the ones not looked at
                if time.monotonic() > until:
                    break
        return changed

    def _share_memory(self) -> None:
        """Few jobs keep long histories, many keep shorter ones: the older halves are thinned."""
        points = min(MAX_POINTS, max(LEAST_POINTS, ALL_POINTS // max(1, len(self._entries))))
        for entry in self._entries.values():
            for job in (entry.job, entry.preview):
                if job is not None and job.max_points != points:
                    job.limit_points(points)

    def _find(self) -> None:
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            self._set_error("does not exist")
            return
        except NotADirectoryError:
            self._set_error("is not a folder")
            return
        except OSError as error:
            self._set_error(f"cannot be read ({error.strerror})")
            return
        self.error = None
        if META_FILE in names or any(map(parse_events_file, names)):
            found: dict[str, Kind] = {".": JournalRun}
        elif any(MARK in n for n in names):
            found = {".": _event_run()}
        else:
            found = {n: kind for n in names if (kind := self._kind(n)) is not None}
        for name, entry in list(self._entries.items()):
            if not isinstance(entry, found.get(name, ())):
                del self._entries[name]
                self.version += 1
        for name in found.keys() - self._entries.keys():
            self._entries[name] = found[name](self.path / name)
            self.version += 1

    def _kind(self, name: str) -> "Kind | None":
        """What lies in this folder: a journal, another program's event files, or no run."""
        known = self._entries.get(name)
        if isinstance(known, JournalRun):
            return JournalRun
        try:
            names = os.listdir(self.path / name)
        except NotADirectoryError:
            return None
        except PermissionError:
            return JournalRun  # it may well be one: the user is told that it cannot be read
        except OSError:
            return None
        if META_FILE in names or any(map(parse_events_file, names)):
            return JournalRun
        if known is not None:
            return _event_run()
        # Event files may lie one folder deeper: not to be looked for at every poll.
        now = time.monotonic()
        if any(MARK in n for n in names) or now >= self._no_runs.get(name, 0.0):
            from keras_mp.telemetry.event_runs import is_event_folder

            if is_event_folder(self.path / name):
                return _event_run()
            self._no_runs[name] = now + DEEPER_SECONDS
        return None

    def _set_error(self, what: str) -> None:
        self.error = f"{inert(str(self.path))} {what}"


def _event_run() -> "type[EventRun]":
    # Only those who have other programs' event files import what reads them.
    from keras_mp.telemetry.event_runs import EventRun

    return EventRun


def _began(job: Job) -> float:
    return job.meta.started if job.meta else (job.started or 0.0)
