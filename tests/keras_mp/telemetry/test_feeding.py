"""What a training is fed with: the wait for batches apart from the work, tokens, compilations."""

import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

from keras_mp.telemetry import batches as tf_batches
from keras_mp.telemetry import feeding
from keras_mp.telemetry import records as r
from keras_mp.telemetry.compiling import CompileWatch
from keras_mp.telemetry.runs import RunsFolder
from keras_mp.telemetry.tail import JournalFile

pytestmark = pytest.mark.backend
BACKEND = os.environ["KERAS_BACKEND"]
PAUSE = 0.02  # sleep() takes at least so long: a lower bound that no busy machine breaks


def steps_of(path):
    records = JournalFile(path / "job/events-0.jsonl").read()
    return [x for x in records if isinstance(x, r.Step)]


def job_of(path):
    folder = RunsFolder(path)
    folder.poll(None)
    return folder.jobs[0]


def slow_source(pause, steps):
    import keras

    class Source(keras.utils.PyDataset):
        def __len__(self):
            return steps

        def __getitem__(self, index):
            time.sleep(pause)
            return np.ones((4, 3), "float32"), np.ones((4, 1), "float32")

    return Source()


def slow_model(pause):
    import keras

    class Pause(keras.layers.Layer):
        def call(self, x):
            time.sleep(pause)
            return x

    model = keras.Sequential([keras.Input((3,)), Pause(), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse", run_eagerly=True)
    return model


def keras_model(**kwargs):
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse", **kwargs)
    return model


def train(path, model, data, **kwargs):
    import keras_mp

    monitor = keras_mp.Monitor(path, name="job", every=3)
    model.fit(*data, verbose=0, callbacks=[monitor], **kwargs)
    return steps_of(path)


@pytest.mark.skipif(BACKEND == "tensorflow", reason="seen now and then there: the next tests")
def test_the_wait_for_batches_is_told_apart_from_the_work(tmp_path):
    steps = 12
    train(tmp_path / "waits", slow_model(0.0), (slow_source(PAUSE, steps),))
    train(tmp_path / "works", slow_model(PAUSE), (slow_source(0.0, steps),))
    waits, works = steps_of(tmp_path / "waits"), steps_of(tmp_path / "works")
    # The first batch of an epoch is fetched before its first step begins.
    assert sum(w.input_wait for w in waits) >= (steps - 2) * PAUSE
    assert sum(w.seconds - w.input_wait for w in works) >= steps * PAUSE
    assert all(0 <= w.input_wait <= w.seconds for w in waits + works)
    share = job_of(tmp_path / "waits").input_share
    assert 0 < share <= 1 and job_of(tmp_path / "works").input_share < share


only_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="its step draws the batch")


@only_tensorflow
def test_what_cannot_be_seen_is_absent(tmp_path, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(feeding, "SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr(feeding, "SAMPLE_FACTOR", 0.0)
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        model = keras_model()
    x = np.ones((24, 3), "float32")
    windows = train(tmp_path, model, (x, x[:, :1]), batch_size=4)
    assert windows[-1].step == 6 and all(w.input_wait is None for w in windows)
    assert job_of(tmp_path).input_share is None


@only_tensorflow
@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_batches_that_were_drawn_before_their_step_are_trained_on(
    tmp_path, monkeypatch, steps_per_execution
):
    """Each execution's but the first, which compiles: the same training, bit for bit."""
    import keras

    monkeypatch.setattr(feeding, "SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr(feeding, "SAMPLE_FACTOR", 0.0)
    traces = []

    class Traced(keras.Sequential):
        def train_step(self, data):
            traces.append(1)
            return super().train_step(data)

    x = np.random.default_rng(0).normal(size=(39, 3)).astype("float32")
    trained = {}
    for name in ("plain", "watched"):
        keras.utils.set_random_seed(1)
        model = Traced([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", loss="mse", steps_per_execution=steps_per_execution)
        kwargs = {"batch_size": 4, "epochs": 2}
        if name == "plain":
            model.fit(x, x[:, :1], verbose=0, **kwargs)
        else:
            windows = train(tmp_path, model, (x, x[:, :1]), **kwargs)
        trained[name] = [keras.ops.convert_to_numpy(w) for w in model.weights]
        trained[name].append(len(traces))
        traces.clear()
    for a, b in zip(trained["plain"], trained["watched"], strict=True):
        np.testing.assert_array_equal(a, b)
    assert sum(w.steps for w in windows) == 20 and sum(w.samples for w in windows) == 78
    assert windows[0].input_wait is None
    sampled = [w for w in windows if w.input_wait is not None]
    assert len(sampled) >= len(windows) - 3 and {w.epoch for w in sampled} == {0, 1}
    assert all(0 <= w.input_wait <= w.seconds for w in sampled)


@only_tensorflow
@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_one_wait_stands_for_those_around_it(monkeypatch, steps_per_execution):
    import tensorflow as tf

    now, delays = [0.0], []
    monkeypatch.setattr(feeding, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def slowly(iterator, most, drawn=tf_batches.drawn):
        now[0] += 0.25 * most  # how long each batch takes to come
        return drawn(iterator, most)

    monkeypatch.setattr(tf_batches, "drawn", slowly)
    data = tf.data.Dataset.from_tensors((np.ones((4, 3), "float32"), np.ones((4, 1), "float32")))
    batches = iter(data.repeat())
    model = keras_model(steps_per_execution=steps_per_execution)
    model.make_train_function()
    feed = feeding.Feed(model, "tensorflow", delays.append, "this training")
    model.train_function(batches)
    assert feed.take(steps_per_execution, 4).waited is None  # the first one compiles
    model.train_function(batches)
    model.train_function(batches)  # so soon after the one before, nothing is drawn
    assert feed.take(2 * steps_per_execution, 8).waited == 0.25 * 2 * steps_per_execution
    now[0] += feeding.SAMPLE_SECONDS
    model.train_function(batches)
    assert feed.take(1, 4).waited == 0.25
    now[0] += feeding.SAMPLE_SECONDS
    feed.pause()
    model.train_function(batches)
    assert feed.take(1, 4).waited is None  # nor the first of an epoch: its pipeline starts
    assert delays == [0.0, 0.0]  # by this clock it took no time
    feed.stop()


@only_tensorflow
def test_batches_that_fit_no_dataset_are_trained_on_all_the_same(monkeypatch):
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((np.ones((8, 3), "float32"), np.ones((8, 1))))
    taken = tf_batches.drawn(iter(data.batch(4)), 5)
    assert len(taken) == 2

    def refuse(*args):
        raise TypeError("no tensor")

    monkeypatch.setattr(tf.data.Dataset, "from_tensors", refuse)
    model = keras_model(steps_per_execution=2)
    model.make_train_function()
    model.train_function(tf_batches.again(taken))
    assert int(model.optimizer.iterations) == 2
    with pytest.raises(StopIteration):
        tf_batches.drawn(iter(data.take(0)), 1)


def test_validation_and_the_pause_between_epochs_are_no_wait(tmp_path):
    import keras

    class Between(keras.callbacks.Callback):
        paused = 0.0

        def on_train_begin(self, logs=None):
            self.began = time.perf_counter()

        def on_test_begin(self, logs=None):
            self.validating = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):  # it comes after the validation
            time.sleep(1.0)
            self.paused += time.perf_counter() - self.validating

        def on_train_end(self, logs=None):
            self.whole = time.perf_counter() - self.began

    import keras_mp

    between = Between()
    monitor = keras_mp.Monitor(tmp_path, name="job", every=3)
    model = slow_model(0.0)
    model.fit(slow_source(0.0, 4), epochs=2, verbose=0, callbacks=[between, monitor],
              validation_data=slow_source(PAUSE, 20))  # fmt: skip
    waits = [w.input_wait for w in steps_of(tmp_path) if w.input_wait is not None]
    assert sum(waits) <= between.whole - between.paused


def language_model(embedding=True):
    import keras

    layers = [keras.Input((None,), dtype="int32")]
    layers += [keras.layers.Embedding(11, 4)] if embedding else [keras.layers.Rescaling(1.0)]
    layers += [keras.layers.GlobalAveragePooling1D()] if embedding else []
    if not embedding:
        layers[0] = keras.Input((7,), dtype="int32")
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    return model


def sequences(count, length=7):
    x = np.random.default_rng(0).integers(0, 11, (count, length)).astype("int32")
    return x, np.ones((count, 1), "float32")


# torch's trainer knows only one step an execution.
@pytest.mark.parametrize("steps_per_execution", [1] if BACKEND == "torch" else [1, 2])
def test_tokens_of_integer_sequences_are_counted(tmp_path, steps_per_execution):
    model = language_model()
    model.compile("sgd", loss="mse", steps_per_execution=steps_per_execution)
    windows = train(tmp_path, model, sequences(43), batch_size=4, epochs=2)
    assert sum(w.samples for w in windows) == 86  # the last batch of an epoch is a short one
    assert sum(w.tokens for w in windows) == 86 * 7
    rate = job_of(tmp_path).series
    np.testing.assert_allclose(rate["tokens_per_second"], 7 * rate["samples_per_second"])


@pytest.mark.parametrize("kind", ["floats", "integers without an embedding"])
def test_what_is_no_sequence_has_no_tokens(tmp_path, kind):
    import keras

    if kind == "floats":
        model = keras.Sequential([keras.Input((7,)), keras.layers.Dense(1)])
        model.compile("sgd", loss="mse")
        data = np.ones((12, 7), "float32"), np.ones((12, 1), "float32")
    else:
        model, data = language_model(embedding=False), sequences(12)
    windows = train(tmp_path, model, data, batch_size=4)
    assert windows and all(w.tokens is None for w in windows)
    assert job_of(tmp_path).tokens_per_second is None


def test_the_model_is_left_as_it_was(tmp_path):
    import keras_mp

    model, data = language_model(), sequences(12)
    train(tmp_path, model, data, batch_size=4)
    own = model.train_function
    assert "keras_mp" not in type(own).__module__
    result = model.fit(*data, batch_size=4, verbose=0)
    assert len(result.history["loss"]) == 1

    class Stop(Exception):
        pass

    import keras

    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            raise Stop

    monitor = keras_mp.Monitor(tmp_path, name="job")
    for _ in range(3):  # what an interrupted training leaves behind does not pile up
        with pytest.raises(Stop):
            model.fit(*data, batch_size=4, verbose=0, callbacks=[monitor, Interrupt()])
    model.fit(*data, batch_size=4, verbose=0, callbacks=[monitor])
    assert "keras_mp" not in type(model.train_function).__module__


@pytest.mark.skipif(BACKEND != "jax", reason="only jax compiles a Keras step for each shape anew")
def test_a_later_compilation_is_set_apart_too(tmp_path):
    import keras

    import keras_mp

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    x = np.ones((22, 3), "float32")  # five batches of 4 and one of 2
    monitor = keras_mp.Monitor(tmp_path, name="job", every=1)
    model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[monitor])
    windows = steps_of(tmp_path)
    assert [w.step for w in windows if w.compiling] == [1, 6]
    assert windows[5].compiling <= windows[5].seconds
    rates = job_of(tmp_path).series["steps_per_second"]
    assert list(np.flatnonzero(np.isnan(rates))) == [0, 5]


@pytest.mark.skipif(BACKEND != "torch", reason="torch.compile")
def test_torch_compile_is_noticed_and_nothing_else(tmp_path):
    import torch

    watch = CompileWatch("torch")
    assert watch.seconds(1.0) is None
    double = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    watch.forget()
    double(torch.ones(3))
    assert watch.seconds(1.0) == 1.0
    double(torch.zeros(3))
    assert watch.seconds(1.0) is None
    double(torch.ones(4))  # another shape
    assert watch.seconds(1.0) == 1.0
