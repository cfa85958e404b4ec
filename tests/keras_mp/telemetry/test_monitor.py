"""Monitor on real trainings: every skipped step, right numbers, no step made to wait."""

import os
import time

import numpy as np
import pytest
from helpers.monitored import BATCH, CONFIG, compiled, data, fit, journal, monitor_of, of_kind

from keras_mp.scaling.state import ScaleState, update
from keras_mp.telemetry import looks
from keras_mp.telemetry.health import verdict
from keras_mp.telemetry.runs import RunsFolder

pytestmark = pytest.mark.backend


@pytest.fixture
def keras():
    import keras

    return keras


WAYS = {
    "torch": [{}, {"jit_compile": True}],
    "tensorflow": [
        {},
        {"steps_per_execution": 4},
        {"jit_compile": True},
        {"steps_per_execution": 4, "jit_compile": True},
    ],
    "jax": [{}, {"steps_per_execution": 4}],
}[os.environ["KERAS_BACKEND"]]


# Each way with one interval, each interval with one way; all of them in `make test-all`, and there
# the ways of torch's compiler, which takes its time.
CASES = [
    pytest.param(
        way,
        every,
        marks=[pytest.mark.slow]
        if way and (every != 7 or os.environ["KERAS_BACKEND"] == "torch")
        else [],
    )
    for way in range(len(WAYS))
    for every in (1, 7, 1000, "auto")
    if way == 0 or os.environ["KERAS_BACKEND"] != "torch" or every in (7, "auto")
]


@pytest.mark.parametrize(("way", "every"), CASES)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # the compiler's
def test_every_planted_skip_is_in_the_journal(keras, backend, tmp_path, way, every):
    steps = 50
    rng = np.random.default_rng(way + 10 * (every if every != "auto" else 0))
    bad = {int(b) for b in rng.integers(1, steps + 1, size=8)}
    x, y = data(steps, bad)
    model = compiled(keras, **WAYS[way])
    fit(model, x, y, monitor_of(tmp_path, every=every))
    records = journal(tmp_path)
    state, expected = ScaleState.initial(CONFIG), []
    for step in range(1, steps + 1):
        before = state
        state = update(state, step not in bad, CONFIG)
        if step in bad:
            expected.append((step, before.scale, state.scale))
    overflows = of_kind(records, "overflow")
    assert [(o.step, o.scale_before, o.scale_after) for o in overflows] == expected
    for o in overflows:
        # Keras' jax trainer never shows the optimizer the loss.
        seen = {"jax": "unknown"}.get(backend, "backward" if o.step % 2 else "loss")
        assert o.origin == seen and o.variables
        if o.step % 2:
            assert o.layer.split("/")[-1] == "hidden"
    last = of_kind(records, "step")[-1]
    assert (last.step, last.scale, last.skipped, last.applied, last.good_steps) == (
        steps, state.scale, state.skipped, state.applied, state.good_steps)  # fmt: skip
    assert not [a for a in of_kind(records, "alert") if a.code == "steps_missed"]


def test_the_device_is_looked_at_before_it_forgets(keras, tmp_path, monkeypatch):
    """However seldom every="auto" would look: the ring holds so many steps and no more."""
    monkeypatch.setattr(looks, "MIN_INTERVAL", 1e6)
    monkeypatch.setattr(looks, "MAX_INTERVAL", 1e6)
    bad = {3, 511, 512, 513, 700, 1100}
    x, y = data(1200, bad)
    model = compiled(keras)
    fit(model, x, y, monitor_of(tmp_path))
    records = journal(tmp_path)
    steps = [o.step for o in of_kind(records, "overflow")]
    assert bad <= set(steps)  # and those where the scale itself had grown too large
    assert len(steps) == len(set(steps)) == model.optimizer.skipped_steps
    assert not [a for a in of_kind(records, "alert") if a.code == "steps_missed"]


def test_windows_add_up_to_the_training(keras, tmp_path):
    x, y = data(23)
    x, y = x[:-1], y[:-1]  # the last batch is a short one
    model = compiled(keras, metrics=["mae"])
    history = fit(model, x, y, monitor_of(tmp_path, every=5), epochs=2, validation_data=(x, y))
    records = journal(tmp_path)
    windows = of_kind(records, "step")
    assert sum(w.steps for w in windows) == 46 and windows[-1].step == 46
    # Each look was of its time, with the scale and the loss of that time.
    assert [w.step for w in windows[:6]] == [1, 6, 11, 16, 21, 23]
    assert [w.applied for w in windows[:6]] == [1, 6, 11, 16, 21, 23]
    assert all(w.loss is not None for w in windows)
    assert sum(w.samples for w in windows) == 2 * len(x)
    assert [w.epoch for w in windows] == sorted(w.epoch for w in windows)
    for epoch in (0, 1):
        own = [w for w in windows if w.epoch == epoch]
        assert sum(w.steps for w in own) == 23
        mean = sum(w.loss * w.samples for w in own) / len(x)
        assert mean == pytest.approx(history.history["loss"][epoch], rel=1e-3)
        assert own[-1].metrics["mae"] == pytest.approx(history.history["mae"][epoch], rel=1e-3)
        logs = of_kind(records, "epoch")[epoch].logs
        assert logs["val_loss"] == pytest.approx(history.history["val_loss"][epoch])
    # jax compiles anew for the short batch at the epoch's end; a later epoch has it already.
    apart = [w.step for w in windows if w.compiling]
    assert apart == ([1, 23] if keras.backend.backend() == "jax" else [1])
    paced = [w for w in windows if not w.compiling]
    assert all(w.step_time_p50 <= w.step_time_p95 for w in paced)
    assert all(w.grad_norm > 0 for w in windows)
    assert records[-1].status == "done"
    assert of_kind(records, "memory")[0].process_resident > 10_000_000
    assert of_kind(records, "memory")[0].device_allocated is None  # there is no GPU here


