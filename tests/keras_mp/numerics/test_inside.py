"""Numerics in a training's journal: the right numbers, and the training as without."""

import logging
import os

import numpy as np
import pytest

import keras_mp
from keras_mp.numerics.rows import Row
from keras_mp.telemetry import records as r
from keras_mp.telemetry.runs import RunsFolder
from keras_mp.telemetry.tail import JournalFile

pytestmark = pytest.mark.backend
# jax compiles each look, TensorFlow runs it without its graph: seconds a test. What no backend can
# change is tested on torch.
BACKEND = os.environ.get("KERAS_BACKEND", "torch")
slow_on_jax = pytest.mark.slow if BACKEND == "jax" else lambda test: test
slow_off_torch = pytest.mark.slow if BACKEND != "torch" else lambda test: test

BATCH = 8


@pytest.fixture
def keras():
    import keras

    return keras


def data(steps):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps * BATCH, 6)).astype("float32")
    return x, (x[:, :2] * 1e-3).astype("float32")


def compiled(keras, **kwargs):
    # torch's dropout draws from a generator that fit and train_on_batch leave in other states.
    rate = 0.0 if keras.backend.backend() == "torch" else 0.2
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy("mixed_float16")
    made = keras.Sequential
    if keras.backend.backend() == "jax":  # there alone can spare BatchNorm's statistics
        made = type("Net", (keras_mp.GuardedTrainStep, keras.Sequential), {})
    model = made(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, "relu", name="hidden"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dropout(rate, name="drop"),
            keras.layers.Dense(2, name="head"),
        ]
    )
    model.compile(
        keras_mp.LossScaleOptimizer(keras.optimizers.Adam(1e-2), scale=64.0), loss="mse", **kwargs
    )
    return model


def fit(keras, runs, numerics, steps=6, name="job", x=None, y=None, callbacks=(), **kwargs):
    model = compiled(keras, **kwargs)
    if x is None:
        x, y = data(steps)
    monitor = keras_mp.Monitor(runs, name=name, every=2, numerics=numerics)
    history = model.fit(
        x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[monitor, *callbacks]
    )
    return model, history


def journal(runs, name="job"):
    return JournalFile(runs / name / "events-0.jsonl").read()


def numerics_of(runs, name="job"):
    return [x for x in journal(runs, name) if isinstance(x, r.Numerics)]


def values(model):
    import keras

    return [np.asarray(keras.ops.convert_to_numpy(v)) for v in model.variables]


def test_training_is_the_same_bit_for_bit_and_the_records_are_of_the_batch_trained_on(
    keras, tmp_path
):
    plain, history = fit(keras, tmp_path, False, name="plain")
    looked, looked_history = fit(keras, tmp_path, {"every": 3})
    for a, b in zip(values(plain), values(looked), strict=True):
        np.testing.assert_array_equal(a, b)
    assert history.history["loss"] == looked_history.history["loss"]
    assert not numerics_of(tmp_path, "plain")
    steps = sorted({record.step for record in numerics_of(tmp_path)})
    assert steps == [2, 5, 8, 11]
    records = [x for x in numerics_of(tmp_path) if x.step == 5]
    # The same by hand: a model that was trained for four steps, and the fifth batch.
    x, y = data(6)
    model = compiled(keras)
    for step in range(4):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        model.train_on_batch(x[rows], y[rows])
    rows = slice(4 * BATCH, 5 * BATCH)
    expected = keras_mp.probe(model, (x[rows], y[rows]))
    assert expected.scale == 64.0
    for row, record in zip(expected, records, strict=True):
        assert (row.name, row.tensor) == (record.variable or record.layer, record.tensor)
        assert Row.of_record(record).histogram.exponents == row.histogram.exponents
        assert record.norm == pytest.approx(row.norm) and record.scale == row.scale
    told = {(x.layer, x.tensor): x for x in records}
    assert told["head", "gradient"].underflow is not None
    assert told["head", "activation"].scale == 1.0 and told["head", "gradient"].scale == 64.0
    shares = told["head", "gradient"]
    total = shares.zero + shares.lost + shares.subnormal + shares.normal + shares.near
    assert total + shares.overflow == pytest.approx(1.0)


@slow_off_torch
def test_a_row_survives_its_record(keras, tmp_path):
    fit(keras, tmp_path, {"every": 3})
    for record in numerics_of(tmp_path):
        again = Row.of_record(record).to_record(record.step, record.time, record.format)
        assert again == record


