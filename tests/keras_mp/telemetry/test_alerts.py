"""Alerts on trainings that really go wrong, and the hook that is told of them."""

import logging

import numpy as np
import pytest

import keras_mp
from keras_mp.scaling.state import ScaleConfig
from keras_mp.telemetry import alerts as alerts_module
from keras_mp.telemetry import records as r
from keras_mp.telemetry.alerts import Alerts
from keras_mp.telemetry.tail import JournalFile

BATCH = 4


def told_by(simulation, config, steps, overflow, **kwargs):
    """Alerts at each record of a simulated job."""
    watch = Alerts(simulation.meta(config))
    out = []
    for record in simulation.records_of(config, steps, overflow, **kwargs):
        watch.see(record)
        if isinstance(record, r.Step):
            out += watch.news(record.time)
    return watch, out


def test_a_collapse_is_told_once_and_when_it_is_over(simulation):
    watch, out = told_by(simulation, ScaleConfig(), 1200, lambda step: 1000 < step <= 1020)
    codes = [(a.code, a.severity) for a in out]
    assert codes[0] == ("collapsing", "error")
    assert "the last 10 steps were all skipped" in out[0].message
    assert codes[1:] == [("thrashing", "warning"), ("collapsing", "info")] or codes[1:] == [
        ("collapsing", "info"), ("thrashing", "warning")]  # fmt: skip
    assert out[-1].step > 1020 and "collapsing" not in watch.active


def test_a_healthy_job_says_nothing(simulation):
    assert told_by(simulation, ScaleConfig(), 5000, (4204).__eq__)[1] == []
    assert told_by(simulation, ScaleConfig(initial_scale=2.0**24), 500, lambda s: s < 9)[1] == []


def test_what_comes_and_goes_is_not_told_each_time(simulation):
    config = ScaleConfig(dynamic=False, initial_scale=8.0)
    bursts = {s for start in range(200, 1800, 400) for s in range(start, start + 60)}
    _, out = told_by(simulation, config, 3000, bursts.__contains__, step_seconds=0.01)
    severe = [a for a in out if a.severity != "info"]
    assert 1 <= len(severe) <= 3  # 30 seconds in all: a second time only when it got worse
    _, out = told_by(simulation, config, 3000, bursts.__contains__, step_seconds=1.0)
    assert len([a for a in out if a.severity != "info"]) >= len(severe)


def test_a_nan_is_told_and_told_to_be_over(simulation):
    watch = Alerts(simulation.meta(policy="float32"))
    told = []
    for step, loss in enumerate([1.0, 0.9, float("nan"), float("nan"), 0.8, 0.7], 1):
        watch.see(r.Step(step=step, time=float(step), loss=loss))
        told += watch.news(float(step))
    assert [(a.code, a.severity, a.step) for a in told] == [("nan", "error", 3)]
    assert watch.active == {"nan": "warning"}  # it stays visible


def test_memory_of_itself_stays_small(simulation, monkeypatch):
    monkeypatch.setattr(alerts_module, "MAX_POINTS", 64)
    watch, _ = told_by(simulation, ScaleConfig(), 3000, lambda step: False, window=1)
    assert len(watch._job.series) <= 64


# On real trainings.


@pytest.fixture
def keras():
    import keras

    return keras


def train(keras, runs, on_alert, *, bad=(), steps=24, lr=1e-3, policy="mixed_float16", scale=256.0):
    keras.config.set_dtype_policy(policy)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"),
                              keras.layers.Dense(1)])  # fmt: skip
    optimizer = keras.optimizers.SGD(lr)
    if scale:
        optimizer = keras_mp.LossScaleOptimizer(optimizer, scale=scale, on_exhausted="continue")
    model.compile(optimizer, loss="mse", auto_scale_loss=False)
    x = np.random.default_rng(0).normal(size=(steps * BATCH, 6)).astype("float32")
    y = x[:, :1].copy()
    for step in bad:
        y[(step - 1) * BATCH] = np.inf
    monitor = keras_mp.Monitor(runs, name="job", every=2, on_alert=on_alert)
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[monitor])
    return JournalFile(runs / "job" / "events-0.jsonl").read()


@pytest.mark.backend
def test_the_hook_is_told_what_the_journal_says(keras, tmp_path):
    told = []
    records = train(keras, tmp_path, told.append, bad=range(9, 25))
    written = [x for x in records if isinstance(x, r.Alert)]
    assert written == told
    assert ("static", "error") in [(a.code, a.severity) for a in told]
    assert any("too large" in a.message for a in told)
    assert all(1 <= a.step <= 24 for a in told)


@pytest.mark.backend
def test_a_healthy_training_is_quiet(keras, tmp_path):
    told = []
    records = train(keras, tmp_path, told.append)
    assert told == [] and not [x for x in records if isinstance(x, r.Alert)]


@pytest.mark.backend
def test_a_hook_that_fails_is_said_once_and_stops_nothing(keras, tmp_path, caplog):
    calls = []

    def fails(alert):
        calls.append(alert)
        raise RuntimeError("no pager here")

    with caplog.at_level(logging.WARNING, "keras_mp"):
        records = train(keras, tmp_path, fails, bad=range(3, 25))
    assert len(calls) >= 2  # told again, though it failed
    assert caplog.text.count("no pager here") == 1
    assert [x for x in records if isinstance(x, r.Step)][-1].step == 24
    assert [x for x in records if isinstance(x, r.Alert)]


@pytest.mark.backend
def test_a_hook_must_be_a_function(keras):
    with pytest.raises(ValueError, match="Received: on_alert='mail'"):
        keras_mp.Monitor("runs", on_alert="mail")
