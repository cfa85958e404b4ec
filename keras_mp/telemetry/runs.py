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

from keras_mp.telemetry.decode import decode_meta, inert
from keras_mp.telemetry.event_runs import MARK, EventRun, is_event_folder
from keras_mp.telemetry.folders import META_FILE, events_file, meta_file, parse_events_file
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.records import SCHEMA_VERSION
from keras_mp.telemetry.series import MAX_POINTS
from keras_mp.telemetry.tail import JournalFile

# A journal longer than this is shown from its end first. At about 5 µs a record and 200 bytes each,
# this much is read in a tenth of a second.
PREVIEW_ABOVE = 4 << 20
PREVIEW_BYTES = 256 << 10
MAX_META_BYTES = 1 << 20
# Points of all jobs together (about 120 bytes each), and of one job at least.
ALL_POINTS, LEAST_POINTS = 400_000, 2_000
# How much of one file is read before the next gets its turn.
TURN_BYTES = 1 << 20
SETTLED_NS = 2_000_000_000
# A job that writes a thousand records a second is this far ahead of a reader that pauses a second.
BUSY_BYTES = 512 << 10
# How often a folder without a run is searched for event files in the folders inside it.
DEEPER_SECONDS = 5.0


class _Entry:
    """One run's folder: its files, how far they are read, and the job made of them."""

    def __init__(self, path: Path):
        self.path = path
        self.job = Job(inert(path.name), path)
        self.preview: Job | None = None
        self.looked_at = False
        self._files: dict[tuple[int, int], JournalFile] = {}
        self._preview_files: dict[tuple[int, int], JournalFile] = {}
        self._listed: int | None = None
        self._meta_stamp: tuple[int, int] | None = None
        self._restarts = 0
        self._trouble: str | None = None
        self._meta_trouble: str | None = None

    def shown(self) -> Job:
        return self.preview or self.job

    def poll(self, until: float | None) -> bool:
        """Read what is new. Returns whether anything changed."""
        before = (self.shown(), self.shown().version, tuple(self.shown().problems))
        new = self._list()
        self._read_meta()
        if new:
            self._begin_preview()
        self._read(self._files, self.job, until)
        if sum(f.restarts for f in self._files.values()) != self._restarts:
            self._start_over(until)
        if self.preview is not None:
            self._read(self._preview_files, self.preview, None)
            total = sum(f.size() for f in self._files.values()) or 1
            behind = sum(f.behind() for f in self._files.values())
            self.preview.loading = 1 - behind / total
            if behind == 0:
                self.preview = None
                self._preview_files = {}
        self._report()
        shown = self.shown()
        if before[0] is not shown:
            shown.version = max(shown.version, before[1]) + 1
        return before != (shown, shown.version, tuple(shown.problems))

    def behind(self) -> int:
        return sum(f.behind() for f in self._files.values())

    def _list(self) -> bool:
        """Look for new journal files; only when the folder has changed."""
        try:
            stamp = os.stat(self.path).st_mtime_ns
            if stamp == self._listed:
                return False
            names = os.listdir(self.path)
            # A folder that has just changed may change again within the same tick of its clock.
            self._listed = stamp if time.time_ns() - stamp > SETTLED_NS else None
            self._trouble = None
        except OSError as error:
            self._trouble = f"the folder cannot be read ({error.strerror})"
            return False
        fresh = False
        for place in filter(None, map(parse_events_file, names)):
            if place not in self._files:
                self._files[place] = JournalFile(self.path / events_file(*place))
                fresh = True
        self._files = dict(sorted(self._files.items()))
        return fresh

    def _begin_preview(self) -> None:
        if self.preview is not None or self.behind() <= PREVIEW_ABOVE:
            return
        self.preview = Job(self.job.run_id, self.path)
        self.preview.meta = self.job.meta
        for place in {rank: (rank, seq) for rank, seq in self._files}.values():
            path = self._files[place].path
            offset = max(0, self._files[place].size() - PREVIEW_BYTES)
            self._preview_files[place] = JournalFile(path, offset)

    def _read(
        self, files: dict[tuple[int, int], JournalFile], job: Job, until: float | None
    ) -> None:
        """Fold new records into ``job``: each file in turn, a rank's files in their order."""
        stuck: set[tuple[int, int]] = set()
        while True:
            turn: dict[int, tuple[int, int]] = {}
            for place, file in files.items():
                if place not in stuck and place[0] not in turn and file.behind():
                    turn[place[0]] = place
            if not turn:
                return
            for rank, place in turn.items():
                file = files[place]
                before = file.behind()
                for record in file.read(TURN_BYTES):
                    job.apply(record, rank)
                if file.error or file.behind() >= before:
                    stuck.add(place)
                if until is not None and time.monotonic() > until:
                    return

    def _start_over(self, until: float | None) -> None:
        """A file was replaced by a shorter one: what was folded is of a run that is no more."""
        version = self.job.version
        self.job = Job(self.job.run_id, self.path)
        self.job.version = version + 1
        self.preview, self._preview_files = None, {}
        self._files = {place: JournalFile(f.path) for place, f in self._files.items()}
        self._restarts = 0
        self._meta_stamp = None
        self._read_meta()
        self._read(self._files, self.job, until)

    def _read_meta(self) -> None:
        ranks = sorted({rank for rank, _ in self._files}) or [0]
        path = self.path / meta_file(ranks[0])
        try:
            status = os.stat(path)
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp == self._meta_stamp:
                return
            self._meta_stamp = stamp
            with open(path, "rb") as file:
                meta = decode_meta(file.read(MAX_META_BYTES))
        except FileNotFoundError:
            self._meta_trouble = f"{path.name} is missing"
            return
        except OSError as error:
            self._meta_trouble = f"{path.name} cannot be read ({error.strerror})"
            return
        self._meta_trouble = None
        if meta is None:
            self._meta_trouble = f"{path.name} is damaged"
        elif meta.schema > SCHEMA_VERSION:
            self._meta_trouble = (
                f"{path.name} was written by a newer keras-mp (schema {meta.schema}; this one "
                f"reads up to {SCHEMA_VERSION})"
            )
        else:
            for job in filter(None, (self.job, self.preview)):
                job.meta = meta
                job.version += 1

    def _report(self) -> None:
        problems = [p for p in (self._trouble, self._meta_trouble) if p]
        for file in self._files.values():
            problems += [f"{file.path.name}: {p}" for p in (file.refused, file.error) if p]
        corrupt = sum(f.corrupt for f in self._files.values())
        if corrupt:
            lines = "1 damaged line was" if corrupt == 1 else f"{corrupt:,} damaged lines were"
            problems.append(f"{lines} passed over")
        for job in filter(None, (self.job, self.preview)):
            job.problems, job.corrupt = problems, corrupt


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
        self._entries: dict[str, _Entry | EventRun] = {}
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
                a run is among the jobs once it has been looked at. Without, each has its turn.
            only: Look at the runs of these ids alone; the others wait for another call.

        Returns:
            The jobs that are new or have changed.
        """
        if only is None:
            self._find()
        self._share_memory()
        until = None if seconds is None else time.monotonic() + seconds
        changed: list[Job] = []
        for name in list(self._entries):
            entry = self._entries[name]
            if only is not None and entry.job.run_id not in only:
                continue
            if entry.poll(until):
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
            found: dict[str, type[_Entry] | type[EventRun]] = {".": _Entry}
        elif any(MARK in n for n in names):
            found = {".": EventRun}
        else:
            found = {n: kind for n in names if (kind := self._kind(n)) is not None}
        for name, entry in list(self._entries.items()):
            if not isinstance(entry, found.get(name, ())):
                del self._entries[name]
                self.version += 1
        for name in found.keys() - self._entries.keys():
            self._entries[name] = found[name](self.path / name)
            self.version += 1

    def _kind(self, name: str) -> type[_Entry] | type[EventRun] | None:
        """What lies in this folder: a journal, another program's event files, or no run."""
        known = self._entries.get(name)
        if isinstance(known, _Entry):
            return _Entry
        try:
            names = os.listdir(self.path / name)
        except NotADirectoryError:
            return None
        except PermissionError:
            return _Entry  # it may well be one: the user is told that it cannot be read
        except OSError:
            return None
        if META_FILE in names or any(map(parse_events_file, names)):
            return _Entry
        if known is not None:
            return EventRun
        # Event files may lie one folder deeper: not to be looked for at every poll.
        now = time.monotonic()
        if any(MARK in n for n in names) or now >= self._no_runs.get(name, 0.0):
            if is_event_folder(self.path / name):
                return EventRun
            self._no_runs[name] = now + DEEPER_SECONDS
        return None

    def _set_error(self, what: str) -> None:
        self.error = f"{inert(str(self.path))} {what}"


def _began(job: Job) -> float:
    return job.meta.started if job.meta else (job.started or 0.0)
