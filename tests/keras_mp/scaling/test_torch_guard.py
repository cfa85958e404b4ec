"""torch: a bound model's state in loops by hand, which call the model as they like."""

import keras
import numpy as np
import pytest

import keras_mp

if keras.backend.backend() != "torch":
    pytest.skip("about torch", allow_module_level=True)

import torch
from helpers.stepping import host, snapshot

pytestmark = pytest.mark.backend

X = np.random.default_rng(0).random((8, 3)).astype("float32")


@pytest.fixture
def bound():
    """(model with BatchNorm, its optimizer, its statistics)."""
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )
    optimizer = keras_mp.LossScaleOptimizer("sgd", model=model)
    optimizer.build(model.trainable_variables)
    return model, optimizer, model.layers[0].non_trainable_variables


def step(model, optimizer, *batches):
    """One update from several forward passes, as of a GAN's discriminator or a siamese loss."""
    model.zero_grad()
    loss = sum(model(torch.tensor(x), training=True).square().mean() for x in batches)
    optimizer.scale_loss(loss).backward()
    with torch.no_grad():
        optimizer.apply([v.value.grad for v in model.trainable_variables])


@pytest.mark.parametrize("bad", [0, 1])
def test_statistics_are_spared_whichever_forward_pass_of_a_step_was_bad(bound, bad):
    model, optimizer, statistics = bound
    step(model, optimizer, X, X + 1)
    before = snapshot(*statistics)
    batches = [X, X + 1]
    batches[bad] = np.full_like(X, np.inf)
    step(model, optimizer, *batches)
    assert optimizer.skipped_steps == 1
    assert optimizer.overflow_report().layer == "inputs"
    assert snapshot(*statistics) == before
    step(model, optimizer, X)
    assert snapshot(*statistics) != before


@pytest.mark.parametrize("change", ["assigned", "predicted"])
def test_what_others_wrote_between_two_passes_stays(bound, change):
    model, optimizer, (mean, variance) = bound
    step(model, optimizer, X)
    model(torch.tensor(X), training=True)  # a pass that no step follows
    if change == "assigned":
        mean.assign(host(mean) + 5)
    else:
        with torch.no_grad():  # statistics gathered anew, without training
            model(torch.tensor(X + 7), training=True)
    before = snapshot(mean, variance)
    step(model, optimizer, np.full_like(X, np.inf))
    assert optimizer.skipped_steps == 1
    assert snapshot(mean, variance) == before


@pytest.mark.parametrize("bad", [0, 1])
def test_micro_batches_of_a_loop_are_one_step_whose_overflow_is_named(bound, bad):
    model, optimizer, _ = bound
    optimizer.watch(4)
    model.compile(optimizer=optimizer, loss="mse")
    model.train_on_batch(X, X[:, :1])  # makes the mean of the loss
    model.reset_metrics()
    mean = model.metrics[0]
    for k in range(3):
        x = np.full_like(X, np.nan) if k == bad else X
        loss = model(torch.tensor(x), training=True).square().mean() / 3
        mean.update_state(loss.detach())
        optimizer.scale_loss(loss).backward()
    assert host(mean.count) == 2 and np.isfinite(host(mean.total))
    with torch.no_grad():
        optimizer.apply([v.value.grad for v in model.trainable_variables])
    row = optimizer.recent_steps()[-1]
    assert (row.finite, row.loss_finite) == (False, False)
    assert optimizer.overflow_report().layer == "inputs"


def test_a_loss_may_be_a_number_or_one_value_a_sample(bound):
    model, optimizer, _ = bound
    assert float(optimizer.scale_loss(2.0)) == 2.0 * optimizer.loss_scale
    optimizer.watch(4)
    for x in (X, np.full_like(X, np.nan)):
        loss = model(torch.tensor(x), training=True).square().mean(axis=-1)
        assert loss.shape == (8,)
        optimizer.scale_loss(loss).sum().backward()
        with torch.no_grad():
            optimizer.apply([v.value.grad for v in model.trainable_variables])
        model.zero_grad()
    assert [row.loss_finite for row in optimizer.recent_steps()] == [True, False]


@pytest.mark.parametrize("stored", ["transposed", "anew", "in another dtype"])
def test_state_is_spared_however_and_wherever_it_is_stored(stored):
    class Counting(keras.layers.Layer):
        def build(self, shape):
            self.state = self.add_weight(shape=(3, 3), initializer="orthogonal", trainable=False)
            self.scale = self.add_weight(shape=())

        def call(self, x, training=False):
            if training:
                self.state.assign_add(keras.ops.mean(x) * keras.ops.ones((3, 3)))
            return x * self.scale

    model = keras.Sequential([keras.Input((3,)), Counting()])
    state = model.layers[0].state
    assert not state.value.is_contiguous()
    optimizer = keras_mp.LossScaleOptimizer("sgd", model=model)
    optimizer.build(model.trainable_variables)
    step(model, optimizer, X)
    if stored != "transposed":
        dtype = torch.float32 if stored == "anew" else torch.float64
        state.value.data = state.value.data.to(dtype, copy=True)
        step(model, optimizer, X)
    before = snapshot(state)
    step(model, optimizer, np.full_like(X, np.inf))
    assert optimizer.skipped_steps == 1
    assert snapshot(state) == before
    step(model, optimizer, X)
    assert snapshot(state) != before
