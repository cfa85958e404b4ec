"""The tensorflow kernel under distribution strategies: two replicas on two logical CPUs."""

import json
import os
import socket
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
from helpers.stepping import host, snapshot
from keras import layers

import keras_mp

if keras.backend.backend() != "tensorflow":
    pytest.skip("tests of the tensorflow kernel", allow_module_level=True)

import tensorflow as tf

from keras_mp.scaling.kernels import tensorflow_replicas

pytestmark = pytest.mark.backend

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = 0.25 * X[:, :1]


def adam():
    return keras.optimizers.Adam(0.125)


def sgd():
    return keras.optimizers.SGD(0.125)


@pytest.fixture(scope="module")
def strategy():
    # One for all tests: a second one of the same devices mixes up its messages with the first's.
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


class Loop:
    """A custom loop with given gradients: ``step(bad)`` makes replica ``bad``'s not finite."""

    def __init__(self, strategy, inner, **kwargs):
        self.strategy = strategy
        with strategy.scope():
            self.variables = [keras.Variable([1.0, -0.0]), keras.Variable([[2.0]])]
            self.optimizer = keras_mp.LossScaleOptimizer(inner(), **kwargs)
            self.optimizer.build(self.variables)
        self.optimizer.watch(8)
        self.run = tf.function(self._step, autograph=False)

    def _step(self, bad, value):
        def replica():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            loss = tf.cast(number, tf.float32) + 1.0
            loss = tf.where(tf.equal(number, bad), value, loss)
            self.optimizer.scale_loss(loss)
            scale = tf.convert_to_tensor(self.optimizer.dynamic_scale)
            first = scale * tf.where(tf.equal(number, bad), value, 1.0) * tf.constant([1.0, 0.5])
            self.optimizer.apply([first, scale * tf.constant([[0.25]])], self.variables)

        self.strategy.run(replica)

    def step(self, bad=-1, value=np.nan):
        self.run(tf.constant(bad), tf.constant(value, tf.float32))

    @property
    def everything(self):
        return [*self.variables, *self.optimizer.inner_optimizer.variables]


def all_copies(variables):
    """The bits of every replica's copy."""
    return [[copy.numpy().tobytes() for copy in v.value.values] for v in variables]


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_replicas_overflow_stops_all(strategy, bad, value):
    loop = Loop(strategy, adam)
    loop.step()
    before = all_copies(loop.everything)
    for _ in range(2):
        loop.step(bad, value)
        assert all_copies(loop.everything) == before
    assert loop.optimizer.loss_scale == 2.0**13
    loop.step()
    assert all_copies(loop.everything) != before
    state = loop.optimizer._state.read()
    assert (state.applied, state.skipped, state.consecutive_skips) == (2, 2, 0)


def test_if_replicas_did_not_agree_the_weights_would_be_lost(strategy, monkeypatch):
    """The mutant: each replica counts its own flags alone, and the first one's are looked at."""
    monkeypatch.setattr(tensorflow_replicas, "summed", tensorflow_replicas.first_replica)
    loop = Loop(strategy, sgd)
    loop.step(bad=1)
    assert not np.isfinite(host(loop.variables[0])).all()


def test_a_sum_over_replicas_may_not_overflow_either(strategy):
    loop = Loop(strategy, sgd, scale=1.0)
    before = all_copies(loop.everything)
    variable = loop.variables[0]

    def replica():
        loop.optimizer.scale_loss(tf.ones(()))
        loop.optimizer.apply([tf.constant([3e38, 0.0])], [variable])

    run = tf.function(lambda: strategy.run(replica), autograph=False)
    run()
    assert all_copies(loop.everything) == before
    assert loop.optimizer.skipped_steps == 1


def test_the_ring_sees_all_replicas(strategy):
    loop = Loop(strategy, sgd)
    loop.optimizer.measure_headroom(every=3)
    for bad in (-1, 1, -1):
        loop.step(bad)
    rows = loop.optimizer.recent_steps()
    assert [r.step for r in rows] == [1, 2, 3]
    assert [r.finite for r in rows] == [True, False, True]
    assert [r.nonfinite for r in rows] == [(), (0,), ()]
    # Replicas' losses add up, as Keras splits them, and so do their gradients.
    assert [r.loss for r in rows if r.finite] == [3.0, 3.0]
    assert np.isnan(rows[1].loss) and rows[1].loss_finite is False
    norm = pytest.approx(np.sqrt(2.0**2 + 1.0**2 + 0.5**2), rel=1e-6)
    assert [r.grad_norm for r in rows] == [norm, None, norm]
    assert list(loop.optimizer.headroom().values()) == [65504 / 2**14, 65504 / 2**12]
    report = loop.optimizer.overflow_report()
    assert [(v.count, v.first_step, v.last_step) for v in report.variables] == [(1, 2, 2)]
    assert report.origin == "loss"


