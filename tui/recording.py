"""A run's journal, read again from any moment. Nothing of it is kept but the job it makes."""

import heapq
import math
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path

from keras_mp.telemetry.decode import decode_meta
from keras_mp.telemetry.folders import META_FILE, parse_events_file
from keras_mp.telemetry.health import verdict
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.records import Meta, Record
from keras_mp.telemetry.tail import JournalFile
from tui.skips import skips_of
from tui.snapshot import JobView, view

MAX_META_BYTES = 1 << 20
Entry = tuple[float, int, Record]  # (time, rank, record)


class Recording:
    """The journal of ``folder``: an iterable of (time, rank, record), ordered by time.

    A rank's own records stay in the order written; a clock that was set back does not put what came
    later before what came first.

    Attributes:
        start, stop: Times of the first and the last record (seconds since the epoch), once a Player
            has read to the end; 0 until then, and where there is none.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.meta = _meta(folder)
        self.start = self.stop = 0.0
        self._files: dict[int, list[Path]] = {}
        places = ((parse_events_file(path.name), path) for path in folder.iterdir())
        for place, path in sorted((p, path) for p, path in places if p is not None):
            self._files.setdefault(place[0], []).append(path)

    def __iter__(self) -> Iterator[Entry]:
        return heapq.merge(*map(self._of, self._files), key=itemgetter(0))

    def of_lead(self) -> Iterator[Record]:
        """The records of the first rank alone."""
        return (record for _, _, record in self._of(min(self._files))) if self._files else iter(())

    def _of(self, rank: int) -> Iterator[Entry]:
        latest = -math.inf
        for path in self._files[rank]:
            for block in JournalFile(path).blocks():
                for record in block:
                    latest = max(latest, record.time)
                    yield latest, rank, record


class Player:
    """A recording as the dashboard showed it at any moment. For one thread.

    Going on costs what was recorded in between; going back begins anew.
    """

    def __init__(self, recording: Recording, key: str, place: str):
        self.recording, self._key, self._place = recording, key, place
        self._begin()

    def _begin(self) -> None:
        self._job = Job(self.recording.folder.name, self.recording.folder)
        self._job.meta = self.recording.meta
        self._entries = iter(self.recording)
        self._next = next(self._entries, None)
        self._reached = -math.inf

    def end(self) -> JobView | None:
        """The job at its end, which also tells when it began and ended; None without a record."""
        self._begin()
        if self._next is None:
            return None
        self.recording.start = self._next[0]
        self._fold(math.inf, lambda: False)
        self.recording.stop = self._reached
        return self._view(self._reached)

    def at(self, time: float, stop: Callable[[], bool] = lambda: False) -> JobView | None:
        """The job at ``time``; None if ``stop`` said so meanwhile."""
        if time < self._reached:
            self._begin()
        return self._view(time) if self._fold(time, stop) else None

    def _fold(self, time: float, stop: Callable[[], bool]) -> bool:
        done = 0
        while self._next is not None and self._next[0] <= time:
            self._reached, rank, record = self._next
            self._job.apply(record, rank)
            self._next = next(self._entries, None)
            done += 1
            if done % 1000 == 0 and stop():
                return False
        return True

    def _view(self, time: float) -> JobView:
        judged = verdict(self._job, time, alive=lambda *_: True)
        return view(self._job, self._key, self._place, judged, skips_of(self._job))


def _meta(folder: Path) -> Meta | None:
    try:
        with open(folder / META_FILE, "rb") as file:
            return decode_meta(file.read(MAX_META_BYTES))
    except OSError:
        return None
