"""Read a journal file while it grows: never loses a complete line, never raises (``growing.py``).

    reader = JournalFile("runs/resnet50/events-0.jsonl")
    while True:
        for record in reader.read():
            ...

Each call reads what has been appended since the last, by byte offset, at most ``max_bytes`` of it.
The unfinished line at the end is kept back until its end arrives. A damaged line is skipped and
counted.
"""

import os
from collections.abc import Iterator

from keras_mp.telemetry.decode import Unknown, decode
from keras_mp.telemetry.growing import GrowingFile
from keras_mp.telemetry.records import SCHEMA_VERSION, Record, Start

# A longer line is no record of ours; its bytes are not kept while its end is awaited.
MAX_LINE_BYTES = 1 << 20


class JournalFile(GrowingFile):
    """One journal file, read from where the last call stopped.

    Args:
        path: The file. It need not exist yet.
        offset: Byte to begin at. In the middle of a line: the rest of that line is passed over.

    Attributes:
        offset: Bytes consumed, up to the end of the last complete line.
        corrupt: Complete lines that held no record.
        refused: Why nothing more is read (a newer schema), in a sentence; None while it is read.
        restarts, error: See GrowingFile.
    """

    def __init__(self, path: str | os.PathLike[str], offset: int = 0):
        # From the byte before: if it ends a line, passing over the rest of that line loses nothing.
        super().__init__(path, max(0, offset - 1))
        self.offset = offset
        self.corrupt = 0
        self.refused: str | None = None
        self._tail = b""
        self._skipping = offset > 0  # inside a line whose beginning is not wanted
        self._silent = offset > 0  # ... and is no damage either

    def behind(self) -> int:
        """Bytes that were appended and not read yet."""
        return 0 if self.refused else super().behind()

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
        for data in self._chunks(max_bytes):
            yield self._records(data)
            if self.refused:
                return

    def _restart(self) -> None:
        self.offset = 0
        self._tail = b""
        self._skipping = self._silent = False

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