def gradients_by_hand(model, x, y):
    """Of the mean squared error over all rows, in float64, for dense and for embedded inputs."""
    weights = [host(w).astype(np.float64) for w in model.trainable_variables]
    kernel, bias = weights[-2:]
    inputs = weights[0][x].reshape(len(x), -1) if len(weights) == 3 else x.astype(np.float64)
    slope = 2 / len(x) * (inputs @ kernel + bias - y)
    gradients = [inputs.T @ slope, slope.sum(axis=0)]
    if len(weights) == 3:
        rows = np.zeros_like(weights[0])
        np.add.at(rows, x, (slope @ kernel.T).reshape(*x.shape, -1))
        gradients.insert(0, rows)
    return gradients


@pytest.mark.parametrize("sparse", [False, True])
def test_norm_and_headroom_in_fit_are_those_of_the_whole_batch(strategy, sparse, tmp_path):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        head = [layers.Embedding(9, 3), layers.Flatten()] if sparse else []
        model = keras.Sequential([keras.Input((4,)), *head, layers.Dense(1)])
        optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.Adam(0.0))
        model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    optimizer.measure_headroom(every=2)
    x = np.abs(X * 3).astype("int32") if sparse else X  # words come several times a batch
    monitor = keras_mp.Monitor(tmp_path)
    fit = {"batch_size": 16, "shuffle": False, "verbose": 0, "callbacks": [monitor]}
    history = model.fit(x, Y, **fit).history
    batches = [slice(0, 16), slice(16, 32)]
    by_hand = [gradients_by_hand(model, x[b], Y[b]) for b in batches]
    norms = [np.sqrt(sum((g**2).sum() for g in gradients)) for gradients in by_hand]
    rows = optimizer.recent_steps()
    assert [r.grad_norm for r in rows] == pytest.approx(norms, rel=1e-5)
    assert history["grad_norm"] == pytest.approx(norms[-1:], rel=1e-5)
    # float16 must hold each replica's own gradients: it has half the rows, and half the weight.
    halves = [gradients_by_hand(model, x[h], Y[h]) for h in (slice(16, 24), slice(24, 32))]
    largest = [
        rows[-1].scale / 2 * max(abs(one).max(), abs(two).max())
        for one, two in zip(*halves, strict=True)
    ]
    assert list(optimizer.headroom().values()) == pytest.approx(
        [65504 / size for size in largest], rel=1e-5
    )


def test_a_clip_before_the_sum_leaves_the_norm_unknown(strategy):
    loop = Loop(strategy, lambda: keras.optimizers.SGD(0.125, clipvalue=0.5))
    loop.step()
    assert [r.grad_norm for r in loop.optimizer.recent_steps()] == [None]
    assert "update_step" not in vars(loop.optimizer.inner_optimizer)


def make_model(strategy, inner, wrap=True, policy="float32", sparse=False):
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    with strategy.scope():
        if sparse:
            model = keras.Sequential(
                [keras.Input((4,), dtype="int32"), layers.Embedding(9, 3), layers.Flatten()]
            )
        else:
            model = keras.Sequential(
                [keras.Input((4,)), layers.Dense(3), layers.BatchNormalization()]
            )
        model.add(layers.Dense(1))
        optimizer = inner()
        if wrap:
            optimizer = keras_mp.LossScaleOptimizer(optimizer, initial_scale=2.0**8)
        model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    return model


INNER = {
    "adam": adam,
    "ema, decay and clip": lambda: keras.optimizers.AdamW(0.125, use_ema=True, clipnorm=0.5),
}