@pytest.mark.skipif(os.environ["KERAS_BACKEND"] == "jax", reason="Keras forbids it there")
def test_an_evaluate_by_hand_inside_an_epoch_is_not_in_the_windows(keras, backend, tmp_path):
    x, y = data(12)
    other, mine = np.full((40, 6), 9.0, "float32"), np.full((40, 1), -50.0, "float32")
    model = compiled(keras, "plain", "float32")

    class Evaluate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 4:
                model.evaluate(other, mine, batch_size=BATCH, verbose=0)

    model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, validation_data=(x, y),
              callbacks=[monitor_of(tmp_path, every=3), Evaluate()])  # fmt: skip
    windows = of_kind(journal(tmp_path), "step")
    met = [w for w in windows if w.step in (7, 18)]  # its metrics are of those other data
    assert [w.loss for w in met] == [None, None]
    assert all(0 < w.loss < 100 for w in windows if w not in met)
    if backend == "torch":  # sees each batch
        assert [w.samples for w in met] == [12, 12]
    else:
        assert [w.samples for w in met] == [None, None]
    assert sum(w.samples for w in windows if w not in met) == 2 * (len(x) - 12)


@pytest.mark.parametrize("weighted", [True, False])
def test_samples_of_a_model_with_a_mean_of_its_own(keras, backend, tmp_path, weighted):
    """Keras' guides update it once a step, which tells no samples."""
    losses = keras.ops.convert_to_tensor([3.0, 1.0])  # the loss of a step is that of its number

    class Own(keras.Sequential):
        def __init__(self, layers):
            super().__init__(layers)
            self.mean = keras.metrics.Mean(name="loss")

        def update(self, x):
            size = keras.ops.shape(x)[0] if weighted else None
            self.mean.update_state(keras.ops.max(losses), sample_weight=size)
            return {"loss": self.mean.result()}

        if backend == "jax":

            def train_step(self, state, data):
                *others, metrics = state
                weight = keras.ops.shape(data[0])[0] if weighted else None
                keras_own, own = metrics[:2], metrics[2:]  # a total and a count each
                own = self.mean.stateless_update_state(
                    own, keras.ops.max(losses), sample_weight=weight
                )
                return {"loss": self.mean.stateless_result(own)}, (*others, [*keras_own, *own])

        else:

            def train_step(self, data):
                return self.update(data[0])

    model = Own([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd")
    x, y = data(7)
    fit(model, x[:-3], y[:-3], monitor_of(tmp_path, every=3))
    windows = of_kind(journal(tmp_path), "step")
    assert [w.step for w in windows] == [1, 4, 7] and all(w.loss == 3.0 for w in windows)
    known = weighted or backend != "tensorflow"  # the others see each batch
    assert [w.samples for w in windows] == ([4, 12, 9] if known else [None] * 3)


def test_two_monitors_of_one_training_are_told_the_same(keras, tmp_path):
    x, y = data(12, {5})
    model = compiled(keras)
    monitors = [monitor_of(tmp_path / name, every=every) for name, every in (("a", 3), ("b", 5))]
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=monitors)
    for name in "ab":
        records = journal(tmp_path / name)
        windows = of_kind(records, "step")
        assert sum(w.steps for w in windows) == 12 and sum(w.samples for w in windows) == 48
        assert [o.step for o in of_kind(records, "overflow")] == [5]
    assert "keras_mp" not in type(model.train_function).__module__


def test_validation_is_not_in_the_windows(keras, tmp_path):
    class Slow(keras.callbacks.Callback):
        validated = 0.0

        def on_test_begin(self, logs=None):
            self.began = time.perf_counter()

        def on_test_end(self, logs=None):
            time.sleep(0.5)
            self.validated += time.perf_counter() - self.began

        def on_train_batch_end(self, batch, logs=None):
            self.first_ended = getattr(self, "first_ended", time.perf_counter())

        def on_train_end(self, logs=None):
            self.whole = time.perf_counter() - self.first_ended

    x, y = data(10)
    model, slow = compiled(keras), Slow()
    monitor = monitor_of(tmp_path, every=4)
    model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, validation_data=(x, y),
              callbacks=[slow, monitor])  # fmt: skip
    # The first window is the first step's, which compiles.
    windows = of_kind(journal(tmp_path), "step")[1:]
    assert 0 < sum(w.seconds for w in windows) <= slow.whole - slow.validated