@slow_off_torch
def test_the_job_knows_the_largest_scale(keras, tmp_path):
    fit(keras, tmp_path, {"every": 3})
    folder = RunsFolder(tmp_path)
    folder.poll(seconds=None)
    job = folder.jobs[0]
    assert job.limits["step"].tolist() == [2, 5, 8, 11]
    for step, limit in zip(job.limits["step"], job.limits["limit"], strict=True):
        gradients = [x for x in numerics_of(tmp_path) if x.step == step and
                     x.tensor != "activation"]  # fmt: skip
        assert limit == pytest.approx(65504 / max(x.largest for x in gradients))
    assert {key[0].rpartition("/")[2] for key in job.numerics if key[1] == "weight_gradient"} >= {
        *("gamma", "kernel", "bias")
    }


@slow_off_torch
def test_between_looks_nothing_is_left_on_the_model(keras, tmp_path):
    class Watch(keras.callbacks.Callback):
        functions = ()

        def on_train_batch_end(self, batch, logs=None):
            self.functions = (*self.functions, self.model.train_function)

    watch, plain = Watch(), Watch()
    model, _ = fit(keras, tmp_path, {"every": 4}, callbacks=[watch])
    fit(keras, tmp_path, False, name="plain", callbacks=[plain])
    names = {type(f).__name__ + getattr(f, "__qualname__", "") for f in watch.functions}
    assert names == {type(f).__name__ + getattr(f, "__qualname__", "") for f in plain.functions}
    assert not any("call" in vars(layer) for layer in model.layers)


def test_off_is_off(keras, tmp_path):
    monitor = keras_mp.Monitor(tmp_path, numerics=False)
    model = compiled(keras)
    x, y = data(2)
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[monitor])
    assert monitor._inside is None


@slow_on_jax
def test_a_training_too_short_for_a_look_says_so_once(keras, tmp_path, caplog):
    model = compiled(keras)
    monitor = keras_mp.Monitor(tmp_path, name="job", numerics=True)
    x, y = data(3)
    with caplog.at_level(logging.WARNING, "keras_mp"):
        for _ in range(2):
            model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[monitor])
    assert not numerics_of(tmp_path)
    assert caplog.text.count("over before its first look") == 1
    caplog.clear()
    with caplog.at_level(logging.WARNING, "keras_mp"):
        fit(keras, tmp_path, {"every": 4}, name="looked")
        fit(keras, tmp_path, False, name="off")
    assert numerics_of(tmp_path, "looked") and "first look" not in caplog.text


@slow_off_torch
def test_a_look_that_fails_is_said_once_and_training_goes_on(keras, tmp_path, caplog):
    class Odd(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            if keras.config.dtype_policy().name != "mixed_float16" or self.layers[0].dtype_policy.\
                    name == "float32":  # fmt: skip
                raise RuntimeError("not outside the training")
            return super().compute_loss(x, y, y_pred, sample_weight, training)

    keras.config.set_dtype_policy("mixed_float16")
    model = Odd([keras.Input((6,)), keras.layers.Dense(2)])
    model.compile("sgd", loss="mse", auto_scale_loss=False)
    x, y = data(8)
    with caplog.at_level(logging.WARNING, "keras_mp"), pytest.warns(UserWarning, match="scale"):
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[
            keras_mp.Monitor(tmp_path, name="job", numerics={"every": 2})])  # fmt: skip
    assert caplog.text.count("not outside the training") == 1
    assert not numerics_of(tmp_path)
    assert [x for x in journal(tmp_path) if isinstance(x, r.Step)][-1].step == 8
    assert model.layers[0].dtype_policy.name == "mixed_float16"


@slow_on_jax
def test_sample_weights_and_generators(keras, tmp_path):
    x, y = data(4)

    def batches():
        for step in range(8):
            rows = slice(step % 4 * BATCH, (step % 4 + 1) * BATCH)
            yield x[rows], y[rows], np.full(BATCH, float(step), "float32")

    model = compiled(keras)
    monitor = keras_mp.Monitor(tmp_path, name="job", numerics={"every": 2})
    model.fit(batches(), epochs=2, steps_per_epoch=4, shuffle=False, verbose=0, callbacks=[monitor])
    gradients = [x for x in numerics_of(tmp_path) if x.tensor == "gradient" and x.layer == "head"]
    assert [x.step for x in gradients] == [2, 4, 6, 8]  # no batch was lost or trained twice
    assert gradients[-1].norm > 3 * gradients[0].norm  # weight 7 against weight 1


