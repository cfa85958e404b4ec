"""Telemetry adds no host read per step: counted in all threads, minus a run without it."""

import functools
import threading

import numpy as np
import pytest

pytestmark = pytest.mark.backend


def readers(backend):
    """The methods by which a value comes from a device to the host."""
    if backend == "torch":
        import torch

        return torch.Tensor, ["item", "tolist", "numpy", "cpu", "__array__", "__float__",
                              "__bool__", "__int__"]  # fmt: skip
    if backend == "tensorflow":
        import tensorflow as tf

        return type(tf.constant(1.0)), ["numpy", "__array__", "__float__", "__int__", "__bool__",
                                        "__index__"]  # fmt: skip
    import jax.numpy as jnp

    return type(jnp.zeros(())), ["__array__", "item", "tolist", "__float__", "__int__", "__bool__"]


@pytest.fixture
def count_reads(backend, monkeypatch):
    """A function that counts the host reads of a call, whichever thread makes them."""
    lock, reads = threading.Lock(), [0]
    owner, names = readers(backend)

    def wrap(real):
        @functools.wraps(real)
        def counted(*args, **kwargs):
            with lock:
                reads[0] += 1
            return real(*args, **kwargs)

        return counted

    for name in names:
        monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))

    def count(call):
        reads[0] = 0
        call()
        return reads[0]

    return count


def training(steps, every=None, runs=None, optimizer="ours"):
    import keras

    import keras_mp

    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    inner = keras.optimizers.SGD(0.01)
    if optimizer == "ours":
        inner = keras_mp.LossScaleOptimizer(inner, scale=256.0)
    model.compile(optimizer=inner, loss="mse", auto_scale_loss=False)
    x = np.random.default_rng(0).normal(size=(4 * steps, 6)).astype("float32")
    if optimizer == "ours":
        # With and without Monitor: a bound optimizer looks at each loss, on a CPU (where a read
        # costs nothing), to name the layer that overflowed. That is the scaler's, not telemetry's.
        model.optimizer.bind(model)
    callbacks = [keras_mp.Monitor(runs, every=every)] if runs else []
    return lambda: model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=callbacks)


def test_no_read_per_step(count_reads, tmp_path):
    def added(steps, every):
        """Reads that Monitor adds to a training of so many steps."""
        training(steps)()  # what is made once (kernels, caches) is made before counting
        without = count_reads(training(steps))
        return count_reads(training(steps, every, tmp_path)) - without

    few, many = added(20, 1000), added(120, 1000)
    assert many == few  # 100 steps more, not one read more
    assert added(120, 10) > many  # and the counting would see them


def test_run_s_step_reads_nothing(count_reads, backend, tmp_path):
    import keras

    import keras_mp

    def loop(steps, every):
        values = [keras.ops.convert_to_tensor(np.float32(i)) for i in range(steps)]

        def call():
            with keras_mp.Run(tmp_path, every=every) as run:
                for value in values:
                    run.step(loss=value, samples=4, metrics={"m": value})

        return call

    few, many = count_reads(loop(20, 1000)), count_reads(loop(120, 1000))
    assert many - few <= 1  # the last look fetches all losses in one read
    assert count_reads(loop(120, 10)) > many
