"""Jobs of other programs: folders of TensorBoard event files, as ``runs.py`` shows them.

torch's SummaryWriter, ``tf.summary``, Keras' TensorBoard callback and what builds on them write
such folders. Files of one folder and of the folders directly in it are one job: Keras writes
``train`` and ``validation``, and torch's ``add_scalars`` a folder a curve. Backend-free.
"""

import bisect
import math
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from keras_mp.telemetry.decode import inert
from keras_mp.telemetry.event_fold import EventFold, Said
from keras_mp.telemetry.event_proto import decode_event
from keras_mp.telemetry.folders import MARK
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.process import HOST, start_of
from keras_mp.telemetry.records import End, Meta
from keras_mp.telemetry.tfrecord import FrameFile

MAIN = ("train", "training")  # folders whose curves are the job's own
MAX_FILES = 200
# How much is read at a time: some thousand events, a fiftieth of a second.
TURN_BYTES = 128 << 10
SETTLED_NS = 2_000_000_000
# Event files do not say how a job ends. A process that is gone is believed so after a moment (and
# before health.py would call it dead); where that cannot be told (another machine), a job that has
# been silent for so long has ended.
GONE_SECONDS, SILENT_SECONDS = 1.0, 3600.0
# A process that began later than its file by more than this is another one of the same number.
START_TOLERANCE = 5.0
SILENT_GAPS = 20.0

_NAME = re.compile(r"tfevents\.(\d{9,11})\.(.+?)\.(\d{1,9})\.\d+(?:\.v2)?$")


def event_files(folder: Path) -> list[tuple[str, Path]]:
    """(folder within ``folder``, file) of each event file; "" for those directly in it.

    Raises:
        OSError: If ``folder`` cannot be listed.
    """
    found: list[tuple[str, Path]] = []
    with os.scandir(folder) as entries:
        listed = sorted(entries, key=lambda e: e.name)
    for entry in listed:
        if MARK in entry.name and entry.is_file():
            found.append(("", Path(entry.path)))
        elif entry.is_dir():
            try:
                names = sorted(os.listdir(entry.path))
            except OSError:
                continue
            inside = [Path(entry.path) / n for n in names if MARK in n]
            found += [(entry.name, path) for path in inside if path.is_file()]
        if len(found) >= MAX_FILES:
            break
    return found[:MAX_FILES]


def is_event_folder(folder: Path) -> bool:
    """Whether event files lie in ``folder`` or directly below it."""
    try:
        return bool(event_files(folder))
    except OSError:
        return False


def writer_of(name: str) -> tuple[float, str, int] | None:
    """(begun, host, pid) from a file's name; None if it does not tell."""
    match = _NAME.search(name)
    return None if match is None else (float(match[1]), match[2], int(match[3]))


@dataclass
class _File:
    """One event file: what its tags are called within the job, its writer, how far it is read."""

    path: Path
    prefix: str
    pid: int | None
    frames: FrameFile = field(init=False)
    reached: float = 0.0

    def __post_init__(self) -> None:
        self.again()

    def again(self) -> None:
        self.frames, self.reached = FrameFile(self.path), 0.0


