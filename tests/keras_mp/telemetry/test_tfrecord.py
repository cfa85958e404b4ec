"""The frames of event files: check sums from outside, any cut, any damage."""

import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_mp.telemetry.decode import inert
from keras_mp.telemetry.event_proto import decode_event, scalars
from keras_mp.telemetry.report import as_json, as_table, look
from keras_mp.telemetry.runs import RunsFolder
from keras_mp.telemetry.tfrecord import (
    MAX_FRAME_BYTES,
    FrameFile,
    crc32c,
    crc32c_of_all,
    frame,
    masked,
)


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # RFC 3720, B.4
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
    ],
)
def test_crc32c_of_the_standard(data, expected):
    assert crc32c(data) == expected
    assert crc32c_of_all([data] * 200 + [b"", b"x"])[:201] == [expected] * 200 + [0]


@given(st.lists(st.binary(max_size=400), max_size=40))
@settings(deadline=None, max_examples=50)
def test_check_sums_side_by_side_are_those_one_by_one(pieces):
    many = pieces + [bytes([i % 256]) * 90 for i in range(60)]
    assert crc32c_of_all(many) == [crc32c(p) for p in many]


def test_frame_cut_at_every_byte_gives_the_complete_ones_then_the_rest(tmp_path):
    pieces = [b"a", b"", b"x" * 50, bytes(range(256))]
    data = b"".join(map(frame, pieces))
    ends = [len(b"".join(map(frame, pieces[:n]))) for n in range(len(pieces) + 1)]
    path = tmp_path / "f"
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        reader = FrameFile(path)
        first = reader.read()
        assert first == pieces[: sum(cut >= end for end in ends[1:])]
        with open(path, "ab") as file:
            file.write(data[cut:])
        assert first + reader.read() == pieces and reader.corrupt == 0 and reader.behind() == 0


@given(st.data())
@settings(deadline=None, max_examples=80)
def test_damage_loses_no_frame_beside_it(tmp_path_factory, data):
    pieces = [struct.pack("<I", n) * (1 + n) for n in range(12)]
    frames = [frame(p) for p in pieces]
    hurt = data.draw(st.integers(0, len(frames) - 1))
    place = data.draw(st.integers(0, len(frames[hurt]) - 1))
    flip = data.draw(st.integers(1, 255))
    damaged = bytearray(frames[hurt])
    damaged[place] ^= flip
    frames[hurt] = bytes(damaged)
    path = tmp_path_factory.mktemp("damage") / "f"
    path.write_bytes(b"".join(frames))
    reader, got = FrameFile(path), []
    for _ in range(100):
        got += reader.read(data.draw(st.sampled_from([7, 64, 10_000])))
        if not reader.behind():
            break
    assert got == pieces[:hurt] + pieces[hurt + 1 :] and reader.corrupt >= 1


@given(st.binary(max_size=3000))
@settings(deadline=None, max_examples=100)
def test_any_bytes_raise_nothing_and_end(tmp_path_factory, junk):
    path = tmp_path_factory.mktemp("junk") / "f"
    good = frame(scalars(1.0, 3, {"loss": 0.5}))
    path.write_bytes(good + junk + good)
    reader, events = FrameFile(path), []
    for _ in range(10):
        events += [decode_event(data) for data in reader.read(1000)]
    assert events[0].values == {"loss": 0.5} and reader.behind() == 0
    decode_event(junk)


def test_a_hostile_length_hangs_nobody(tmp_path):
    head = struct.pack("<Q", 2**63 - 1)
    path = tmp_path / "f"
    path.write_bytes(frame(b"a") + head + struct.pack("<I", masked(crc32c(head))) + b"x" * 100)
    reader = FrameFile(path)
    assert reader.read() == [b"a"] and reader.read() == [] and reader.behind() == 0
    assert reader.passed == 1


def test_long_frames_are_passed_over(tmp_path):
    path = tmp_path / "f"
    big = b"g" * (MAX_FRAME_BYTES + 1)
    path.write_bytes(frame(b"a") + frame(big) + frame(b"b"))
    for size in (10, 1000, 1 << 20):
        reader, got = FrameFile(path), []
        while reader.behind():
            got += reader.read(size)
        got += reader.read(size)
        assert (got, reader.passed, reader.corrupt) == ([b"a", b"b"], 1, 0)


def test_replaced_file_is_read_anew_and_a_missing_one_is_said(tmp_path):
    path = tmp_path / "f"
    reader = FrameFile(path)
    assert reader.read() == [] and reader.error == "the file does not exist"
    path.write_bytes(frame(b"first") + frame(b"second"))
    assert len(reader.read()) == 2
    path.write_bytes(frame(b"new"))
    assert reader.read() == [b"new"] and reader.restarts == 1 and reader.error is None


@given(st.dictionaries(st.text(min_size=1, max_size=30), st.floats(width=32), max_size=8),
       st.integers(0, 2**40), st.floats(0, 4e9))  # fmt: skip
@settings(deadline=None)
def test_scalars_come_back_as_they_were(values, step, time):
    event = decode_event(scalars(time, step, values))
    assert (event.time, event.step) == (time, step)
    shown = {inert(k.encode("utf-8", "replace").decode()): v for k, v in values.items()}
    assert str(event.values) == str(shown)  # as text: nan is nan


HOSTILE = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=32),
    st.sampled_from([0.0, -1.0, 1e38, 2.0**24, float("nan")]),
)
TAGS = st.sampled_from(
    ["loss", "Loss/train", "loss_scale", "skipped_steps", "epoch", "samples_per_second", "lr",
     "memory/process_resident", "memory/x", "\x1b[2J\u202e", "", "val/loss", "a" * 5000]
)  # fmt: skip


@given(
    st.lists(st.tuples(TAGS, HOSTILE, st.integers(0, 2**53), st.floats(-1e12, 1e12)), max_size=40),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=4),
)
@settings(deadline=None, max_examples=80)
def test_no_event_file_stops_the_fold_the_verdict_or_the_table(tmp_path_factory, events, flips):
    runs = tmp_path_factory.mktemp("runs")
    data = bytearray(b"".join(frame(scalars(t, n, {tag: v})) for tag, v, n, t in events))
    for place, change in flips:
        if data:
            data[place % len(data)] ^= change
    for inside in ("", "val"):
        (runs / "a" / inside).mkdir(exist_ok=True)
        (runs / "a" / inside / "events.out.tfevents.1.h.1.0").write_bytes(bytes(data))
    folder = RunsFolder(runs)
    began = time.process_time()
    folder.poll(None)
    folder.poll(None)
    report = look(folder, time.time())
    assert "\x1b" not in as_table(report) + as_json(report)
    assert len(folder.jobs) == 1 and not folder.loading and time.process_time() - began < 10


def test_tags_that_could_steer_a_terminal_are_inert():
    event = decode_event(scalars(1.0, 1, {"loss\n\x1b[31m": 0.5, "\u202eval": 1.5, "مقياس": 2.5}))
    assert event.values == {"loss\ufffd\ufffd[31m": 0.5, "\ufffdval": 1.5, "مقياس": 2.5}
