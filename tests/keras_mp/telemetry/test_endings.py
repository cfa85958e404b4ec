"""How a real job in a process of its own ends: killed, with an exception, or left early."""

import signal
import subprocess
import sys
import textwrap

import pytest

from keras_mp.telemetry.health import verdict
from keras_mp.telemetry.runs import RunsFolder

JOB = """
    import sys, time
    import numpy as np
    import keras, keras_mp
    keras.config.set_dtype_policy("mixed_float16")
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(400, 6)).astype("float32") / 4
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    optimizer = keras_mp.LossScaleOptimizer("sgd", scale=256.0)
    model.compile(optimizer=optimizer, loss="mse")
    class Hook(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            print(epoch, flush=True)
            {hook}
    runs, epochs = sys.argv[1], int(sys.argv[2])
    if len(sys.argv) > 3:
        optimizer.build(model.trainable_variables)
        optimizer.iterations.assign(int(sys.argv[3]))
    model.fit(x, x[:, :1], batch_size=4, epochs=epochs, verbose=0,
              callbacks=[keras_mp.Monitor(runs, name="job", every=2), Hook()])
"""


def start_job(path, epochs, *args, hook="pass"):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(JOB.replace("{hook}", hook)), str(path),
         str(epochs), *map(str, args)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def only_job(path):
    folder = RunsFolder(path)
    folder.poll(None)
    (job,) = folder.jobs
    return job


def test_killed_training_reads_is_dead_and_a_resumed_one_appends(tmp_path):
    process = start_job(tmp_path, 10_000)
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    job = only_job(tmp_path)
    assert job.step >= 300 and job.corrupt == 0 and job.end is None
    assert verdict(job, job.last_time + 3).state == "dead"
    before = job.records
    process = start_job(tmp_path, 1)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    resumed = only_job(tmp_path)
    assert resumed.records > before and resumed.resumed == 1
    assert resumed.end.status == "done"


@pytest.mark.parametrize(
    ("hook", "status", "reason"),
    [("raise ValueError('boom')", "failed", "ValueError: boom"),
     pytest.param("raise KeyboardInterrupt", "stopped", "interrupted", marks=pytest.mark.slow),
     pytest.param("sys.exit(3)", "stopped", "training was left before its end",
                  marks=pytest.mark.slow)],
)  # fmt: skip
def test_training_that_ends_early_says_why(tmp_path, hook, status, reason):
    process = start_job(tmp_path, 5, hook=hook)
    process.communicate(timeout=120)
    job = only_job(tmp_path)
    assert (job.end.status, job.end.reason) == (status, reason)
    assert job.step == 100
