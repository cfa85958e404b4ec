"""Recurrent layers of ours: Keras' results, each weight cast once, sums in float32."""

import keras
import numpy as np
import pytest
from helpers.cells import Counting
from helpers.gradients import gradients

import keras_mp
from keras_mp import layers as ours
from keras_mp.numerics.memory import saved_bytes

pytestmark = pytest.mark.backend

TORCH = keras.backend.backend() == "torch"
torch_only = pytest.mark.skipif(not TORCH, reason="elsewhere Keras' loop runs")
STEPS, FEATURES, UNITS = 12, 5, 6
RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, STEPS, FEATURES)).astype("float32")
# A row without padding, padding at the end, a gap, and nothing at all.
MASK = np.ones((4, STEPS), bool)
MASK[1, 5:] = MASK[2, 3:6] = MASK[3] = False

# What Keras casts at every step, by the name of what makes it do so; and what it does not.
CASES = {
    "LSTM": ("LSTM", {}, False),
    "LSTM, mask": ("LSTM", {}, True),
    "LSTM, recurrent dropout": ("LSTM", {"recurrent_dropout": 0.3, "seed": 1}, False),
    "LSTM, no cuDNN": ("LSTM", {"use_cudnn": False}, False),
    "LSTM, no bias": ("LSTM", {"use_bias": False, "use_cudnn": False}, False),
    "GRU": ("GRU", {}, False),
    "GRU, mask": ("GRU", {}, True),
    "GRU, recurrent dropout": ("GRU", {"recurrent_dropout": 0.3, "seed": 1}, False),
    "GRU, reset before": ("GRU", {"reset_after": False}, False),
    "SimpleRNN": ("SimpleRNN", {}, False),
    "SimpleRNN, mask": ("SimpleRNN", {}, True),
    "RNN of a cell": ("RNN", {}, False),
    "RNN of stacked cells": ("stacked", {}, True),
}
FEW = {name: CASES[name] for name in ("LSTM, mask", "GRU, reset before", "RNN of a cell")}
# jax compiles each for half a minute; what is its own is in test_casting_jax.py.
TRIED = {"torch": CASES, "tensorflow": FEW, "jax": {}}[keras.backend.backend()]


def tried():
    """Each case as it is; on torch the few also backwards and for the last output alone."""
    more = [{}, {"go_backwards": True}, {"return_sequences": False}]
    return [
        (*case, options)
        for name, case in TRIED.items()
        for options in (more if TORCH and name in FEW else [{}])
    ]


def make(module, name, policy, **arguments):
    arguments = {"return_sequences": True, **arguments, "dtype": policy}
    if name in ("RNN", "stacked"):
        cell = keras.layers.LSTMCell(UNITS, dtype=policy)
        if name == "stacked":
            second = keras.layers.GRUCell(UNITS, dtype=policy)
            cell = keras.layers.StackedRNNCells([cell, second], dtype=policy)
        return module.RNN(cell, **arguments)
    return getattr(module, name)(UNITS, **arguments)


def built(*layers, shape=X.shape):
    """The layers, with the same weights, such as training might leave."""
    weights = None
    for layer in layers:
        layer.build(shape)
        if weights is None:
            weights = [RNG.normal(size=w.shape) * 0.4 for w in layer.get_weights()]
        layer.set_weights(weights)
    return layers


class Masked(keras.Model):
    """The layer after one that wants its input's gradient."""

    def __init__(self, layer, mask=None):
        super().__init__()
        self.layer, self.mask = layer, mask
        self.before = keras.layers.Dense(FEATURES, dtype=layer.dtype_policy)

    def call(self, x, training=False):
        return self.layer(self.before(x), mask=self.mask, training=training)


def distance(given, wanted):
    """Of two lists of gradients, relative, as one long vector."""
    a, b = (np.concatenate([g.ravel() for g in found]) for found in (given, wanted))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize(("name", "arguments", "masked", "options"), tried())
def test_half_precision_gives_what_keras_gives(name, arguments, masked, options):
    policy = "mixed_bfloat16"
    stock = make(keras.layers, name, policy, **{**arguments, **options})
    layer = make(ours, name, policy, **{**arguments, **options})
    full = make(keras.layers, name, "float32", **{**arguments, **options})
    built(stock, layer, full)
    mask = {"mask": MASK} if masked else {}
    # The loss reads the outputs only: no gradient of dropout here, whose masks differ.
    weight = RNG.normal(size=keras.ops.shape(stock(X))).astype("float32")
    wanted, theirs = gradients(stock, X, weight, **mask)
    given, found = gradients(layer, X, weight, **mask)
    exact, right = gradients(full, X, weight, **mask)
    assert np.abs(given - exact).max() <= 1.2 * np.abs(wanted - exact).max() + 2.0**-9
    assert distance(found, right) <= 1.1 * distance(theirs, right)


