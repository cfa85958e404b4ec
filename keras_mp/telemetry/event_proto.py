"""TensorBoard's ``Event`` message, as far as curves go: written, and read whoever wrote it.

The wire format is protobuf's (https://protobuf.dev/programming-guides/encoding); the field numbers
are those of TensorFlow's ``event.proto``, ``summary.proto`` and ``tensor.proto``. Scalars come in
two shapes: ``simple_value`` (torch's SummaryWriter, tensorboardX) and a tensor of one element
(``tf.summary``, Keras' callback).
"""

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from keras_mp.telemetry.decode import inert

MAX_TAG = 500
MAX_STEP = 2**53

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# DataType -> how one element lies in tensor_content. The half types become float by hand.
_FORMATS = {1: "<f", 2: "<d", 3: "<i", 4: "<B", 6: "<b", 9: "<q", 10: "<?", 14: "<H", 19: "<e"}
_BFLOAT16, _HALF, _STRING = 14, 19, 7


@dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
        time: Seconds since the epoch. step: as its writer counts.
        values: Tag -> scalar.
        restart: Its writer begins again at ``step``: what it said from there on is void.
    """

    time: float
    step: int = 0
    values: Mapping[str, float] = field(default_factory=dict)
    restart: bool = False


class _Damaged(ValueError):
    """The bytes are no such message."""


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise _Damaged
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """(field number, wire type, value) of one message; fixed-width values as their bytes."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        wire = key & 7
        value: int | bytes
        if wire == _VARINT:
            value, at = _read_varint(data, at)
        else:
            if wire == _BYTES:
                length, at = _read_varint(data, at)
            elif wire in (_FIXED64, _FIXED32):
                length = 8 if wire == _FIXED64 else 4
            else:
                raise _Damaged
            if at + length > len(data):
                raise _Damaged
            value = data[at : at + length]
            at += length
        yield key >> 3, wire, value


def _float32(value: int | bytes) -> float:
    if not isinstance(value, bytes) or len(value) != 4:
        raise _Damaged
    return float(struct.unpack("<f", value)[0])


def _element(kind: int, content: bytes) -> float | None:
    """The one element of ``tensor_content``; None if there is not exactly one."""
    fmt = _FORMATS.get(kind)
    if fmt is None or len(content) != struct.calcsize(fmt):
        return None
    if kind == _BFLOAT16:
        return float(struct.unpack("<f", b"\0\0" + content)[0])
    return float(struct.unpack(fmt, content)[0])


def _scalar_of_tensor(data: bytes) -> float | None:
    kind = 0
    found: list[float | None] = []
    halves: list[int] = []
    for number, wire, value in _fields(data):
        if number == 1 and isinstance(value, int):
            kind = value
        elif isinstance(value, int):
            if number == 13:
                halves.append(value)
            elif number in (7, 10, 11, 16, 17):
                found.append(float(value - (1 << 64) if value >> 63 else value))
        elif number == 4:
            if value:
                found.append(_element(kind, value))
        elif number == 5:  # float_val, packed or not
            found += [v for (v,) in struct.iter_unpack("<f", value)] if len(value) % 4 == 0 else []
        elif number == 6:
            found += [v for (v,) in struct.iter_unpack("<d", value)] if len(value) % 8 == 0 else []
        elif number in (7, 10, 11, 13, 16, 17) and wire == _BYTES:
            at = 0
            while at < len(value):
                item, at = _read_varint(value, at)
                if number == 13:
                    halves.append(item)
                else:
                    found.append(float(item - (1 << 64) if item >> 63 else item))
    if halves and kind in (_HALF, _BFLOAT16):
        found += [_element(kind, struct.pack("<H", item & 0xFFFF)) for item in halves]
    return found[0] if len(found) == 1 else None


def _plugin(data: bytes) -> bytes:
    """Name of the plugin that a value is for; empty if it says none."""
    for number, _, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            for inner, _, name in _fields(value):
                if inner == 1 and isinstance(name, bytes):
                    return name
    return b""


def _value(data: bytes) -> tuple[str, float] | None:
    tag: bytes = b""
    plugin: bytes = b""
    scalar: float | None = None
    for number, _, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            tag = value
        elif number == 2:
            scalar = _float32(value)
        elif number == 8 and isinstance(value, bytes):
            scalar = _scalar_of_tensor(value)
        elif number == 9 and isinstance(value, bytes):
            plugin = _plugin(value)
    if scalar is None or not tag or plugin not in (b"", b"scalars"):
        return None
    return tag[: 4 * MAX_TAG].decode("utf-8", "replace")[:MAX_TAG], scalar


def decode_event(data: bytes) -> Event | None:
    """The event in the data of one frame, its tags inert; None if it is no event."""
    time = math.nan
    step, restart = 0, False
    values: dict[str, float] = {}
    try:
        for number, _, value in _fields(data):
            if number == 1 and isinstance(value, bytes) and len(value) == 8:
                time = float(struct.unpack("<d", value)[0])
            elif number == 2 and isinstance(value, int):
                step = value - (1 << 64) if value >> 63 else value
            elif number == 5 and isinstance(value, bytes):
                for inner, _, item in _fields(value):
                    pair = _value(item) if inner == 1 and isinstance(item, bytes) else None
                    if pair is not None:
                        values[inert(pair[0])] = pair[1]
            elif number == 7 and isinstance(value, bytes):
                restart = any(inner == 1 and item == 1 for inner, _, item in _fields(value))
    except (_Damaged, struct.error):
        return None
    if not math.isfinite(time) or not 0 <= step <= MAX_STEP:
        return None
    return Event(time, step, values, restart)


# Writing.


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes_field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _head(time: float, step: int) -> bytes:
    return b"\x09" + struct.pack("<d", time) + b"\x10" + _varint(step)


def _simple(value: float) -> bytes:
    try:
        return b"\x15" + struct.pack("<f", value)
    except OverflowError:  # a float64 beyond float32
        return b"\x15" + struct.pack("<f", math.copysign(math.inf, value))


def file_version(time: float) -> bytes:
    """The event that every file begins with."""
    return b"\x09" + struct.pack("<d", time) + _bytes_field(3, b"brain.Event:2")


def restart(time: float, step: int) -> bytes:
    """From ``step`` on, what was said before is void (SessionLog START)."""
    return _head(time, step) + _bytes_field(7, b"\x08\x01")


def scalars(time: float, step: int, values: Mapping[str, float]) -> bytes:
    """An event of scalars, by tag."""
    items = [
        _bytes_field(1, _bytes_field(1, tag.encode("utf-8", "replace")) + _simple(value))
        for tag, value in values.items()
    ]
    return _head(time, step) + _bytes_field(5, b"".join(items))


def text(time: float, step: int, tag: str, content: str) -> bytes:
    """An event with Markdown for TensorBoard's page of texts."""
    string = content.encode("utf-8", "replace")
    # DT_STRING, one element in one dimension, as tf.summary.text writes it.
    shape = _bytes_field(2, _bytes_field(2, b"\x08\x01"))
    tensor = b"\x08" + _varint(_STRING) + shape + _bytes_field(8, string)
    metadata = _bytes_field(1, _bytes_field(1, b"text"))
    value = _bytes_field(1, tag.encode()) + _bytes_field(8, tensor) + _bytes_field(9, metadata)
    return _head(time, step) + _bytes_field(5, _bytes_field(1, value))
