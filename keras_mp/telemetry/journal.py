"""Write a run's journal: one JSON line a record, appended, and never in the way of training.

    writer = JournalWriter(folders.claim_run("runs", "resnet50"))
    writer.start(Meta(run_id=writer.folder.name, name="resnet50", started=time.time(), ...))
    writer.write(Step(step=20, time=time.time(), loss=1.83, scale=32768.0))
    writer.close()

A run is a folder: ``meta.json`` and ``events-<rank>.jsonl``; when a file has reached its size, the
journal goes on in ``events-<rank>.1.jsonl`` and so on. Each record is one ``os.write`` to a file
opened with ``O_APPEND``: no thread, nothing kept back, so a process killed at any moment has lost
nothing but what it was just about to say. ``tail.py`` reads it.

Trouble with the disk (full, read-only, gone, too large) never reaches the training loop: it is said
once in the log ``keras_mp``, what was lost is counted, and the journal itself tells of the gap as
soon as it can be written again.
"""

import contextlib
import json
import logging
import os
import threading
import time
from pathlib import Path

from keras_mp.telemetry.folders import events_file, meta_file, parse_events_file, release_run
from keras_mp.telemetry.records import Alert, Meta, Record, Start, encode

log = logging.getLogger("keras_mp")

# Small enough to copy and to page through, large enough that a job of weeks has a handful of files.
MAX_FILE_BYTES = 256 * 1024 * 1024
# After a failed write, the next attempt comes this many seconds later: a disk that is full or a
# server that is gone costs a failing call each time, and it is the training that would pay.
RETRY_SECONDS = 1.0
# How often to ask whether the file still has a name (somebody removed the folder).
CHECK_SECONDS = 1.0