@torch_only
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_gradients_of_long_sequences_are_nearer_to_float32_than_kerass(name):
    x = RNG.normal(size=(4, 200, FEATURES)).astype("float32")
    layers = [make(keras.layers, name, "mixed_bfloat16"), make(ours, name, "mixed_bfloat16")]
    full = make(keras.layers, name, "float32")
    built(*layers, full)
    weight = RNG.random((4, 200, UNITS)).astype("float32")
    theirs, found, right = (gradients(layer, x, weight)[1] for layer in (*layers, full))
    # The recurrent kernel's gradient is the sum of 200 steps'. In half precision that sum stalls.
    assert distance(found[2:3], right[2:3]) < 0.7 * distance(theirs[2:3], right[2:3])


@torch_only
@pytest.mark.parametrize(("name", "arguments", "masked"), CASES.values(), ids=CASES)
def test_at_most_half_of_the_memory_and_no_cast_of_a_weight(name, arguments, masked):
    mask = keras.ops.convert_to_tensor(MASK) if masked else None
    full = saved_bytes(Masked(make(keras.layers, name, "float32", **arguments), mask), X)
    half = saved_bytes(Masked(make(ours, name, "mixed_bfloat16", **arguments), mask), X)
    assert 0.4 * full.total < half.total <= 0.55 * full.total
    # Keras calls stacked cells once more, to make their dropout masks: that casts by Keras' rule.
    assert half.weight_casts == 0 or name == "stacked"


@torch_only
@pytest.mark.parametrize(("name", "arguments", "masked"), CASES.values(), ids=CASES)
def test_each_weight_is_cast_once_a_call_at_any_length(name, arguments, masked):
    layer = make(ours, name, "mixed_bfloat16", **arguments)
    built(layer)
    counts = []
    for steps in (3, STEPS):
        counts.append(casts_of_weights(layer, X[:, :steps], MASK[:, :steps] if masked else None))
    assert counts[0] == counts[1]
    forward, backward = counts[0]
    if name == "stacked":  # Keras calls stacked cells once more, to make their dropout masks
        assert forward <= 2 * len(layer.trainable_weights)
        return
    assert forward == len(layer.trainable_weights)
    assert 0 < backward <= forward  # made again once; a bias is not asked for


