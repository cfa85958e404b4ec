"""All records of one run, read to their end, to be looked at again from any moment."""

import bisect
from collections.abc import Callable
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


class Recording:
    """The journal of ``folder``.

    Attributes:
        records: (rank, record), in the order of their times; a rank's own in the order written.
        start, stop: Times of the first and the last (seconds since the epoch).
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.meta = _meta(folder)
        found = []
        for path in folder.iterdir():
            place = parse_events_file(path.name)
            if place is not None:
                found.append((place, path))
        told: list[tuple[float, int, Record]] = []
        latest: dict[int, float] = {}
        for (rank, _), path in sorted(found):
            for record in JournalFile(path).read():
                # A clock that was set back does not put what came later before what came first.
                latest[rank] = max(latest.get(rank, record.time), record.time)
                told.append((latest[rank], rank, record))
        told.sort(key=lambda entry: entry[0])
        self.times = [time for time, _, _ in told]
        self.records = [(rank, record) for _, rank, record in told]

    @property
    def start(self) -> float:
        return self.times[0] if self.times else 0.0

    @property
    def stop(self) -> float:
        return self.times[-1] if self.times else 0.0

    def of_lead(self) -> list[Record]:
        """The records of the first rank alone."""
        lead = min((rank for rank, _ in self.records), default=0)
        return [record for rank, record in self.records if rank == lead]


class Player:
    """A recording as the dashboard showed it at any moment. For one thread.

    Going on costs what was recorded in between; going back begins anew.
    """

    def __init__(self, recording: Recording, key: str, place: str):
        self.recording, self._key, self._place = recording, key, place
        self._job = self._fresh()
        self._done = 0

    def _fresh(self) -> Job:
        job = Job(self.recording.folder.name, self.recording.folder)
        job.meta = self.recording.meta
        return job

    def at(self, time: float, stop: Callable[[], bool] = lambda: False) -> JobView | None:
        """The job at ``time``; None if ``stop`` said so meanwhile."""
        until = bisect.bisect_right(self.recording.times, time)
        if until < self._done:
            self._job, self._done = self._fresh(), 0
        records = self.recording.records
        while self._done < until:
            rank, record = records[self._done]
            self._job.apply(record, rank)
            self._done += 1
            if self._done % 1000 == 0 and stop():
                return None
        judged = verdict(self._job, time, alive=lambda *_: True)
        return view(self._job, self._key, self._place, judged, skips_of(self._job))


def _meta(folder: Path) -> Meta | None:
    try:
        with open(folder / META_FILE, "rb") as file:
            return decode_meta(file.read(MAX_META_BYTES))
    except OSError:
        return None