def test_several_steps_an_execution_and_xla_trace_once(keras, tmp_path):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("TensorFlow alone draws its batches inside a traced function")
    for kwargs in ({"steps_per_execution": 3}, {"jit_compile": True}):
        traces = []

        class Traced(keras.Sequential):
            def train_step(self, data, traces=traces):
                traces.append(1)
                return super().train_step(data)

        def trained(numerics, name, kwargs=kwargs, made=Traced):
            keras.utils.set_random_seed(1)
            model = made([keras.Input((6,)), keras.layers.Dense(2)])
            model.compile(keras.optimizers.SGD(0.1), loss="mse", **kwargs)
            x, y = data(7)
            monitor = keras_mp.Monitor(tmp_path, name=name, numerics=numerics)
            model.fit(x[:-3], y[:-3], batch_size=BATCH, epochs=2, verbose=0, callbacks=[monitor])
            return values(model), monitor

        plain, _ = trained(False, f"plain{next(iter(kwargs))}")
        once = len(traces)
        looked, monitor = trained({"every": 1}, f"looked{next(iter(kwargs))}")
        assert len(traces) == 2 * once
        assert monitor._inside.schedule.looks >= 3
        for a, b in zip(plain, looked, strict=True):
            np.testing.assert_array_equal(a, b)


def replicated(keras):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("a strategy is TensorFlow's")
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    # Without collectives, which TensorFlow numbers from 100 in each strategy: another strategy's of
    # another shape in the same process, such as another test's, would meet them.
    reduction = tf.distribute.ReductionToOneDevice()
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=reduction).scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(2, name="layer"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.5),
            ]
        )
        model.compile("sgd", loss="mse")
    return model


def test_under_a_strategy_the_first_replica_s_batch_is_looked_at(keras, tmp_path):
    x, y = data(4)
    trained = {}
    for numerics in (False, {"every": 1}):
        model = replicated(keras)
        model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[
            keras_mp.Monitor(tmp_path, name="job", numerics=numerics)])  # fmt: skip
        trained[bool(numerics)] = values(model)
    for a, b in zip(trained[False], trained[True], strict=True):
        np.testing.assert_array_equal(a, b)
    told = [x for x in journal(tmp_path) if isinstance(x, r.Numerics) and x.layer == "layer"]
    told = [x for x in told if x.tensor == "activation"]
    assert [x.step for x in told] == [*range(2, 9)]  # each but the first, which compiles
    assert {x.values for x in told} == {BATCH // 2 * 2}  # half of the samples, two outputs each


def test_a_strategy_of_another_sort_is_said_to_hide_its_batches(
    keras, tmp_path, caplog, monkeypatch
):
    model = replicated(keras)
    import tensorflow as tf

    other = tf.distribute.MultiWorkerMirroredStrategy
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", other)
    x, y = data(4)
    with caplog.at_level(logging.WARNING, "keras_mp"):
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[
            keras_mp.Monitor(tmp_path, name="job", numerics={"every": 1})])  # fmt: skip
    assert caplog.text.count("distribution strategy") == 1
    assert [x for x in journal(tmp_path) if isinstance(x, r.Step)][-1].step == 4


def test_wrong_options_are_said(keras):
    with pytest.raises(ValueError, match="Received: numerics="):
        keras_mp.Monitor("runs", numerics={"evry": 5})


@slow_off_torch
def test_a_loop_of_ones_own_adds_probes_and_is_told_of_alerts(keras, tmp_path):
    model, told = compiled(keras), []
    x, y = data(4)
    with keras_mp.Run(tmp_path, name="job", model=model, every=1,
                      on_alert=told.append) as run:  # fmt: skip
        for step in range(4):
            rows = slice(step * BATCH, (step + 1) * BATCH)
            if step == 2:
                found = keras_mp.probe(model, (x[rows], y[rows]))
                run.numerics(found)
            model.train_on_batch(x[rows], y[rows])
            run.step(loss=float("nan") if step == 3 else 0.5, samples=BATCH)
    records = numerics_of(tmp_path)
    assert {record.step for record in records} == {3} and len(records) == len(found.rows)
    assert ("nan", "error") in [(alert.code, alert.severity) for alert in told]