class JournalWriter:
    """Appends records to one rank's journal. No method raises for trouble with the disk.

    Args:
        folder: The run's folder (``claim_run`` chooses it); created by ``start``.
        rank: Which process of the job this is, from 0.
        buffer: Seconds that records may be held back to be written together. Defaults to 0: each
            record is written at once. 0.1 suits steps under a millisecond and slow file systems; a
            killed process then loses up to that much.
        max_bytes: Size at which the journal goes on in a further file.

    Attributes:
        lost: Records that could not be written.
        written: Records that were.
        last_step: Of the last record that had a step.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        rank: int = 0,
        buffer: float = 0.0,
        max_bytes: int = MAX_FILE_BYTES,
    ):
        self.folder = Path(folder)
        self.rank = rank
        self.lost = 0
        self.written = 0
        self._buffer_seconds = buffer
        self._max_bytes = max_bytes
        self._pending: list[bytes] = []
        self._pending_since = 0.0
        self._descriptor: int | None = None
        self._seq = 0
        self._size = 0
        self._torn = False
        self._said: set[str] = set()
        self._lost_told = 0
        self._retry_at = 0.0
        self._check_at = 0.0
        self.last_step = 0
        self._begun = False
        self._meta: Meta | None = None  # still to be written
        self._lock = threading.Lock()

    def start(self, meta: Meta, step: int = 0) -> bool:
        """Create the folder, write ``meta.json`` (atomically) and the journal's first line.

        Args:
            meta: Who runs.
            step: The last step that the job has already done; 0 for a fresh one.

        Returns:
            Whether both could be written. If not, the job goes on, and later records are tried.
        """
        self.last_step = step
        with self._lock:
            self._meta = meta
            try:
                self._open()
                return True
            except OSError as error:
                self._failed(error, records=1)
                return False

    def update_meta(self, meta: Meta) -> bool:
        """Replace ``meta.json``: more has become known."""
        with self._lock:
            if self._meta is not None:
                self._meta = meta  # not written yet: this one will be
                return False
            try:
                self._write_meta(meta)
                return True
            except OSError as error:
                self._say("disk", f"cannot write to {str(self.folder)!r} ({error})")
                return False

    def write(self, record: Record) -> bool:
        """Append one record. Returns False when it was lost (it is then counted in ``lost``)."""
        try:
            line = json.dumps(encode(record), allow_nan=False).encode() + b"\n"
        except (ValueError, TypeError, RecursionError) as error:
            self._say("record", f"a record could not be put into words ({error})")
            self.lost += 1
            return False
        self.last_step = getattr(record, "step", self.last_step)
        with self._lock:
            if self._buffer_seconds <= 0:
                return self._append(line, 1)
            now = time.monotonic()
            if not self._pending:
                self._pending_since = now
            self._pending.append(line)
            if now - self._pending_since >= self._buffer_seconds:
                return self._flush()
            return True

    def flush(self) -> bool:
        """Write what the buffer holds back."""
        with self._lock:
            return self._flush()

    def close(self) -> None:
        """Flush and close; the folder is free for a later writer of the same name."""
        with self._lock:
            self._flush()
            self._close_file()
        release_run(self.folder)

    def _flush(self) -> bool:
        lines, self._pending = self._pending, []
        return self._append(b"".join(lines), len(lines)) if lines else True

    def _append(self, data: bytes, records: int) -> bool:
        now = time.monotonic()
        if now < self._retry_at:
            self.lost += records
            return False
        try:
            if self._descriptor is not None and now >= self._check_at:
                self._check_at = now + CHECK_SECONDS
                if os.fstat(self._descriptor).st_nlink == 0:
                    raise FileNotFoundError(f"{self.folder} was removed while the job was running")
            if self._descriptor is not None and self._size >= self._max_bytes:
                self._close_file()
                self._seq += 1
            if self._descriptor is None:
                self._open()
            if self.lost > self._lost_told:
                self._tell_of_the_gap()
            self._put(data)
        except OSError as error:
            self._failed(error, records)
            return False
        self.written += records
        return True

    def _put(self, data: bytes) -> None:
        """One write. A torn one before it gets a line end first, so that it harms no neighbour."""
        if self._descriptor is None:
            raise OSError("the journal is not open")
        if self._torn:
            data = b"\n" + data
        done = os.write(self._descriptor, data)
        self._size += done
        if done < len(data):
            self._torn = True
            # The rest would say why it did not fit; the record is lost either way.
            os.write(self._descriptor, data[done:])
            self._size += len(data) - done
        self._torn = False

    def _open(self) -> None:
        """Open the newest file, or its successor if it is full, and write its first line."""
        if self._meta is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write_meta(self._meta)
            self._meta = None
        for name in os.listdir(self.folder):
            place = parse_events_file(name)
            if place is not None and place[0] == self.rank:
                self._seq = max(self._seq, place[1])
        path = self.folder / events_file(self.rank, self._seq)
        if path.exists() and path.stat().st_size >= self._max_bytes:
            self._seq += 1
            path = self.folder / events_file(self.rank, self._seq)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(path, flags, 0o666)
        self._size = os.fstat(descriptor).st_size
        # A predecessor that was killed in the middle of a write leaves a line without an end.
        self._torn = self._size > 0 and os.pread(descriptor, 1, self._size - 1) != b"\n"
        self._descriptor = descriptor
        first = Start(
            step=self.last_step,
            time=time.time(),
            rank=self.rank,
            pid=os.getpid(),
            seq=self._seq,
            continues=self._begun,
        )
        try:
            self._put(json.dumps(encode(first)).encode() + b"\n")
        except OSError:
            self._close_file()
            raise
        self._begun = True

    def _close_file(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = None

    def _write_meta(self, meta: Meta) -> None:
        path = self.folder / meta_file(meta.rank)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            scratch.write_text(json.dumps(encode(meta), indent=1, allow_nan=False) + "\n")
            os.replace(scratch, path)
        except OSError:
            with contextlib.suppress(OSError):
                scratch.unlink()
            raise

    def _tell_of_the_gap(self) -> None:
        lost = self.lost - self._lost_told
        alert = Alert(
            step=self.last_step,
            time=time.time(),
            severity="warning",
            code="records_lost",
            message=f"{lost:,} records before this one could not be written to disk",
        )
        self._put(json.dumps(encode(alert)).encode() + b"\n")
        self._lost_told = self.lost
        self._said.discard("disk")

    def _failed(self, error: OSError, records: int) -> None:
        self.lost += records
        self._retry_at = time.monotonic() + RETRY_SECONDS
        if isinstance(error, FileNotFoundError):
            # Writing on into a file without a name would only look like success.
            self._close_file()
        self._say("disk", f"cannot write to {str(self.folder)!r} ({error})")

    def _say(self, what: str, message: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning(
                "keras-mp telemetry: %s. Training goes on; records lost from here on are counted, "
                "and what is already written stays.",
                message,
            )
