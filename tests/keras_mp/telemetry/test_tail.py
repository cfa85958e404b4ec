"""The reader: it never raises, never hangs, and loses no complete line, whatever the file holds."""

import json
import os
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_mp.telemetry import records as r
from keras_mp.telemetry.records import encode
from keras_mp.telemetry.tail import MAX_LINE_BYTES, JournalFile


def lines_of(*records) -> bytes:
    return b"".join(json.dumps(encode(x)).encode() + b"\n" for x in records)


def some_records(count: int = 5) -> list:
    return [
        r.Start(time=1.0),
        *(r.Step(step=i, time=1.0 + i, loss=1 / i, metrics={"ü": i}) for i in range(1, count)),
        r.End(step=count, time=9.0, status="done"),
    ]


def test_file_cut_at_every_byte_gives_the_complete_lines_then_the_rest(tmp_path):
    whole = some_records()
    data = lines_of(*whole)
    path = tmp_path / "events-0.jsonl"
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        reader = JournalFile(path)
        first = reader.read()
        assert first == whole[: data[:cut].count(b"\n")]
        with open(path, "ab") as file:
            file.write(data[cut:])
        assert first + reader.read() == whole
        assert (reader.corrupt, reader.offset) == (0, len(data))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_appending_in_pieces_gives_the_same_records(tmp_path_factory, data):
    whole = some_records(8)
    content = lines_of(*whole)
    path = tmp_path_factory.mktemp("pieces") / "events-0.jsonl"
    path.touch()
    reader, got, at = JournalFile(path), [], 0
    while at < len(content):
        size = data.draw(st.integers(1, 200))
        with open(path, "ab") as file:
            file.write(content[at : at + size])
        at += size
        got += reader.read(data.draw(st.one_of(st.none(), st.integers(1, 100))))
    got += reader.read()
    assert got == whole


@given(st.lists(st.binary(max_size=300).filter(lambda b: b"\n" not in b), max_size=12))
@settings(max_examples=100, deadline=None)
def test_garbage_between_lines_loses_no_complete_line(tmp_path_factory, garbage):
    whole = some_records()
    pieces = [lines_of(x) for x in whole] + [g + b"\n" for g in garbage]
    mixed = list(pieces)
    random.Random(len(garbage)).shuffle(mixed)
    path = tmp_path_factory.mktemp("garbage") / "events-0.jsonl"
    path.write_bytes(b"".join(mixed))
    reader = JournalFile(path)
    got = reader.read()
    for record in whole:
        assert record in got
    assert reader.error is None and reader.refused is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
        ),
        max_leaves=12,
    ),
    st.sampled_from([*r.KINDS, "meta"]),
    st.data(),
)
@settings(max_examples=150, deadline=None)
def test_any_json_in_any_field_never_raises(tmp_path_factory, value, kind, data):
    fields = [*r.KINDS.get(kind, r.Meta).__dataclass_fields__, "unheard_of"]
    line = {"kind": kind, "step": 1, "time": 1.0, data.draw(st.sampled_from(fields)): value}
    path = tmp_path_factory.mktemp("hostile") / "events-0.jsonl"
    path.write_text(json.dumps(line) + "\n" + json.dumps(encode(r.Step(step=2, time=2.0))) + "\n")
    reader = JournalFile(path)
    records = reader.read()
    assert reader.refused or r.Step(step=2, time=2.0) in records


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 200_000,
        b'{"kind":"step","step":' + b"9" * 10_000 + b',"time":1}',
        b'{"kind":"step","step":1e999,"time":1}',
        b'{"kind":"step","step":100000000000000000000,"time":1}',
        b'{"kind":"step","step":-1,"time":1}',
        b'{"kind":"step","step":1,"time":1e300}',
        b'{"kind":"step","step":1,"time":-1}',
        b'{"kind":"step","step":1,"time":"nan"}',
        b'{"kind":"step","step":true,"time":1}',
        b'{"kind":"step","step":1}',
        b'{"kind":7}',
        b'"kind"',
        b"\xff\xfe\x00",
    ],
)
def test_hostile_line_is_passed_over_and_counted(tmp_path, line):
    path = tmp_path / "events-0.jsonl"
    path.write_bytes(line + b"\n" + lines_of(r.Step(step=2, time=2.0)))
    reader = JournalFile(path)
    assert reader.read() == [r.Step(step=2, time=2.0)]
    assert reader.corrupt == 1


