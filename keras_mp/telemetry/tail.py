"""Read a journal file while it grows. Never raises, never waits, never loses a complete line.

    reader = JournalFile("runs/resnet50/events-0.jsonl")
    while True:
        for record in reader.read():
            ...

Each call reads what has been appended since the last, by byte offset, at most ``max_bytes`` of it.
The unfinished line at the end is kept back until its end arrives. A damaged line is skipped and
counted. A file that became shorter or gave its name to another: reading begins again, and
``restarts`` counts it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from keras_mp.telemetry.decode import Unknown, decode
from keras_mp.telemetry.records import SCHEMA_VERSION, Record, Start

CHUNK_BYTES = 1 << 20
# A longer line is no record of ours; its bytes are not kept while its end is awaited.
MAX_LINE_BYTES = 1 << 20


class JournalFile:
    """One journal file, read from where the last call stopped.

    Args:
        path: The file. It need not exist yet.
        offset: Byte to begin at. In the middle of a line: the rest of that line is passed over.

    Attributes:
        offset: Bytes consumed, up to the end of the last complete line.
        corrupt: Complete lines that held no record.
        restarts: How often the file was found replaced by a shorter one.
        refused: Why nothing more is read (a newer schema), in a sentence; None while it is read.
        error: Why the last call could not read, in a sentence; None if it could.
    """

    def __init__(self, path: str | os.PathLike[str], offset: int = 0):
        self.path = Path(path)
        self.offset = offset
        self.corrupt = 0
        self.restarts = 0
        self.refused: str | None = None
        self.error: str | None = None
        # From the byte before: if it ends a line, passing over the rest of that line loses nothing.
        self._position = max(0, offset - 1)
        self._inode = 0
        self._tail = b""
        self._skipping = offset > 0  # inside a line whose beginning is not wanted
        self._silent = offset > 0  # ... and is no damage either

    def size(self) -> int:
        """Bytes in the file now; 0 if it cannot be told."""
        return self._stat()[0]

    def behind(self) -> int:
        """Bytes that were appended and not read yet."""
        if self.refused:
            return 0
        size, inode = self._stat()
        return size if self._replaced(size, inode) else size - self._position

    def _stat(self) -> tuple[int, int]:
        try:
            status = os.stat(self.path)
        except (OSError, ValueError):
            return self._position, self._inode
        return status.st_size, status.st_ino

    def _replaced(self, size: int, inode: int) -> bool:
        return size < self._position or (self._inode not in (0, inode) and self._position > 0)

    def read(self, max_bytes: int | None = None) -> list[Record]:
        """The records appended since the last call; empty if there are none.

        Args:
            max_bytes: About how much to read at most, so that a caller with many files stays
                responsive. Defaults to all there is.
        """
        return [record for block in self.blocks(max_bytes) for record in block]

    def blocks(self, max_bytes: int | None = None) -> Iterator[list[Record]]:
        """Like ``read``, in blocks of about a megabyte, so that memory stays bounded."""
        if self.refused:
            return
        self.error = None
        try:
            with open(self.path, "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                size = status.st_size
                if self._replaced(size, status.st_ino):
                    self._restart()
                self._inode = status.st_ino
                file.seek(self._position)
                # No further than the size at the start: a fast writer must not hold us for ever.
                left = size - self._position
                left = left if max_bytes is None else min(left, max_bytes)
                while left > 0 and not self.refused:
                    data = file.read(min(CHUNK_BYTES, left))
                    if not data:
                        break
                    self._position += len(data)
                    left -= len(data)
                    yield self._records(data)
        except FileNotFoundError:
            self.error = "the file is gone" if self._position else "the file does not exist"
        except (OSError, ValueError) as error:
            self.error = f"the file cannot be read ({getattr(error, 'strerror', None) or error})"

    def _restart(self) -> None:
        self.offset = self._position = 0
        self._tail = b""
        self._skipping = self._silent = False
        self.restarts += 1

    def _records(self, data: bytes) -> list[Record]:
        lines = (self._tail + data).split(b"\n")
        self._tail = lines.pop()
        self.offset = self._position - len(self._tail)
        if len(self._tail) > MAX_LINE_BYTES:
            self._tail = b""
            self._skipping = True
        out: list[Record] = []
        for line in lines:
            if self._skipping:
                self._skipping = False
                self.corrupt += not self._silent
                self._silent = False
                continue
            if not line.strip():
                continue
            record = decode(line)
            if record is None:
                self.corrupt += 1
            elif isinstance(record, Start) and record.schema > SCHEMA_VERSION:
                self._refuse(record.schema)
                break
            elif not isinstance(record, Unknown):
                out.append(record)
        return out

    def _refuse(self, schema: int) -> None:
        self.refused = (
            f"written by a newer keras-mp (schema {schema}; this one reads up to "
            f"{SCHEMA_VERSION}). Update keras-mp here to read it."
        )
