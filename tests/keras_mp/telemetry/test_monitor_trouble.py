"""Monitor where something is wrong: with the model, the disk, the arguments, the training's end."""

import copy
import gc
import logging
import pickle
import warnings

import pytest
from helpers.monitored import BATCH, compiled, data, fit, journal, monitor_of, of_kind

from keras_mp.numerics.suggest import suggest
from keras_mp.telemetry import records as r
from keras_mp.telemetry.health import verdict
from keras_mp.telemetry.runs import RunsFolder

pytestmark = pytest.mark.backend


@pytest.fixture
def keras():
    import keras

    return keras


@pytest.mark.parametrize(
    ("optimizer", "policy", "warned"),
    [("plain", "mixed_float16", True), ("ours", "mixed_float16", False),
     ("stock", "mixed_float16", False), ("plain", "float32", False),
     ("plain", "mixed_bfloat16", False)],
)  # fmt: skip
def test_float16_without_a_loss_scale_is_said_once(keras, tmp_path, optimizer, policy, warned):
    x, y = data(2)
    model, monitor = compiled(keras, optimizer, policy), monitor_of(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(model, x, y, monitor)
        fit(model, x, y, monitor)
    said = [w for w in caught if "does not scale the loss" in str(w.message)]
    assert len(said) == int(warned)


def test_float16_in_one_nested_layer_is_found(keras, tmp_path):
    inner = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, dtype="mixed_float16")])
    model = keras.Sequential([keras.Input((6,)), inner, keras.layers.Dense(1)])
    model.compile("sgd", loss="mse", auto_scale_loss=False)
    x, y = data(2)
    with pytest.warns(UserWarning, match="does not scale the loss"):
        fit(model, x, y, monitor_of(tmp_path))


def test_trouble_with_the_disk_does_not_touch_the_training(keras, tmp_path, caplog):
    (tmp_path / "job").mkdir()
    (tmp_path / "job/events-0.jsonl").symlink_to("/dev/full")
    x, y = data(10)
    with caplog.at_level(logging.WARNING, "keras_mp"):
        history = fit(compiled(keras), x, y, monitor_of(tmp_path, every=1))
    assert len(history.history["loss"]) == 1 and len(caplog.records) == 1


def test_an_optimizer_that_cannot_be_read_does_not_touch_the_training(keras, tmp_path, caplog):
    x, y = data(10)
    model = compiled(keras)

    def broken(since=0):
        raise RuntimeError("device lost")

    object.__setattr__(model.optimizer, "recent_steps", broken)
    with caplog.at_level(logging.WARNING, "keras_mp"):
        fit(model, x, y, monitor_of(tmp_path, every=2))
    assert caplog.text.count("device lost") == 1
    last = of_kind(journal(tmp_path), "step")[-1]
    assert last.step == 10 and last.loss is not None and last.scale is None


@pytest.mark.parametrize("every", [0, -1, 2.5, "often", True, None])
def test_every_out_of_range(keras, every):
    with pytest.raises(ValueError, match=r"`every` must be .* Received: every="):
        monitor_of("runs", every=every)


def test_no_name_makes_a_fresh_run_each_time(keras, tmp_path):
    x, y = data(2)
    for _ in range(2):
        fit(compiled(keras), x, y, monitor_of(tmp_path, name=None))
    names = sorted(p.name for p in tmp_path.iterdir())
    assert len(names) == 2
    assert {x.kind for x in journal(tmp_path, names[1])} >= {r.Start.kind, r.End.kind}


def judged(tmp_path):
    folder = RunsFolder(tmp_path)
    folder.poll(None)
    (job,) = folder.jobs
    return job, verdict(job, job.last_time)


def test_keras_static_factor_is_a_loss_scale(keras, tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.01, loss_scale_factor=256.0)
    model.compile(optimizer=optimizer, loss="mse", auto_scale_loss=False)
    alerts = []
    history = fit(model, *data(10), monitor_of(tmp_path, on_alert=alerts.append)).history
    job, told = judged(tmp_path)
    assert alerts == [] and history["loss_scale"] == [256.0] and "skipped_steps" not in history
    assert (job.scale, told.scale_state, told.severity) == (256.0, "static", "ok")


def test_a_large_head_in_float32_does_not_hide_float16(keras, tmp_path):
    """The rule in mixed models: most weights are the head's, and the body needs a loss scale."""
    keras.config.set_dtype_policy("mixed_float16")
    head = keras.layers.Dense(64, dtype="float32")
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), head])
    model.compile("sgd", loss="mse", auto_scale_loss=False)
    x, y = data(4)
    with pytest.warns(UserWarning, match="does not scale the loss"):
        fit(model, x, y.repeat(64, 1), monitor_of(tmp_path))
    job, told = judged(tmp_path)
    assert job.policy == "mixed_float16" and "float16 without a loss scale" in told.sentence


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [({"name": 5}, "`name` must be"), ({"runs": None}, "`runs` must be"),
     ({"runs": ""}, "`runs` must be"), ({"rank": -1}, "`rank` must be"),
     ({"rank": "0"}, "`rank` must be"), ({"buffer": -0.1}, "`buffer` must be"),
     ({"buffer": float("nan")}, "`buffer` must be"), ({"on_alert": "me"}, "`on_alert` must be"),
     ({"tensorboard": 3}, "`tensorboard` must be"), ({"every": 0}, "`every` must be")],
)  # fmt: skip
def test_arguments_out_of_range_are_said_before_anything_runs(keras, wrong, expected):
    import keras_mp

    for kind in (keras_mp.Monitor, keras_mp.Run):
        with pytest.raises(ValueError, match=rf"{expected} .* Received: {next(iter(wrong))}="):
            kind(**wrong)


