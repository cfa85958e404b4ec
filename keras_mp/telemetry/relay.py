"""Send the journals under a folder down a pipe, as they grow: the far end of ``host:runs``.

    ssh host keras-mp relay RUNS --since -

Frames: a line of JSON, then ``size`` bytes as they are in the file, then a line end.

    {"file": "resnet50/events-0.jsonl", "offset": 81920, "size": 1234}     append there
    {"file": "resnet50/meta.json", "offset": 0, "size": 640}               replace the whole
    {"file": "theirs/train/events.out.tfevents.17...", ...}    another program's: append there
    {"error": "runs does not exist"}                                       nothing to send, why
    {"devices": {"host": "gpu1", "gpus": [...], "machine": {...}}}         GPUs and memory now
    {}                                                                     still here

The near end says once how much of each file it has ({"resnet50/events-0.jsonl": 81920}), so a
connection that broke is taken up where it ended. Journals are append-only: a copy of their bytes is
a copy of the run.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from keras_mp.telemetry.event_runs import event_files
from keras_mp.telemetry.folders import MARK, MAX_META_BYTES, META_FILE, parse_events_file
from keras_mp.telemetry.growing import open_at_once, read_start

# A frame holds at most this much, so that a slow line carries every run's news in turn.
FRAME_BYTES = 256 << 10
# How often a folder without a journal is searched for event files of other programs.
LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class Frame:
    """Bytes of one file, from ``offset`` on; a meta file always from 0, and whole."""

    file: str
    offset: int
    data: bytes

    def encode(self) -> bytes:
        head = {"file": self.file, "offset": self.offset, "size": len(self.data)}
        return json.dumps(head).encode() + b"\n" + self.data + b"\n"


class Relay:
    """What is new under ``runs`` at each call of ``frames``.

    Args:
        runs: Folder with one folder a run.
        since: Name of a file ("run/events-0.jsonl") -> bytes of it that the other end has.

    Attributes:
        error: Why the folder cannot be read, in a sentence; None while it can.
    """

    def __init__(self, runs: str | os.PathLike[str], since: Mapping[str, int] | None = None):
        self.runs = Path(runs)
        self.error: str | None = None
        self._sent = dict(since or {})
        self._metas: dict[str, tuple[int, int]] = {}
        self._event_files: dict[str, tuple[float, list[tuple[str, Path]]]] = {}

    def frames(self) -> Iterator[Frame]:
        """One pass over all files: at most one frame of each."""
        for run, path in self._runs():
            try:
                names = sorted(os.listdir(path))
            except OSError:
                continue
            for name in names:
                frame = None
                if parse_events_file(name):
                    frame = self._news(f"{run}/{name}", path / name)
                elif is_meta(name):
                    frame = self._meta(f"{run}/{name}", path / name)
                if frame is not None:
                    yield frame
            if not any(map(parse_events_file, names)):
                yield from self._others(run, path)

    def _others(self, run: str, path: Path) -> Iterator[Frame]:
        """Event files that another program wrote; looked for now and then, read at each pass."""
        now = time.monotonic()
        due, files = self._event_files.get(run, (0.0, []))
        if now >= due:
            try:
                files = event_files(path)
            except OSError:
                files = []
            self._event_files[run] = (now + LOOK_SECONDS, files)
        for inside, file in files:
            frame = self._news("/".join(filter(None, (run, inside, file.name))), file)
            if frame is not None:
                yield frame

    def _runs(self) -> list[tuple[str, Path]]:
        try:
            names = sorted(os.listdir(self.runs))
        except OSError as error:
            self.error = f"{self.runs} cannot be read ({error.strerror})"
            return []
        self.error = None
        if META_FILE in names or any(parse_events_file(n) or MARK in n for n in names):
            return [(self.runs.resolve().name or "run", self.runs)]
        return [(n, self.runs / n) for n in names if (self.runs / n).is_dir()]

    def _news(self, name: str, path: Path) -> Frame | None:
        sent = self._sent.get(name, 0)
        try:
            with open_at_once(path) as file:
                size = os.fstat(file.fileno()).st_size
                if size < sent:
                    sent = 0  # another file of this name: the other end begins again too
                elif size == sent:
                    return None
                file.seek(sent)
                data = file.read(FRAME_BYTES)
        except OSError:
            return None
        self._sent[name] = sent + len(data)
        return Frame(name, sent, data) if data else None

    def _meta(self, name: str, path: Path) -> Frame | None:
        try:
            status = os.stat(path)
            stamp = (status.st_mtime_ns, status.st_size)
            if self._metas.get(name) == stamp or status.st_size > MAX_META_BYTES:
                return None
            data = read_start(path, MAX_META_BYTES)
        except OSError:
            return None
        self._metas[name] = stamp
        return Frame(name, 0, data)


def is_meta(name: str) -> bool:
    """``meta.json``, or that of another rank."""
    stem = name.removesuffix(".json")
    return name == META_FILE or (stem.startswith("meta-") and stem[5:].isdigit())


def is_event_file(name: str) -> bool:
    """Whether a name as frames have it is that of another program's event file."""
    parts = name.split("/")
    proper = all(part not in ("", ".", "..") and "\0" not in part for part in parts)
    return proper and len(parts) in (2, 3) and MARK in parts[-1]
