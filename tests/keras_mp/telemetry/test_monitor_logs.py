"""What Monitor knows reaches History, the callbacks after it, and event files."""

import os

import numpy as np
import pytest
from helpers.monitored import BATCH, compiled, data, fit, journal, monitor_of, of_kind

from keras_mp.telemetry.runs import RunsFolder

pytestmark = pytest.mark.backend


@pytest.fixture
def keras():
    import keras

    return keras


class MetricsLogger:
    """The shape of W&B's WandbMetricsLogger: each epoch, all logs under ``epoch/``. (The real one,
    wandb 0.31 offline, was tried by hand on each backend, mlflow 3.17's on torch and tensorflow.)
    """

    def __init__(self, keras):
        told = self.told = []

        class Callback(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                logs = {} if logs is None else {f"epoch/{k}": v for k, v in logs.items()}
                told.append({**logs, "epoch/epoch": epoch})

        self.callback = Callback()


class MlflowLogger:
    """The shape of MLflow's MlflowCallback: each epoch, each log as a float at the epoch's step."""

    def __init__(self, keras):
        told = self.told = []

        class Callback(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                told.append({k: float(v) for k, v in (logs or {}).items()})

        self.callback = Callback()


def test_log_keys_reach_history_and_later_callbacks(keras, tmp_path):
    x, y = data(10, {4})
    path = tmp_path / "log.csv"
    wandb, mlflow = MetricsLogger(keras), MlflowLogger(keras)
    monitor = monitor_of(tmp_path, every=2)  # more than the compiling first step, in any case
    callbacks = [monitor, keras.callbacks.CSVLogger(str(path)), wandb.callback, mlflow.callback]
    history = compiled(keras).fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0,
                                  callbacks=callbacks).history  # fmt: skip
    assert history["skipped_steps"] == [1.0, 2.0]
    assert history["loss_scale"] == [128.0, 64.0]
    assert all(value > 0 for value in history["grad_norm"] + history["samples_per_second"])
    header, first, _ = (line.split(",") for line in path.read_text().splitlines())
    assert float(first[header.index("loss_scale")]) == 128.0
    for key in ("loss_scale", "skipped_steps", "grad_norm", "samples_per_second"):
        assert [one[f"epoch/{key}"] for one in wandb.told] == history[key]
        assert [one[key] for one in mlflow.told] == history[key]
        assert key in header and all(isinstance(value, float) for value in history[key])


@pytest.mark.skipif(
    os.environ["KERAS_BACKEND"] != "tensorflow", reason="Keras writes event files by tf.summary"
)
def test_log_keys_reach_keras_tensorboard_callback(keras, tmp_path):
    x, y = data(10, {4})
    board = keras.callbacks.TensorBoard(str(tmp_path / "board/job"))
    fit_with = [monitor_of(tmp_path / "runs"), board]
    compiled(keras).fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0,
                        callbacks=fit_with)  # fmt: skip
    folder = RunsFolder(tmp_path / "board")
    folder.poll(None)
    (job,) = folder.jobs
    assert list(job.series["metric:epoch_loss_scale"]) == [128.0, 64.0]
    assert list(job.series["metric:epoch_skipped_steps"]) == [1.0, 2.0]


def test_an_epoch_of_compiling_steps_alone_leaves_no_gap_in_the_history(keras, tmp_path):
    x, y = data(1)
    history = fit(compiled(keras), x, y, monitor_of(tmp_path), epochs=2).history
    first, second = history["samples_per_second"]
    assert np.isnan(first) and second > 0


def test_event_files_beside_the_journal_tell_the_same(keras, tmp_path):
    x, y = data(20, {4})
    monitor = monitor_of(tmp_path / "runs", every=3, tensorboard=tmp_path / "board")
    fit(compiled(keras), x, y, monitor)
    journals, boards = RunsFolder(tmp_path / "runs"), RunsFolder(tmp_path / "board")
    for folder in (journals, boards):
        folder.poll(None)
    (ours,), (theirs,) = journals.jobs, boards.jobs
    assert theirs.run_id == "job"
    for column in ("step", "loss", "scale", "skipped", "grad_norm"):
        np.testing.assert_allclose(theirs.series[column], ours.series[column], rtol=1e-6)


def test_a_metric_of_the_users_own_keeps_its_name(keras, tmp_path):
    own = keras.metrics.MeanSquaredError(name="grad_norm")
    history = fit(compiled(keras, metrics=[own]), *data(6), monitor_of(tmp_path)).history
    assert history["grad_norm"] == pytest.approx(history["loss"], rel=1e-3)
    assert history["loss_scale"] == [256.0]


@pytest.mark.parametrize("every", [1, 4])
def test_samples_of_steps_whose_loss_was_not_finite_count_too(keras, tmp_path, every):
    """Such steps are kept out of Keras' running mean, where samples are counted."""
    x, y = data(15, {2, 3, 4, 9, 10})
    fit(compiled(keras), x[:-3], y[:-3], monitor_of(tmp_path, every=every), epochs=2)
    windows = of_kind(journal(tmp_path), "step")
    assert sum(w.samples for w in windows) == 2 * 57


def test_an_epoch_of_skipped_steps_alone_leaves_no_gap_in_the_history(keras, tmp_path):
    model, monitor = compiled(keras), monitor_of(tmp_path)
    x, y = data(2, {1, 2})

    class Mend(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            x[:], y[:] = data(2)

    history = model.fit(
        x, y, batch_size=8, epochs=2, verbose=0, callbacks=[monitor, Mend()]
    ).history
    assert np.isnan(history["grad_norm"][0]) and len(history["grad_norm"]) == 2