class Boom(RuntimeError):
    pass


def interrupted(keras, model, monitor, bad, at):
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == at - 1:
                raise Boom

    x, y = data(20, bad)
    with pytest.raises(Boom):
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0,
                  callbacks=[monitor, Interrupt()])  # fmt: skip


def test_a_training_that_raises_has_its_last_steps_in_the_journal(keras, tmp_path):
    """Nobody tells a callback of an exception; what led to it is on the device until it is read."""
    model, monitor = compiled(keras), monitor_of(tmp_path, every=100)
    interrupted(keras, model, monitor, {7, 12}, 12)
    del monitor
    gc.collect()
    records = journal(tmp_path)
    assert [o.step for o in of_kind(records, "overflow")] == [7, 12]
    last = of_kind(records, "step")[-1]
    assert (last.step, last.skipped, last.scale) == (12, 2, 64.0)
    assert (records[-1].status, records[-1].step) == ("stopped", 12)


def test_fit_again_after_an_interruption_loses_no_step(keras, tmp_path):
    model, monitor = compiled(keras), monitor_of(tmp_path, every=100)
    interrupted(keras, model, monitor, {7, 12}, 12)
    fit(model, *data(10, {3}), monitor)
    records = journal(tmp_path)
    assert [o.step for o in of_kind(records, "overflow")] == [7, 12, 15]
    windows = of_kind(records, "step")
    assert sum(w.steps for w in windows) == windows[-1].step == 22


def test_a_copied_or_unpickled_monitor_is_a_new_one(keras, tmp_path):
    monitor = monitor_of(tmp_path, every=3)
    fit(compiled(keras), *data(5), monitor)
    for again in (copy.deepcopy(monitor), pickle.loads(pickle.dumps(monitor))):
        assert again.folder is None
        model = compiled(keras)
        fit(model, *data(5, {2}), again)
        assert [o.step for o in of_kind(journal(tmp_path), "overflow")][-1] == 2
    assert monitor.folder == str(tmp_path / "job")


@pytest.mark.parametrize("place", ["before", "behind"])
def test_a_callback_that_restores_the_training_counts_wherever_it_stands(keras, tmp_path, place):
    """Keras' BackupAndRestore loads weights and optimizer as the training begins."""

    def train(*more, numerics=False):
        model = compiled(keras)
        model.optimizer.build(model.trainable_variables)
        both = [keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=4),
                monitor_of(tmp_path, every=1, numerics=numerics)]  # fmt: skip
        callbacks = [*(both if place == "before" else both[::-1]), *more]
        model.fit(*data(8), batch_size=BATCH, epochs=3, shuffle=False, verbose=0,
                  callbacks=callbacks)  # fmt: skip

    class Interrupt(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.steps == 13:
                raise Boom

    with pytest.raises(Boom):
        train(Interrupt(), numerics={"every": 5})
    gc.collect()
    train()
    records = journal(tmp_path)
    assert [s.step for s in of_kind(records, "start")] == [0, 12]
    # Keras begins the interrupted epoch anew, from the 12 steps that were saved.
    assert [w.step for w in of_kind(records, "step")] == [*range(1, 14), *range(13, 29)]
    assert not of_kind(records, "alert")
    job, told = judged(tmp_path)
    assert (job.step, job.planned_steps, job.resumed, told.state) == (28, 28, 1, "done")
    assert suggest(tmp_path / "job").looks == 3  # what was seen before the interruption counts


def test_a_training_that_raises_as_it_begins_is_in_the_journal(keras, tmp_path):
    class Refuse(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            raise Boom

    model, monitor = compiled(keras), monitor_of(tmp_path)
    with pytest.raises(Boom):
        model.fit(*data(2), verbose=0, callbacks=[monitor, Refuse()])
    del monitor
    gc.collect()
    assert [x.kind for x in journal(tmp_path)] == ["start", "end"]
    job, told = judged(tmp_path)
    assert told.state == "stopped" and job.meta.policy == "mixed_float16"


def test_a_training_that_a_callback_ends_early_says_so(keras, tmp_path):
    class Enough(keras.callbacks.Callback):
        def __init__(self, batch):
            super().__init__()
            self.batch = batch

        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == self.batch

    x, y = data(5)
    for name, batch, reason in (("cut", 2, "stop_training"), ("whole", 4, None)):
        callbacks = [monitor_of(tmp_path, name=name), Enough(batch)]
        compiled(keras).fit(x, y, batch_size=BATCH, verbose=0, callbacks=callbacks)
        end = journal(tmp_path, name)[-1]
        assert end.status == "done" and end.step == batch + 1
        assert (reason in end.reason) if reason else end.reason is None
