"""``jit_compile=True`` on torch, with the real compiler: the safety contract of a bound model."""

import keras
import numpy as np
import pytest

import keras_mp

if keras.backend.backend() != "torch":
    pytest.skip("about torch.compile", allow_module_level=True)

import torch
from helpers.stepping import snapshot
from torch._dynamo.utils import counters

pytestmark = [pytest.mark.backend, pytest.mark.slow]


def small_model():
    keras.config.set_dtype_policy("mixed_float16")
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, kernel_initializer="ones"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )


@pytest.mark.filterwarnings("ignore")  # the compiler's own, about Keras
def test_a_compiled_fit_skips_spares_and_tells(tmp_path):
    model = small_model()
    optimizer = keras_mp.LossScaleOptimizer("adamw", initial_scale=64.0)
    x = np.random.default_rng(0).random((64, 8)).astype("float32")
    monitor = keras_mp.Monitor(tmp_path, name="compiled")
    for jit_compile in (False, True):  # eager steps first, whose state is stored in another way
        model.compile(optimizer=optimizer, loss="mse", jit_compile=jit_compile)
        model.fit(x, x[:, :1], batch_size=8, verbose=0, callbacks=[monitor])
    assert (optimizer.applied_steps, optimizer.skipped_steps) == (16, 0)

    state = [*model.trainable_variables, *model.non_trainable_variables]
    before = snapshot(*state, *optimizer.inner_optimizer.variables)
    bad = np.full_like(x[:8], 6e4)
    model.train_on_batch(bad, x[:8, :1])
    assert snapshot(*state, *optimizer.inner_optimizer.variables) == before
    assert (optimizer.skipped_steps, optimizer.loss_scale) == (1, 32.0)
    row = optimizer.recent_steps()[-1]
    assert (row.step, row.finite, row.loss_finite) == (17, False, False)
    assert len(optimizer.overflow_report().variables) == len(model.trainable_variables)

    history = model.fit(
        np.concatenate([x, bad]),
        np.concatenate([x[:, :1], x[:8, :1]]),
        batch_size=8,
        shuffle=False,
        verbose=0,
    ).history
    assert np.isfinite(history["loss"][0])
    assert optimizer.skipped_steps == 2
    for data, finite in ((bad, False), (x, True)):  # an epoch without any finite loss is no 0
        history = model.fit(data, data[:, :1], batch_size=8, verbose=0).history
        assert np.isfinite(history["loss"][0]) == finite
    mean = np.mean((model.predict(x, verbose=0) - x[:, :1]) ** 2)
    assert 0.1 * mean < history["loss"][0] < 100 * mean  # of 64 samples, and not a sum


def graphs_of_a_fit(optimizer, monkeypatch):
    """How many graphs torch.compile makes of Keras' train step; they run without its code."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **kw: compile(f, **kw, backend="eager"))
    torch._dynamo.reset()
    counters.clear()
    model = small_model()
    if isinstance(optimizer, keras_mp.LossScaleOptimizer):
        optimizer.bind(model)
    model.compile(optimizer=optimizer, loss="mse", jit_compile=True, auto_scale_loss=False)
    model.fit(np.ones((8, 8), "float32"), np.ones((8, 1), "float32"), batch_size=4, verbose=0)
    monkeypatch.undo()
    return counters["stats"]["unique_graphs"]


@pytest.mark.filterwarnings("ignore")  # the compiler's own, about Keras
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_bound_model_compiles_into_no_more_graphs_than_a_plain_one(name, monkeypatch):
    plain = graphs_of_a_fit(keras.optimizers.get(name), monkeypatch)
    ours = graphs_of_a_fit(keras_mp.LossScaleOptimizer(name), monkeypatch)
    assert 1 < ours <= plain
