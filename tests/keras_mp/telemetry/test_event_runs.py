"""Event files that other programs wrote, as jobs: by the real writers of each backend's world."""

import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_mp.telemetry import event_runs, health
from keras_mp.telemetry.event_fold import WORST, loss_rank
from keras_mp.telemetry.health import verdict
from keras_mp.telemetry.runs import RunsFolder

pytestmark = pytest.mark.backend
BACKEND = os.environ["KERAS_BACKEND"]
torch_only = pytest.mark.skipif(BACKEND != "torch", reason="torch's SummaryWriter")
tensorflow_only = pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.summary")


def jobs(path):
    folder = RunsFolder(path)
    folder.poll(None)
    return {job.run_id: job for job in folder.jobs}


@pytest.fixture
def writer_in(monkeypatch):
    """torch's SummaryWriter. It would load tensorflow where there is one: 20 seconds."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter


@torch_only
def test_torch_summary_writer_s_job_appears_and_grows(tmp_path, writer_in):
    folder = RunsFolder(tmp_path)
    folder.poll()
    assert folder.jobs == []
    writer = writer_in(str(tmp_path / "resnet"))
    for step in range(1, 51):
        writer.add_scalar("lr", 0.1 / step, step)
        writer.add_scalar("Loss/train", 2.0 / step, step)
        writer.add_scalar("Accuracy/train", 1 - 1 / step, step, new_style=True)
    writer.add_histogram("weights", np.arange(100.0), 50)
    writer.add_text("note", "hello", 50)
    writer.flush()
    folder.poll(None)
    (job,) = folder.jobs
    assert (job.name, job.step, job.loss) == ("resnet", 50, pytest.approx(0.04))
    np.testing.assert_array_equal(job.series["step"], np.arange(1, 51))
    np.testing.assert_allclose(job.series["loss"], 2.0 / np.arange(1, 51), rtol=1e-6)
    np.testing.assert_allclose(job.series["metric:lr"], 0.1 / np.arange(1, 51), rtol=1e-6)
    np.testing.assert_allclose(
        job.series["metric:Accuracy/train"], 1 - 1 / np.arange(1, 51), atol=1e-6
    )
    # It is this very process that writes: it lives.
    assert job.meta.pid == os.getpid() and verdict(job, time.time()).state == "running"
    assert job.scale is None and job.memory is None and job.samples_per_second is None
    writer.add_scalar("Loss/train", float("nan"), 51)
    writer.flush()
    folder.poll(None)
    assert job.step == 51 and job.nan_step == 51 and job.corrupt == 0 and job.problems == []
    writer.close()


@torch_only
def test_a_validation_once_an_epoch_lands_at_its_step_whatever_axis_it_counts_on(
    tmp_path, writer_in
):
    writer, held_out = writer_in(str(tmp_path / "a")), writer_in(str(tmp_path / "a/val"))
    for step in range(100):
        writer.add_scalar("train_loss", 1.0, step)
        if step % 10 == 9:
            held_out.add_scalar("loss", step / 100, step // 10)
            writer.add_scalar("val_loss", step / 100, step // 10)
        time.sleep(0.0005)
    writer.close(), held_out.close()
    (job,) = jobs(tmp_path).values()
    assert job.step == 99
    for name in ("metric:val/loss", "metric:val_loss"):
        values = job.series[name]
        where = np.flatnonzero(np.isfinite(values))
        np.testing.assert_allclose(values[where], (where // 10 * 10 + 9) / 100, rtol=1e-6)
        assert len(where) == 10


@torch_only
def test_a_resumed_job_does_not_draw_its_lost_work_twice(tmp_path, writer_in):
    for first, last, value in ((1, 30, 1.0), (21, 40, 2.0)):
        writer = writer_in(str(tmp_path / "a"), filename_suffix=f".{first}")
        for step in range(first, last + 1):
            writer.add_scalar("loss", value, step)
        writer.close()
        time.sleep(0.01)
    (job,) = jobs(tmp_path).values()
    np.testing.assert_array_equal(job.series["step"], np.arange(1, 41))
    np.testing.assert_array_equal(job.series["loss"], [1.0] * 20 + [2.0] * 20)


@torch_only
def test_a_better_named_loss_that_comes_later_takes_the_lead(tmp_path, writer_in):
    writer, folder = writer_in(str(tmp_path / "a")), RunsFolder(tmp_path)
    for step in range(5):
        writer.add_scalar("reward", step, 10 * step)
    writer.flush()
    folder.poll(None)
    (job,) = folder.jobs
    assert (job.step, job.loss, job.latest.metrics["reward"]) == (40, None, 4.0)
    for step in range(20):
        writer.add_scalar("loss", 1.0, 10 * step)
    writer.close()
    folder.poll(None)
    (job,) = folder.jobs
    assert (job.step, job.loss) == (190, 1.0)
    assert list(job.series["metric:reward"][:5]) == [0.0, 1.0, 2.0, 3.0, 4.0]


@torch_only
def test_a_job_whose_process_is_gone_has_ended_and_is_no_alarm(tmp_path, monkeypatch):
    code = (
        "import sys\nsys.modules['tensorflow'] = None\n"
        "from torch.utils.tensorboard import SummaryWriter\n"
        "w = SummaryWriter(sys.argv[1])\n"
        "[w.add_scalar('loss', 1.0, i) for i in range(9)]\nw.close()"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=True)
    assert event_runs.GONE_SECONDS < health.DEAD_SECONDS  # it is never called dead in between
    monkeypatch.setattr(event_runs, "GONE_SECONDS", 0.0)
    (job,) = jobs(tmp_path).values()
    found = verdict(job, time.time())
    assert (found.state, found.severity) == ("done", "ok") and "do not say how" in found.sentence


@torch_only
def test_another_machine_s_job_ends_by_its_long_silence_alone(tmp_path, writer_in):
    writer = writer_in(str(tmp_path / "a"))
    for step in range(9):
        writer.add_scalar("loss", 1.0, step)
    writer.close()
    (file,) = (tmp_path / "a").iterdir()
    elsewhere = file.rename(file.with_name(file.name.replace(event_runs.HOST, "elsewhere")))
    (job,) = jobs(tmp_path).values()
    assert job.end is None and verdict(job, time.time()).state == "running"
    old = time.time() - 2 * event_runs.SILENT_SECONDS
    os.utime(elsewhere, (old, old))
    assert jobs(tmp_path)["a"].end is None  # its last event is of now, whatever the file's date
    shifted = _with_times_moved(elsewhere, -2 * event_runs.SILENT_SECONDS)
    os.utime(shifted, (old, old))
    assert jobs(tmp_path)["a"].end.status == "done"


def _with_times_moved(path, seconds):
    import struct

    from keras_mp.telemetry.tfrecord import FrameFile, frame

    frames = FrameFile(path).read()
    moved = [b"\x09" + struct.pack("<d", struct.unpack("<d", f[1:9])[0] + seconds) + f[9:]
             for f in frames]  # fmt: skip
    path.write_bytes(b"".join(map(frame, moved)))
    return path


@torch_only
def test_damage_and_a_torn_end_are_said_and_cost_no_other_event(tmp_path, writer_in):
    writer = writer_in(str(tmp_path / "a"))
    for step in range(1, 31):
        writer.add_scalar("loss", float(step), step)
    writer.close()
    (file,) = (tmp_path / "a").iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data[:-3])
    job = jobs(tmp_path)["a"]
    assert len(job.series["step"]) == 28 and job.corrupt == 1
    assert "1 damaged event was passed over" in job.problems


@tensorflow_only
def test_tf_summary_s_job_with_its_tensors_of_every_type(tmp_path):
    import tensorflow as tf

    writer = tf.summary.create_file_writer(str(tmp_path / "a"))
    with writer.as_default():
        for step in range(1, 11):
            tf.summary.scalar("loss", tf.constant(1.5 * step, "float16"), step=step)
            tf.summary.scalar("half", tf.constant(2.0**-8, "bfloat16"), step=step)
            tf.summary.scalar("count", tf.constant(-7, "int64"), step=step)
            tf.summary.scalar("double", tf.constant(0.1, "float64"), step=step)
            tf.summary.histogram("weights", tf.range(50.0), step=step)
            tf.summary.text("note", "hello", step=step)
            tf.summary.image("image", tf.zeros((1, 8, 8, 1)), step=step)
    writer.close()
    job = jobs(tmp_path)["a"]
    assert list(job.series["loss"]) == [1.5 * step for step in range(1, 11)]
    last = job.latest.metrics
    assert (last["half"], last["count"]) == (2.0**-8, -7) and last["double"] == pytest.approx(0.1)
    assert set(last) == {"half", "count", "double"} and job.corrupt == 0


@tensorflow_only
@pytest.mark.parametrize("update_freq", ["epoch", 2])
def test_keras_tensorboard_callback_s_job(tmp_path, update_freq):
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    board = keras.callbacks.TensorBoard(str(tmp_path / "a"), update_freq=update_freq)
    y = x[:, :1]
    history = model.fit(x, y, batch_size=4, epochs=3, verbose=0, validation_data=(x, y),
                        callbacks=[board]).history  # fmt: skip
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["train", "validation"]
    (job,) = jobs(tmp_path).values()
    known = job.latest.metrics
    if update_freq == "epoch":
        np.testing.assert_allclose(job.series["loss"], history["loss"], rtol=1e-5)
        assert known["epoch_mae"] == pytest.approx(history["mae"][-1], rel=1e-5)
    else:  # a point every second step; the epochs' own curves count epochs, and do not lead
        assert job.step >= 28 and len(job.series["step"]) >= 14
        assert job.loss == pytest.approx(history["loss"][-1], rel=0.2)
    assert known["validation/epoch_loss"] == pytest.approx(history["val_loss"][-1], rel=1e-5)
    assert job.meta.pid == os.getpid()


@pytest.mark.skipif(BACKEND == "jax", reason="no event files of its own")
def test_a_journal_and_event_files_side_by_side_and_what_goes(tmp_path):
    import keras_mp

    with keras_mp.Run(tmp_path, name="ours") as run:
        run.step(loss=1.0)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "neither").mkdir()
    from keras_mp.telemetry import event_proto, tfrecord

    file = tmp_path / "theirs/events.out.tfevents.1700000000.elsewhere.17.0"
    file.write_bytes(
        b"".join(tfrecord.frame(event_proto.scalars(1.7e9 + i, i, {"loss": 1.0})) for i in range(9))
    )
    folder = RunsFolder(tmp_path)
    folder.poll(None)
    assert {job.run_id for job in folder.jobs} == {"ours", "theirs"}
    assert next(j for j in folder.jobs if j.run_id == "theirs").meta.host == "elsewhere"
    (alone,) = jobs(tmp_path / "theirs").values()  # the folder itself may be watched too
    assert alone.step == 8
    shutil.rmtree(tmp_path / "theirs")
    folder.poll(None)
    assert {job.run_id for job in folder.jobs} == {"ours"}


@pytest.mark.parametrize(
    ("better", "worse"),
    [("loss", "train_loss"), ("Loss/train", "epoch_loss"), ("batch_loss", "epoch_loss"),
     ("epoch_loss", "val_loss"), ("train/lm loss", "loss_scale"), ("loss", "evaluation_loss_vs_x"),
     ("loss/kl", "accuracy"), ("trainLoss", "validLoss")],
)  # fmt: skip
def test_which_curve_is_the_training_loss(better, worse):
    assert loss_rank(better) < loss_rank(worse)


@pytest.mark.parametrize("tag", ["accuracy", "loss_scale", "lr", "glossary", "", "lossless"])
def test_what_is_no_loss(tag):
    assert loss_rank(tag) == WORST
