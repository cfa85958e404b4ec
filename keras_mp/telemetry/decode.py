"""From a line of a journal back to a record. Whatever the line holds, nothing here raises.

A journal may come from another host, an older or a newer program, or a disk that lost a block.
So: unknown keys and kinds are ignored, a field of the wrong type is treated as not written, and a
line without the fields that its kind needs is no record (``None``). Texts are made inert: control
characters, which could steer a terminal, and bidirectional overrides, which could make one name
look like another, become visible marks.
"""

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Callable
from typing import Any

from keras_mp.telemetry import records

# Longer texts than this are nobody's layer name; they would only fill the screen and the memory.
MAX_TEXT = 500
# More entries than this in one record's list or dict are cut off.
MAX_ENTRIES = 2000
# The largest whole number that a float64 column holds exactly.
MAX_INT = 2**53
# Seconds since the epoch that a calendar can name: up to the year 5138.
LATEST = 1e11

_STEERING = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)
_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_MISSING = object()


def inert(text: str) -> str:
    """``text`` with everything that could steer a terminal replaced by U+FFFD, cut to 500 signs.

    Control characters (so no escape sequence survives), line separators, bidirectional marks and
    overrides, and lone surrogates, which cannot be printed. Letters of all scripts stay.
    """
    return _STEERING.sub("\ufffd", text[: MAX_TEXT + 1])[:MAX_TEXT]


def _text(value: Any) -> Any:
    return inert(value) if isinstance(value, str) else _MISSING


def _int(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_INT:
        return value
    return _MISSING


def _bool(value: Any) -> Any:
    return value if isinstance(value, bool) else _MISSING


def _float(value: Any) -> Any:
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 10**300 else _MISSING
    return _NONFINITE.get(value, _MISSING) if isinstance(value, str) else _MISSING


def _bounded(value: Any) -> Any:
    """A free-form value (the scaler's settings): numbers and texts, one level deep."""
    number = _float(value)
    if isinstance(value, bool) or value is None:
        return value
    return number if number is not _MISSING else _text(value)


def _list_of(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decode(value: Any) -> Any:
        if not isinstance(value, list):
            return _MISSING
        return [v for v in map(item, value[:MAX_ENTRIES]) if v is not _MISSING]

    return decode


def _dict_of(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decode(value: Any) -> Any:
        if not isinstance(value, dict):
            return _MISSING
        out = {}
        for key, raw in list(value.items())[:MAX_ENTRIES]:
            entry = item(raw)
            if entry is not _MISSING:
                out[inert(key)] = entry
        return out

    return decode


def _one_of(allowed: tuple[Any, ...]) -> Callable[[Any], Any]:
    return lambda value: value if isinstance(value, str) and value in allowed else _MISSING


def _decoder(annotation: Any) -> Callable[[Any], Any]:
    """The check for one annotated field; only the annotations that records.py uses."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return _decoder(next(a for a in args if a is not type(None)))
    if origin is typing.Literal:
        return _one_of(args)
    if origin is list:
        return _list_of(_decoder(args[0]))
    if origin is dict:
        return _dict_of(_decoder(args[1]))
    return {bool: _bool, str: _text, int: _int, float: _float, typing.Any: _bounded}[annotation]


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How records of one class are made.

    Attributes:
        checks: Field -> its check, and whether a float passes as it is.
        required: Fields without a default. defaults, factories: Those with one.
    """

    checks: dict[str, tuple[Callable[[Any], Any], bool]]
    required: tuple[str, ...]
    defaults: dict[str, Any]
    factories: tuple[tuple[str, Callable[[], Any]], ...]


@functools.cache
def _plan(cls: type) -> _Plan:
    hints = typing.get_type_hints(cls)
    members = dataclasses.fields(cls)
    missing = dataclasses.MISSING
    checks = {f.name: _decoder(hints[f.name]) for f in members}
    defaults = {f.name: f.default for f in members if f.default is not missing}
    factories = tuple(
        (f.name, f.default_factory) for f in members if f.default_factory is not missing
    )
    optional = {*defaults, *(name for name, _ in factories)}
    return _Plan(
        {name: (check, check is _float) for name, check in checks.items()},
        tuple(f.name for f in members if f.name not in optional),
        defaults,
        factories,
    )


def _build(cls: type, raw: dict[str, Any]) -> Any:
    plan = _plan(cls)
    checks, values = plan.checks, plan.defaults.copy()
    for key, item in raw.items():
        found = checks.get(key)
        if found is None:
            continue
        check, is_float = found
        value = item if is_float and type(item) is float else check(item)
        if value is not _MISSING:
            values[key] = value
    for name in plan.required:
        if name not in values:
            return None
    for name, make in plan.factories:
        if name not in values:
            values[name] = make()
    moment = values.get("time", values.get("started", 0.0))
    step = values.get("step", 0)
    if not 0 <= moment <= LATEST or step < 0:
        return None
    # A frozen dataclass sets its fields one by one through object.__setattr__, which takes longer
    # than all of the above; a dashboard reads thousands of records a second.
    record: Any = object.__new__(cls)
    record.__dict__.update(values)
    return record


_DECODER = json.JSONDecoder()


def _load(line: bytes) -> dict[str, Any] | None:
    # What json.loads does, without its search for other encodings: half of its time.
    try:
        text = line.decode("utf-8", "surrogatepass").strip(" \t\r\n")
        raw, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return raw if isinstance(raw, dict) and end == len(text) else None


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A well-formed line of a kind that this version has no use for."""

    kind: str


def decode(line: bytes) -> records.Record | Unknown | None:
    """The record in one line (without or with its newline), or None if the line is damaged."""
    raw = _load(line)
    kind = None if raw is None else raw.get("kind")
    if raw is None or not isinstance(kind, str):
        return None
    cls = records.KINDS.get(kind)
    return Unknown(inert(kind)) if cls is None else _build(cls, raw)


def decode_meta(text: bytes) -> records.Meta | None:
    """The contents of a ``meta.json``, or None if it holds none."""
    raw = _load(text)
    return None if raw is None else _build(records.Meta, raw)