class EventRun:
    """One folder of event files. The same face as the entries of ``runs.py``."""

    preview = None

    def __init__(self, path: Path):
        self.path = path
        self.job = Job(inert(path.name), path)
        self.looked_at = False
        self._files: dict[Path, _File] = {}
        self._waiting: list[Said] = []
        self._stamps: dict[Path, int] = {}
        self._fold = EventFold()
        self._trouble: str | None = None
        self._restarts = 0
        self._damaged = 0
        self._process: tuple[int, float, str] | None = None

    def shown(self) -> Job:
        return self.job

    def behind(self) -> int:
        return sum(file.frames.behind() for file in self._files.values())

    def poll(self, until: float | None, latest: bool = False) -> bool:
        """Read what is new, until about then (monotonic). Returns whether anything changed."""
        before = (self.job, self.job.version, tuple(self.job.problems))
        self._list()
        stuck: set[Path] = set()
        turns = self._turns()  # no more than there is now: a fast writer must not hold us for ever
        while turns > 0 and self._read(stuck):
            turns -= 1
            if sum(file.frames.restarts for file in self._files.values()) != self._restarts:
                self._start_over(keep_names=False)
                stuck.clear()
                turns = self._turns()
            if until is not None and time.monotonic() > until:
                break
        self._judge_end()
        self._report()
        return before != (self.job, self.job.version, tuple(self.job.problems))

    def _turns(self) -> int:
        """How often to read until all that is there now is read, the choice of a lead included."""
        return 3 * (self.behind() // TURN_BYTES + 2 * len(self._files) + 2)

    def _read(self, stuck: set[Path]) -> bool:
        """Read on in the file that lies furthest back in time. Returns whether there was one.

        So the curves of several files meet at the right steps, whatever their sizes.
        """
        behind = [f for f in self._files.values() if f.path not in stuck and f.frames.behind()]
        fresh: list[Said] = []
        if behind:
            file = min(behind, key=lambda f: f.reached)
            before = file.frames.behind()
            for data in file.frames.read(TURN_BYTES):
                event = decode_event(data)
                if event is None:
                    self._damaged += 1
                    continue
                file.reached = max(file.reached, event.time)
                fresh.append(Said(file.prefix, event, file.pid))
            left = file.frames.behind()
            if file.frames.error or left >= before:
                stuck.add(file.path)
            if file.frames.error or not left:
                behind.remove(file)
        if fresh and self._fold.better_lead(fresh):
            self._start_over(keep_names=True)
            stuck.clear()
            return True
        said = sorted(self._waiting + fresh, key=lambda one: one.event.time)
        horizon = min((f.reached for f in behind), default=math.inf)
        count = bisect.bisect_right(said, horizon, key=lambda one: one.event.time)
        self._waiting = said[count:]
        if count:
            for record in self._fold.records(said[:count]):
                self.job.apply(record)
        return bool(behind) or bool(fresh)

    def _list(self) -> None:
        if not self._changed():
            return
        try:
            found = event_files(self.path)
            self._trouble = None
        except OSError as error:
            self._trouble = f"the folder cannot be read ({error.strerror})"
            return
        for inside, path in found:
            if path in self._files:
                continue
            writer = writer_of(path.name)
            prefix = "" if inside in ("", *MAIN) else f"{inert(inside)}/"
            self._files[path] = _File(path, prefix, writer[2] if writer else None)
            if self.job.meta is None or (not prefix and writer):
                self._introduce(writer)

    def _changed(self) -> bool:
        """Whether a folder has changed since it was listed."""
        now, stamps = time.time_ns(), {}
        for folder in sorted({self.path, *(path.parent for path in self._files)}):
            try:
                stamp = os.stat(folder).st_mtime_ns
            except OSError:
                stamp = -1
            # One that has just changed may change again within the same tick of its clock.
            stamps[folder] = stamp if now - stamp > SETTLED_NS else now
        changed = stamps != self._stamps
        self._stamps = stamps
        return changed

    def _introduce(self, writer: tuple[float, str, int] | None) -> None:
        begun, host, pid = writer or (0.0, "", 0)
        started = start_of(pid) if host == HOST and pid else None
        # A process that began after its file was another one: the number was given again.
        living = started is not None and started <= begun + START_TOLERANCE
        self._process = (pid, begun, host) if writer else None
        self.job.meta = Meta(
            run_id=self.job.run_id,
            name=self.job.run_id,
            started=begun or _modified(self._files),
            host=host,
            pid=pid,
            process_started=started if living else begun,
        )
        self.job.version += 1

    def _start_over(self, keep_names: bool) -> None:
        """The steps told so far were of the wrong curve, or a file was replaced by another."""
        version, meta = self.job.version, self.job.meta
        self.job = Job(self.job.run_id, self.path)
        self.job.version, self.job.meta = version + 1, meta
        for file in self._files.values():
            file.again()
        self._waiting = []
        self._restarts = self._damaged = 0
        if keep_names:
            self._fold.restart()
        else:
            self._fold = EventFold()

    def _judge_end(self) -> None:
        """Say that the job has ended, when that can be told."""
        job = self.job
        if job.end is not None or job.last_time is None or self.behind():
            return
        silent = time.time() - max(job.last_time, _modified(self._files))
        reason = None
        if self._process is not None and self._process[2] == HOST:
            pid, begun, _ = self._process
            started = start_of(pid)
            gone = started is None or started > begun + START_TOLERANCE
            if gone and silent > GONE_SECONDS:
                reason = "its process is gone; event files do not say how it ended"
        else:
            steps = job.series["time"][-50:]
            gap = float((steps[-1] - steps[0]) / (len(steps) - 1)) if len(steps) > 1 else 0.0
            if silent > max(SILENT_SECONDS, SILENT_GAPS * gap):
                reason = "it has long been silent; event files do not say how it ended"
        if reason is not None:
            job.apply(End(step=job.step, time=job.last_time, status="done", reason=reason))

    def _report(self) -> None:
        problems = [self._trouble] if self._trouble else []
        files = [file.frames for file in self._files.values()]
        problems += [f"{inert(f.path.name)}: {f.error}" for f in files if f.error]
        corrupt = self._damaged + sum(f.corrupt for f in files)
        if corrupt:
            events = "1 damaged event was" if corrupt == 1 else f"{corrupt:,} damaged events were"
            problems.append(f"{events} passed over")
        behind, size = self.behind(), sum(f.size() for f in files)
        self.job.loading = 1.0 if not behind or not size else 1 - behind / size
        self.job.problems, self.job.corrupt = problems, corrupt


def _modified(files: Iterable[Path]) -> float:
    """When the files were last written to."""
    latest = 0.0
    for path in files:
        try:
            latest = max(latest, os.stat(path).st_mtime)
        except OSError:
            continue
    return latest