@pytest.mark.parametrize("name", [*INNER, "sparse"])
def test_fit_is_the_plain_optimizers_bit_for_bit(strategy, name):
    sparse = name == "sparse"
    x = np.abs(X * 3).astype("int32") if sparse else X
    weights = []
    for wrap in (False, True):
        model = make_model(strategy, INNER.get(name, adam), wrap, sparse=sparse)
        model.fit(x, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        weights.append(snapshot(*model.weights))
    assert weights[0] == weights[1]


def test_fit_with_an_overflow_on_the_second_replica(strategy):
    model = make_model(strategy, adam, policy="mixed_float16")
    optimizer = model.optimizer
    optimizer.bind(model)
    optimizer.watch(16)
    fit = {"batch_size": 8, "shuffle": False, "verbose": 0}
    model.fit(X[:8], Y[:8], **fit)
    bad = X.copy()
    bad[12] = 1e6  # of the second batch, in the half that the second replica gets
    before = all_copies(model.weights)
    model.fit(bad[8:16], Y[8:16], **fit)
    assert all_copies(model.weights) == before
    history = model.fit(bad, Y, **fit).history
    assert (optimizer.applied_steps, optimizer.skipped_steps) == (4, 2)
    assert optimizer.loss_scale == 2.0**6
    # The first replica's half of the bad batch was finite, and is part of the mean.
    assert np.isfinite(history["loss"][0])
    assert [r.finite for r in optimizer.recent_steps()] == [True, False, True, False, True, True]


@pytest.mark.parametrize(
    ("options", "jit", "message"),
    [
        ({"gradient_accumulation_steps": 2}, False, "gradient_accumulation_steps=2"),
        ({"use_ema": True, "ema_overwrite_frequency": 2}, False, "ema_overwrite_frequency=2"),
        ({}, True, "cannot train with jit_compile=True"),
    ],
)
def test_what_keras_cannot_do_is_refused_in_words(strategy, options, jit, message):
    model = make_model(strategy, lambda: keras.optimizers.SGD(0.125, **options))
    model.jit_compile = jit
    with pytest.raises(ValueError, match=message):
        model.fit(X, Y, batch_size=8, verbose=0)


def test_several_steps_an_execution_are_refused_where_the_model_is_known(strategy):
    model = make_model(strategy, sgd)
    model.optimizer.bind(model)
    model.steps_per_execution = 2
    with pytest.raises(ValueError, match="Received: steps_per_execution=2"):
        model.fit(X, Y, batch_size=8, verbose=0)


def test_on_one_device_nothing_is_refused():
    weights = []
    for wrap in (False, True):
        one = tf.distribute.OneDeviceStrategy("CPU:0")
        make = lambda: keras.optimizers.Adam(0.125, gradient_accumulation_steps=2)  # noqa: E731
        model = make_model(one, make, wrap)
        model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
        weights.append(snapshot(*model.weights))
    assert weights[0] == weights[1]
    assert model.optimizer.applied_steps == 4


def test_apply_outside_of_replicas_is_refused(strategy):
    loop = Loop(strategy, sgd)
    loop.optimizer.scale_loss(tf.ones(()))
    with strategy.scope(), pytest.raises(ValueError, match=r"inside `strategy.run\(fn\)`"):
        loop.optimizer.apply([tf.ones(2), tf.ones((1, 1))], loop.variables)


def test_exhaustion_is_said_from_within_the_strategy(strategy):
    loop = Loop(strategy, sgd, scale=8.0, on_exhausted="raise")
    with pytest.raises(tf.errors.UnknownError, match="Nothing trains"):
        for _ in range(5):
            loop.step(bad=1)


WORKER = """
    import json, os, sys
    import numpy as np, keras, tensorflow as tf
    import keras_mp

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        variable = keras.Variable([1.0, 1.0])
        optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(0.125))
        optimizer.build([variable])
        optimizer.watch(8)

    @tf.function(autograph=False)
    def step(bad):
        def replica():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            optimizer.scale_loss(tf.cast(number, tf.float32) + 1.0)
            scale = tf.convert_to_tensor(optimizer.dynamic_scale)
            grad = tf.where(tf.equal(number, bad), np.float32(np.inf), scale) * tf.ones(2)
            optimizer.apply([grad], [variable])
        strategy.run(replica)

    seen = []
    last = strategy.num_replicas_in_sync - 1
    for bad in (-1, last, -1):
        step(tf.constant(bad))
        seen.append([variable.numpy().tolist(), optimizer.loss_scale])
    rows = [[r.finite, r.loss, r.grad_norm] for r in optimizer.recent_steps()]
    print("SEEN", json.dumps([strategy.num_replicas_in_sync, seen, rows]), flush=True)
    os._exit(0)  # the workers' servers wait for one another at a regular exit
"""


def run_workers(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    processes = []
    for index in range(count):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(WORKER)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    results = []
    for process in processes:
        out, errors = process.communicate(timeout=120)
        lines = [line for line in out.splitlines() if line.startswith("SEEN ")]
        assert lines, errors[-3000:]
        results.append(json.loads(lines[0].removeprefix("SEEN ")))
    return results


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_decide_alike(workers):
    loss = sum(range(1, workers + 1))
    after = [1 - 0.125 * workers, 1 - 0.25 * workers]
    for replicas, seen, rows in run_workers(workers):
        assert replicas == workers
        assert seen == [
            [[after[0]] * 2, 2.0**15],
            [[after[0]] * 2, 2.0**14],
            [[after[1]] * 2, 2.0**14],
        ]
        norm = pytest.approx(workers * np.sqrt(2), rel=1e-6)
        assert rows == [[True, loss, norm], [False, loss, None], [True, loss, norm]]
