"""One run's folder with its journal: how far its files are read, and the job made of them."""

import os
import time
from pathlib import Path

from keras_mp.telemetry.decode import decode_meta, inert
from keras_mp.telemetry.folders import MAX_META_BYTES, events_file, meta_file, parse_events_file
from keras_mp.telemetry.growing import read_start
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.records import SCHEMA_VERSION
from keras_mp.telemetry.tail import JournalFile

# A journal longer than this is shown from its end first: its last sixteenth, and no more than this.
# At about 10 µs a record and 200 bytes each, so much of it takes a hundredth of a second. Where the
# latest state alone is asked for (the first frame of a dashboard), a shorter one is, too.
PREVIEW_ABOVE, LATEST_ABOVE, PREVIEW_SHARE = 4 << 20, 256 << 10, 1 / 16
PREVIEW_BYTES = 256 << 10
# How much of one file is read before the next gets its turn.
TURN_BYTES = 1 << 20
SETTLED_NS = 2_000_000_000


class JournalRun:
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

    def poll(self, until: float | None, latest: bool = False) -> bool:
        """Read what is new. Returns whether anything changed.

        Args:
            until: When to stop (``time.monotonic``); None reads all there is.
            latest: Where there is much to read, only the end of it: the latest state.
        """
        before = (self.shown(), self.shown().version, tuple(self.shown().problems))
        new = self._list()
        self._read_meta()
        if new:
            self._begin_preview(LATEST_ABOVE if latest else PREVIEW_ABOVE)
        if not latest or self.preview is None:
            self._read(self._files, self.job, until)
        if sum(f.restarts for f in self._files.values()) != self._restarts:
            self._start_over(until)
        if self.preview is not None:
            behind = self.behind()
            if behind == 0:
                self.preview, self._preview_files = None, {}
            else:
                self._read(self._preview_files, self.preview, None)
                total = sum(f.size() for f in self._files.values()) or 1
                self.preview.loading = 1 - behind / total
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
                self._trouble = None  # it was away meanwhile
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

    def _begin_preview(self, above: int) -> None:
        if self.preview is not None or self.behind() <= above:
            return
        self.preview = Job(self.job.run_id, self.path)
        self.preview.meta = self.job.meta
        for place in {rank: (rank, seq) for rank, seq in self._files}.values():
            path, size = self._files[place].path, self._files[place].size()
            length = min(PREVIEW_BYTES, int(size * PREVIEW_SHARE))
            self._preview_files[place] = JournalFile(path, size - length)

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
            meta = decode_meta(read_start(path, MAX_META_BYTES))
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            why = "is missing" if missing else f"cannot be read ({error.strerror})"
            self._meta_trouble, self._meta_stamp = f"{path.name} {why}", None
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