def test_meta_says_who_runs(keras, backend, tmp_path):
    x, y = data(5)
    fit(compiled(keras), x, y, monitor_of(tmp_path), epochs=3)
    folder = RunsFolder(tmp_path)
    folder.poll()
    (job,) = folder.jobs
    meta = job.meta
    assert (meta.backend, meta.policy, meta.optimizer) == (backend, "mixed_float16", "SGD")
    assert (meta.planned_steps, meta.planned_epochs, meta.steps_per_epoch) == (15, 3, 5)
    assert meta.pid == os.getpid() and meta.parameters == 65 and meta.name == "job"
    assert meta.scaler["growth_interval"] == 15 and meta.versions["keras"] == keras.__version__
    assert job.progress == 1.0 and verdict(job, time.time()).state == "done"


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_plain_optimizer_has_no_scale(keras, tmp_path, policy):
    x, y = data(12)
    history = fit(compiled(keras, "plain", policy), x, y, monitor_of(tmp_path, every=5))
    records = journal(tmp_path)
    last = of_kind(records, "step")[-1]
    assert (last.step, last.scale, last.skipped, last.applied) == (12, None, None, None)
    assert sum(w.samples for w in of_kind(records, "step")) == 48
    assert {"loss_scale", "skipped_steps", "grad_norm"}.isdisjoint(history.history)


def test_keras_own_loss_scale_optimizer_tells_totals(keras, tmp_path):
    x, y = data(20, {3, 9})
    model = compiled(keras, "stock")
    fit(model, x, y, monitor_of(tmp_path, every=5))
    last = of_kind(journal(tmp_path), "step")[-1]
    assert (last.step, last.scale, last.skipped, last.applied) == (20, 64.0, 2, 18)


def test_fit_again_goes_on_in_the_same_journal(keras, tmp_path):
    x, y = data(10, {4})
    model, monitor = compiled(keras), monitor_of(tmp_path, every=3)
    fit(model, x, y, monitor)
    fit(model, x, y, monitor)
    monitor.result(hits=0.5)
    records = journal(tmp_path)
    assert [s.step for s in of_kind(records, "start")] == [0, 10]
    assert [s.step for s in of_kind(records, "step") if s.compiling] == [1]  # not once more
    assert [o.step for o in of_kind(records, "overflow")] == [4, 14]
    folder = RunsFolder(tmp_path)
    folder.poll()
    (job,) = folder.jobs
    assert (job.step, job.end.status, job.results) == (20, "done", {"hits": 0.5})
    assert job.planned_steps == 20


def test_a_model_that_trained_before_is_followed_from_there(keras, tmp_path):
    """TensorFlow traced its step before anybody wanted to know of single steps."""
    x, y = data(10, {4})
    model = compiled(keras)
    fit(model, x, y, None)
    fit(model, x, y, monitor_of(tmp_path, every=3))
    records = journal(tmp_path)
    assert of_kind(records, "start")[0].step == 10
    assert [o.step for o in of_kind(records, "overflow")] == [14]
    assert of_kind(records, "step")[-1].skipped == 2


def test_a_model_compiled_anew_compiles_once_more(keras, tmp_path):
    x, y = data(10)
    model, monitor = compiled(keras), monitor_of(tmp_path, every=3)
    for _ in range(2):
        fit(model, x, y, monitor)
        model.compile(optimizer=model.optimizer, loss="mse", auto_scale_loss=False)
    assert [s.step for s in of_kind(journal(tmp_path), "step") if s.compiling] == [1, 11]


def test_evaluate_and_predict_write_nothing(keras, tmp_path):
    x, y = data(4)
    model, monitor = compiled(keras), monitor_of(tmp_path)
    model.evaluate(x, y, verbose=0, callbacks=[monitor])
    model.predict(x, verbose=0, callbacks=[monitor])
    assert list(tmp_path.iterdir()) == []
    fit(model, x, y, monitor)
    count = len(journal(tmp_path))
    model.evaluate(x, y, verbose=0, callbacks=[monitor])
    assert len(journal(tmp_path)) == count


def test_keras_may_dispatch_ahead(keras):
    """A batch-end hook would make Keras wait for each step's logs; Monitor has none."""
    import keras_mp

    own = vars(keras_mp.Monitor)
    assert "on_train_batch_begin" in own
    for hook in ("on_batch_end", "on_train_batch_end", "on_test_batch_end"):
        assert hook not in own
