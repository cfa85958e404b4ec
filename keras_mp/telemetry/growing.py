"""A file that another process appends to, read from where the last look stopped.

The one way for journals (``tail.py``) and event files (``tfrecord.py``): by byte offset, never
raising, never waiting, no further than the file's size at the start, so that a fast writer cannot
hold the reader for ever. A file that became shorter or gave its name to another: reading begins
again.
"""

import io
import os
from collections.abc import Iterator
from pathlib import Path

CHUNK_BYTES = 1 << 20


def open_at_once(path: str | os.PathLike[str]) -> io.FileIO:
    """Open for reading; where a pipe stands in a file's place, nobody waits for its other end."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    return open(path, "rb", buffering=0, opener=opener)


def read_start(path: str | os.PathLike[str], limit: int) -> bytes:
    """The first ``limit`` bytes of a file.

    Raises:
        OSError: It cannot be read.
    """
    with open_at_once(path) as file:
        return file.read(limit) or b""


class GrowingFile:
    """The bytes of one file, as they come.

    Args:
        path: The file. It need not exist yet.
        position: Byte to begin at.

    Attributes:
        restarts: How often the file was found replaced by another, or by a shorter one.
        error: Why the last call could not read, in a sentence; None if it could.
    """

    def __init__(self, path: str | os.PathLike[str], position: int = 0):
        self.path = Path(path)
        self.restarts = 0
        self.error: str | None = None
        self._position = position
        self._inode = 0
        self._unread = 0  # so many bytes from here on are of no use

    def size(self) -> int:
        """Bytes in the file now; those read if it cannot be told."""
        return self._stat()[0]

    def behind(self) -> int:
        """Bytes that were appended and not read yet."""
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

    def _restart(self) -> None:
        """Forget what was read of the file that was there before."""

    def _chunks(self, max_bytes: int | None) -> Iterator[bytes]:
        """What was appended since the last call, at most about ``max_bytes`` of it."""
        self.error = None
        try:
            with open_at_once(self.path) as file:
                status = os.fstat(file.fileno())
                size = status.st_size
                if self._replaced(size, status.st_ino):
                    self._position = self._unread = 0
                    self.restarts += 1
                    self._restart()
                self._inode = status.st_ino
                end = size if max_bytes is None else min(size, self._position + max_bytes)
                file.seek(self._position)
                while self._position < end:
                    if self._unread:
                        step = min(self._unread, size - self._position)
                        self._unread -= step
                        self._position = file.seek(self._position + step)
                        continue
                    data = file.read(min(CHUNK_BYTES, end - self._position))
                    if not data:
                        break
                    self._position += len(data)
                    yield data
        except FileNotFoundError:
            self.error = "the file is gone" if self._position else "the file does not exist"
        except (OSError, ValueError) as error:
            self.error = f"the file cannot be read ({getattr(error, 'strerror', None) or error})"
