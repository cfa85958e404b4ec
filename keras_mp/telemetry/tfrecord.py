"""The frames of a TensorBoard event file (TFRecord): written one by one, read while they grow.

A frame is the length (8 bytes, little endian), a check sum of those 8 bytes, the data, and a check
sum of the data. Check sums are CRC-32C, rotated and offset ("masked"), as TensorFlow's
``record_writer.h`` defines them. A package that does this (tensorboard) would bring protobuf and
grpc into the dashboard, half a second before its first picture, and reads 4,000 events a second.
"""

import os
import struct
from collections.abc import Sequence

import numpy as np

from keras_mp.telemetry.growing import CHUNK_BYTES, GrowingFile

HEAD, TAIL = 12, 4
# A longer frame holds images, graphs or histograms and no curve: it is passed over unread.
MAX_FRAME_BYTES = 16 << 10
# From so many bytes on, check sums of many frames side by side are faster than one after the other.
SIDE_BY_SIDE = 4096

_MASK = 0xA282EAD8


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC = _table()
_CRC_ARRAY = np.array(_CRC, dtype=np.uint32)


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of ``data``: RFC 3720, B.4."""
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ _CRC[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """The form of a check sum that is stored."""
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def crc32c_of_all(pieces: Sequence[bytes]) -> list[int]:
    """``[crc32c(p) for p in pieces]``, with NumPy one byte of all pieces at a time."""
    if sum(map(len, pieces)) < SIDE_BY_SIDE:
        return [crc32c(p) for p in pieces]
    lengths = np.array([len(p) for p in pieces])
    order = np.argsort(-lengths, kind="stable")
    data = np.frombuffer(b"".join(pieces), dtype=np.uint8)
    starts = (np.cumsum(lengths) - lengths)[order]
    # How many of the pieces, longest first, have a byte at place j.
    longer = np.searchsorted(-lengths[order], -np.arange(int(lengths.max())), side="left")
    values = np.full(len(pieces), 0xFFFFFFFF, dtype=np.uint32)
    for place, count in enumerate(longer.tolist()):
        part = values[:count]
        byte = data[starts[:count] + place]
        values[:count] = (part >> 8) ^ _CRC_ARRAY[(part ^ byte) & 0xFF]
    out = np.empty(len(pieces), dtype=np.uint32)
    out[order] = values ^ np.uint32(0xFFFFFFFF)
    return [int(v) for v in out]


def frame(data: bytes) -> bytes:
    """``data`` as one frame."""
    head = struct.pack("<Q", len(data))
    return b"".join(
        (
            head,
            struct.pack("<I", masked(crc32c(head))),
            data,
            struct.pack("<I", masked(crc32c(data))),
        )
    )


def _next_head(data: bytes, start: int) -> int:
    """Where after ``start`` something stands that checks as the length of a frame with a curve;
    -1 if nothing does."""
    raw = np.frombuffer(data, dtype=np.uint8)[start:]
    count = len(raw) - HEAD + 1
    if count <= 0:
        return -1
    values = np.full(count, 0xFFFFFFFF, dtype=np.uint32)
    for place in range(8):
        values = (values >> 8) ^ _CRC_ARRAY[(values ^ raw[place : place + count]) & 0xFF]
    values ^= np.uint32(0xFFFFFFFF)
    expected = (((values >> 15) | (values << 17)) + np.uint32(_MASK)).astype(np.uint32)
    stored = sum(raw[8 + i : 8 + i + count].astype(np.uint32) << np.uint32(8 * i) for i in range(4))
    lengths = sum(raw[i : i + count].astype(np.uint64) << np.uint64(8 * i) for i in range(8))
    found = np.flatnonzero((expected == stored) & (lengths <= MAX_FRAME_BYTES))
    return start + int(found[0]) if len(found) else -1


class FrameFile(GrowingFile):
    """The frames of one growing file.

    An unfinished frame is kept back until its end arrives. A damaged one is passed over, and
    reading goes on at the next place where a length checks.

    Attributes:
        corrupt: Damaged frames. passed: frames too long to hold a curve.
        restarts, error: See GrowingFile.
    """

    def __init__(self, path: str | os.PathLike[str]):
        super().__init__(path)
        self.corrupt = 0
        self.passed = 0
        self._restart()

    def _restart(self) -> None:
        self._tail = b""
        self._lost = False  # looking for the next length that checks

    def read(self, max_bytes: int = CHUNK_BYTES) -> list[bytes]:
        """The data of the frames appended since the last call, of about ``max_bytes``."""
        return [found for data in self._chunks(max_bytes) for found in self._frames(data)]

    def _frames(self, data: bytes) -> list[bytes]:
        data = self._tail + data
        found: list[bytes] = []
        sums: list[int] = []
        at = 0
        while True:
            if self._lost:
                at = self._find(data, at)
            if len(data) - at < HEAD or self._lost:
                break
            length, head_sum = struct.unpack_from("<QI", data, at)
            if masked(crc32c(data[at : at + 8])) != head_sum:
                self.corrupt += 1
                self._lost = True
                at += 1
                continue
            end = at + HEAD + length + TAIL
            if length > MAX_FRAME_BYTES:
                self.passed += 1
                self._unread = max(0, end - len(data))
                at = min(end, len(data))
                continue
            if end > len(data):
                break
            found.append(data[at + HEAD : end - TAIL])
            sums.append(int.from_bytes(data[end - TAIL : end], "little"))
            at = end
        self._tail = data[at:]
        good = [
            masked(crc) == stored for crc, stored in zip(crc32c_of_all(found), sums, strict=True)
        ]
        self.corrupt += len(good) - sum(good)
        return [piece for piece, right in zip(found, good, strict=True) if right]

    def _find(self, data: bytes, at: int) -> int:
        """Where to go on; without such a place, all but the last bytes are done with."""
        place = _next_head(data, at)
        if place < 0:
            return max(at, len(data) - HEAD + 1)
        self._lost = False
        return place
