"""Event files beside the journal, and journals exported: TensorBoard's own loader reads them."""

import csv
import logging
import math
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import keras_mp
from keras_mp.cli import main
from keras_mp.telemetry import exchange
from keras_mp.telemetry import records as r
from keras_mp.telemetry.journal import JournalWriter
from keras_mp.telemetry.runs import RunsFolder

RECORDED = Path(__file__).parents[2] / "recorded/runs"


def job_of(folder):
    found = RunsFolder(folder)
    found.poll(None)
    (job,) = found.jobs
    return job


@pytest.fixture
def tensorboard(monkeypatch):
    """TensorBoard's own view of a folder: tag -> (steps, values), tag -> texts."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # it would load it, where there is one
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def load(folder):
        seen = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
        seen.Reload()
        tags = seen.Tags()
        scalars = {
            tag: ([e.step for e in seen.Scalars(tag)], [e.value for e in seen.Scalars(tag)])
            for tag in tags["scalars"]
        }
        texts = {
            tag: [e.tensor_proto.string_val[0].decode() for e in seen.Tensors(tag)]
            for tag in tags["tensors"]
        }
        return scalars, texts

    return load


def test_tensorboard_reads_what_a_running_job_writes(tmp_path, tensorboard):
    board = tmp_path / "board"
    with keras_mp.Run(tmp_path / "runs", name="mine", every=1, tensorboard=board) as run:
        for step in range(1, 21):
            run.step(loss=1.0 / step, samples=8, scale=2.0**15, metrics={"acc": step / 20})
            scalars, _ = tensorboard(board / "mine") if step in (1, 20) else ({}, {})
            if scalars:
                assert scalars["loss"][0] == list(range(1, step + 1))  # at once, not at the end
        run.step(loss=math.inf)
    scalars, texts = tensorboard(board / "mine")
    steps, losses = scalars["loss"]
    assert steps == list(range(1, 22)) and losses[-1] == math.inf
    np.testing.assert_allclose(losses[:-1], 1 / np.arange(1, 21), rtol=1e-6)
    assert scalars["metrics/acc"][1][-1] == 1.0 and scalars["loss_scale"][1][0] == 2.0**15
    assert scalars["memory/process_resident"][1][0] > 1e6
    assert "memory/device_peak" not in scalars  # nothing was measured: no zero
    assert '"name": "mine"' in texts["job"][0]


def test_a_resumed_job_s_lost_work_is_void_in_tensorboard_too(tmp_path, tensorboard):
    for first, value in ((0, 1.0), (6, 2.0)):
        with keras_mp.Run(
            tmp_path / "runs", name="a", initial_step=first, every=1, tensorboard=tmp_path / "board"
        ) as run:
            for _ in range(10):
                run.step(loss=value)
    assert len(list((tmp_path / "board/a").iterdir())) == 2
    (steps, losses) = tensorboard(tmp_path / "board/a")[0]["loss"]
    assert steps == list(range(1, 17)) and losses == [1.0] * 6 + [2.0] * 10


@pytest.mark.parametrize("run", ["sawtooth", "resumed", "nan-loss"])
def test_a_recorded_run_is_the_same_after_a_round_trip(tmp_path, tensorboard, run):
    source = RECORDED / run
    assert main(["export", str(source), "--tensorboard", str(tmp_path)]) == 0
    ours, theirs = job_of(source), job_of(tmp_path)
    for column in ("step", "loss", "scale", "skipped", "grad_norm", "time"):
        np.testing.assert_allclose(theirs.series[column], ours.series[column], rtol=1e-6)
    assert theirs.memory.process_resident == pytest.approx(ours.memory.process_resident, rel=1e-6)
    scalars, texts = tensorboard(tmp_path / source.name)
    np.testing.assert_array_equal(scalars["loss"][0], ours.series["step"])
    assert len(texts.get("overflow", [])) == ours.overflow_count
    if ours.overflow_count:
        last = ours.overflows[-1]
        assert f"step {last.step} skipped: {last.layer} ({last.origin})" in texts["overflow"][-1]


def test_exporting_again_replaces(tmp_path, tensorboard):
    source = next(RECORDED.iterdir())
    for _ in range(2):
        main(["export", str(source), "--tensorboard", str(tmp_path)])
    assert len(list((tmp_path / source.name).iterdir())) == 1


def test_csv_has_each_window_and_each_skipped_step(tmp_path, capsys):
    source = RECORDED / "sawtooth"
    path = tmp_path / "out.csv"
    assert main(["export", str(source), "--csv", str(path)]) == 0
    job = job_of(source)
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [int(s) for s in job.series["step"]]
    np.testing.assert_allclose([float(row["loss"] or "nan") for row in rows], job.series["loss"])
    assert rows[-1]["tokens"] == "" and rows[-1]["device_peak"] == ""  # not measured: empty, not 0
    assert float(rows[-1]["process_resident"]) > 1e6
    with open(tmp_path / "out.overflows.csv", newline="") as file:
        skips = list(csv.DictReader(file))
    assert [int(row["step"]) for row in skips] == [o.step for o in job.overflows]
    assert [row["layer"] for row in skips] == [o.layer or "" for o in job.overflows]
    assert f"{path}: {len(rows):,} records" in capsys.readouterr().out


def test_csv_of_hostile_values_and_lost_work(tmp_path):
    writer = JournalWriter(tmp_path / "runs/a")
    writer.start(r.Meta(run_id="a", name="a", started=1.0, host="h", pid=1))
    names = {'a,"b"\n=1+1': 1.0, "ü": math.nan}
    for step in range(1, 6):
        writer.write(r.Step(step=step, time=float(step), loss=math.inf, metrics=names))
    writer.close()
    writer = JournalWriter(tmp_path / "runs/a")
    writer.start(r.Meta(run_id="a", name="a", started=1.0, host="h", pid=1), 3)
    writer.write(r.Step(step=4, time=9.0, loss=0.5))
    writer.close()
    main(["export", str(tmp_path / "runs/a"), "--csv", str(tmp_path / "out.csv")])
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["loss"]) for row in rows] == [
        ("1", "inf"), ("2", "inf"), ("3", "inf"), ("4", "0.5")]  # fmt: skip
    assert rows[0]["metric:ü"] == "nan" and rows[-1]["metric:ü"] == ""
    assert sum(key.startswith("metric:") for key in rows[0]) == 2


def test_ranks_are_exported_apart(tmp_path, tensorboard):
    for rank in (0, 1):
        with keras_mp.Run(tmp_path / "runs", name="a", rank=rank, every=1) as run:
            run.step(loss=float(rank))
    main(["export", str(tmp_path / "runs/a"), "--csv", str(tmp_path / "out.csv"),
          "--tensorboard", str(tmp_path / "board")])  # fmt: skip
    with open(tmp_path / "out.csv", newline="") as file:
        assert [(row["rank"], row["loss"]) for row in csv.DictReader(file)] == [
            ("0", "0.0"), ("1", "1.0")]  # fmt: skip
    assert tensorboard(tmp_path / "board/a")[0]["loss"][1] == [0.0]
    assert tensorboard(tmp_path / "board/a/rank-1")[0]["loss"][1] == [1.0]


def test_wrong_use_is_said(tmp_path, capsys):
    assert main(["export", str(tmp_path), "--csv", "x"]) == 3
    assert "no journal in" in capsys.readouterr().err
    assert main(["export", str(RECORDED)]) == 2
    assert "expected --tensorboard DIR" in capsys.readouterr().err
    assert main(["export", str(RECORDED), "--csv", str(tmp_path / "x")]) == 2
    assert "--csv writes one run" in capsys.readouterr().err
    blocked = tmp_path / "file"
    blocked.touch()
    assert main(["export", str(RECORDED), "--tensorboard", str(blocked / "x")]) == 2
    assert main(["export", str(RECORDED), "--tensorboard", ""]) == 2


def test_a_table_never_takes_the_place_of_a_run_s_own_files(tmp_path, capsys):
    run = tmp_path / "sawtooth"
    shutil.copytree(RECORDED / "sawtooth", run)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    for place in ("events-0.jsonl", "meta.json", "events-0.1.jsonl"):
        assert main(["export", str(run), "--csv", str(run / place)]) == 2
        assert "no run's own file. Received: file=" in capsys.readouterr().err
    assert main(["export", str(run), "--csv", ""]) == 2
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_a_board_that_cannot_be_written_touches_neither_job_nor_journal(tmp_path, caplog):
    (tmp_path / "file").touch()
    with (
        caplog.at_level(logging.WARNING, "keras_mp"),
        keras_mp.Run(tmp_path / "runs", name="a", every=1, tensorboard=tmp_path / "file") as run,
    ):
        for _ in range(10):
            run.step(loss=1.0)
    assert len(caplog.records) == 1 and "TensorBoard" in caplog.text
    assert job_of(tmp_path / "runs").step == 10


def test_after_a_full_disk_it_goes_on_in_a_file_that_reads(tmp_path, tensorboard, monkeypatch):
    sink = exchange.EventSink(tmp_path / "a")
    sink.write(r.Step(step=1, time=1.0, loss=1.0))
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:20]))
    sink.write(r.Step(step=2, time=2.0, loss=1.0))
    monkeypatch.setattr(os, "write", real)
    sink.write(r.Step(step=3, time=3.0, loss=1.0))  # within the second before the next attempt
    sink._retry_at = 0.0
    sink.write(r.Step(step=4, time=4.0, loss=1.0))
    assert sink.lost == 2 and len(list((tmp_path / "a").iterdir())) == 2
    assert tensorboard(tmp_path / "a")[0]["loss"][0] == [1, 4]