def test_line_longer_than_the_limit_is_dropped_without_being_kept(tmp_path):
    path = tmp_path / "events-0.jsonl"
    huge = b'{"kind":"step","step":1,"time":1,"x":"' + b"a" * (3 * MAX_LINE_BYTES) + b'"}\n'
    path.write_bytes(lines_of(r.Start(time=1.0)) + huge + lines_of(r.Step(step=2, time=2.0)))
    reader = JournalFile(path)
    assert reader.read() == [r.Start(time=1.0), r.Step(step=2, time=2.0)]
    assert reader.corrupt == 1


def test_unknown_keys_and_kinds_are_ignored_and_are_no_damage(tmp_path):
    path = tmp_path / "events-0.jsonl"
    path.write_bytes(b'{"kind":"weather","sun":1}\n{"kind":"step","step":1,"time":1.0,"new":[1]}\n')
    reader = JournalFile(path)
    assert reader.read() == [r.Step(step=1, time=1.0)]
    assert reader.corrupt == 0


def test_newer_schema_is_refused_with_a_sentence(tmp_path):
    path = tmp_path / "events-0.jsonl"
    path.write_bytes(lines_of(r.Start(time=1.0, schema=2), r.Step(step=1, time=2.0)))
    reader = JournalFile(path)
    assert reader.read() == []
    assert "newer keras-mp (schema 2; this one reads up to 1)" in reader.refused
    with open(path, "ab") as file:
        file.write(lines_of(r.Step(step=2, time=3.0)))
    assert reader.read() == [] and reader.behind() == 0


def test_older_records_are_read_up_to_where_a_newer_program_went_on(tmp_path):
    path = tmp_path / "events-0.jsonl"
    path.write_bytes(
        lines_of(r.Start(time=1.0), r.Step(step=1, time=2.0), r.Start(time=3.0, schema=99))
    )
    reader = JournalFile(path)
    assert reader.read() == [r.Start(time=1.0), r.Step(step=1, time=2.0)]
    assert "schema 99" in reader.refused


def test_replaced_file_is_read_again(tmp_path):
    path = tmp_path / "events-0.jsonl"
    path.write_bytes(lines_of(*some_records(20)))
    reader = JournalFile(path)
    reader.read()
    path.write_bytes(lines_of(r.Start(time=5.0)))
    assert reader.read() == [r.Start(time=5.0)]
    other = tmp_path / "other"
    other.write_bytes(lines_of(*some_records(40)))
    os.replace(other, path)
    assert reader.behind() == len(lines_of(*some_records(40)))
    assert len(reader.read()) == len(some_records(40))
    assert reader.restarts == 2


def test_missing_then_appearing_file(tmp_path):
    reader = JournalFile(tmp_path / "events-0.jsonl")
    assert reader.read() == []
    assert reader.error == "the file does not exist"
    (tmp_path / "events-0.jsonl").write_bytes(lines_of(r.Start(time=1.0)))
    assert reader.read() == [r.Start(time=1.0)]
    assert reader.error is None


def test_folder_in_place_of_the_file_is_an_error_in_words(tmp_path):
    (tmp_path / "events-0.jsonl").mkdir()
    reader = JournalFile(tmp_path / "events-0.jsonl")
    assert reader.read() == []
    assert "cannot be read" in reader.error


def test_offset_at_a_line_s_begin_loses_nothing_and_inside_a_line_only_that_line(tmp_path):
    whole = some_records()
    data = lines_of(*whole)
    path = tmp_path / "events-0.jsonl"
    path.write_bytes(data)
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    assert JournalFile(path, ends[1]).read() == whole[2:]
    reader = JournalFile(path, ends[1] + 3)
    assert reader.read() == whole[3:]
    assert reader.corrupt == 0


def test_names_are_made_inert(tmp_path):
    evil = "\x1b[2J\x1b]0;gone\x07conv\u202egnp\u2066\r\n\x9b1m"
    path = tmp_path / "events-0.jsonl"
    path.write_bytes(lines_of(r.Overflow(step=1, time=1.0, layer=evil, variables=[evil])))
    (record,) = JournalFile(path).read()
    for text in (record.layer, *record.variables):
        assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in text)
        assert "\u202e" not in text and "\u2066" not in text
    assert "conv" in record.layer
    good = "слой/層/طبقة é"
    path.write_bytes(lines_of(r.Overflow(step=1, time=1.0, layer=good)))
    assert JournalFile(path).read()[0].layer == good


def test_reading_while_a_fast_writer_appends_ends(tmp_path):
    path = tmp_path / "events-0.jsonl"
    line = lines_of(r.Step(step=1, time=1.0))
    path.write_bytes(line * 1000)
    reader = JournalFile(path)
    began = time.monotonic()
    for block in reader.blocks():
        with open(path, "ab") as file:  # as much again at each block: the end runs away
            file.write(line * 6000)
        assert time.monotonic() - began < 30
        del block
    assert reader.behind() > 0