def casts_of_weights(layer, x, mask):
    """How often a weight's numbers are cast to bfloat16: in the forward and the backward pass."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    weights = {w.value.untyped_storage().data_ptr() for w in layer.trainable_weights}

    class Casts(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket.__name__ == "_to_copy":
                self.count += args[0].untyped_storage().data_ptr() in weights
            return func(*args, **(kwargs or {}))

    mask = None if mask is None else keras.ops.convert_to_tensor(mask)
    with Casts() as forward:
        out = layer(torch.tensor(x), mask=mask, training=True)
    loss = out.float().sum()
    with Casts() as backward:
        loss.backward()
    layer.zero_grad()
    return forward.count, backward.count


@torch_only
def test_recurrent_dropout_drops_the_same_all_the_way_and_anew_each_call():
    layer = make(ours, "LSTM", "mixed_bfloat16", recurrent_dropout=0.5, seed=3)
    built(layer)
    first, second = (keras.ops.convert_to_numpy(layer(X, training=True)) for _ in range(2))
    assert np.abs(first.astype("float32") - second.astype("float32")).max() > 0.01
    a, b = (keras.ops.convert_to_numpy(layer(X, training=False)) for _ in range(2))
    np.testing.assert_array_equal(a, b)


@torch_only
def test_what_a_cell_keeps_for_itself_moves_on():
    """A cell with a random seed and a counter of its own: both must change as the steps go."""
    layer = ours.RNN(Counting(UNITS, dtype="mixed_bfloat16"), dtype="mixed_bfloat16")
    layer.build(X.shape)
    seed = layer.cell.drop.seed_generator.state
    before = keras.ops.convert_to_numpy(seed).copy()
    layer(X, training=True)
    assert int(layer.cell.count) == STEPS
    assert (keras.ops.convert_to_numpy(seed) != before).any()


@pytest.mark.parametrize("name", ["LSTM", "GRU", "SimpleRNN"])
def test_stateful_layers_go_on_where_they_were(name):
    stock = make(keras.layers, name, "mixed_bfloat16", stateful=True)
    layer = make(ours, name, "mixed_bfloat16", stateful=True)
    built(stock, layer)
    for _ in range(2):
        wanted, given = (
            keras.ops.convert_to_numpy(one(X)).astype("float32") for one in (stock, layer)
        )
        np.testing.assert_allclose(given, wanted, atol=2.0**-6)
    for a, b in zip(layer.states, stock.states, strict=True):
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b), atol=2.0**-6
        )
    layer.reset_state()
    assert all(not keras.ops.convert_to_numpy(s).any() for s in layer.states)


def test_float32_is_keras_own():
    stock, layer = make(keras.layers, "GRU", "float32"), make(ours, "GRU", "float32")
    built(stock, layer)
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(one(X)) for one in (stock, layer)))


@torch_only
def test_a_weight_that_changes_before_the_backward_pass_is_an_error():
    layer = make(ours, "LSTM", "mixed_bfloat16", return_sequences=False)
    built(layer)
    loss = layer(X).float().sum()
    layer.cell.recurrent_kernel.assign(layer.cell.recurrent_kernel * 2.0)
    with pytest.raises(RuntimeError, match="changed between a layer's call and the backward pass"):
        loss.backward()


@torch_only
def test_checkpointing_around_the_layer_still_sees_the_activations():
    import torch
    from torch.utils.checkpoint import checkpoint

    layer = make(ours, "LSTM", "mixed_bfloat16")
    built(layer)
    x = torch.tensor(X, requires_grad=True)
    plain = torch.autograd.grad(layer(x).float().sum(), [x])[0]
    again = torch.autograd.grad(checkpoint(layer, x, use_reentrant=False).float().sum(), [x])[0]
    assert torch.equal(plain, again)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "SimpleRNN", "RNN"])
def test_files_load_into_each_other(name, tmp_path):
    stock, layer = make(keras.layers, name, "float32"), make(ours, name, "float32")
    models = [keras.Sequential([keras.Input((STEPS, FEATURES)), one]) for one in (stock, layer)]
    for source, target in (models, models[::-1]):
        source.set_weights([RNG.random(w.shape) for w in source.weights])
        source.save_weights(tmp_path / "w.weights.h5")
        target.load_weights(tmp_path / "w.weights.h5")
        for a, b in zip(source.get_weights(), target.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
    models[1].save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert type(again.layers[0]) is getattr(ours, name)


def test_the_plan_gets_them_where_they_are_better():
    layer = make(keras.layers, "LSTM", "mixed_bfloat16")
    built(layer)
    where = ("torch", "jax")
    assert (keras_mp.layers.replacement(layer) is ours.LSTM) == (keras.backend.backend() in where)


@torch_only
def test_a_bidirectional_layer_trains_with_its_parts_replaced():
    keras.config.set_dtype_policy("mixed_bfloat16")
    both = keras.layers.Bidirectional(keras.layers.LSTM(UNITS))
    model = keras.Sequential(
        [keras.Input((STEPS, FEATURES)), keras.layers.Masking(), both, keras.layers.Dense(1)]
    )
    for part in (both.forward_layer, both.backward_layer):
        keras_mp.layers.replace_in_place(part)
    model.compile("adam", "mse")
    assert np.isfinite(model.fit(X, np.ones((4, 1)), epochs=2, verbose=0).history["loss"]).all()


@torch_only
def test_convolutional_cells_too():
    shape = (2, 6, 8, 8, 3)
    layers = [keras.layers.ConvLSTM2D, keras.layers.ConvLSTM2D, ours.ConvLSTM2D]
    policies = ["float32", "mixed_bfloat16", "mixed_bfloat16"]
    full, stock, layer = (
        made(4, 3, dtype=policy) for made, policy in zip(layers, policies, strict=True)
    )
    built(full, stock, layer, shape=shape)
    x = RNG.normal(size=shape).astype("float32")
    weight = RNG.normal(size=(2, 6, 6, 4)).astype("float32")
    right, theirs, found = (gradients(one, x, weight)[1] for one in (full, stock, layer))
    assert distance(found, right) <= 1.1 * distance(theirs, right)
    kept = [
        saved_bytes(keras.Sequential([keras.Input(shape[1:]), one]), x)
        for one in (full, stock, layer)
    ]
    assert kept[2].total <= 0.55 * kept[0].total
    assert kept[2].total < kept[1].total
