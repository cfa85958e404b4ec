"""Casts that jax makes again for the gradient: what is kept, what is computed, what moves on."""

import keras
import numpy as np
import pytest
from helpers.cells import Counting
from helpers.gradients import gradients

from keras_mp import layers as ours
from keras_mp.numerics.memory import saved_bytes

pytestmark = [
    pytest.mark.backend,
    pytest.mark.skipif(keras.backend.backend() != "jax", reason="jax decides by a policy"),
]

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 7, 5)).astype("float32")
MASK = np.ones((4, 7), bool)
MASK[1, 5:] = MASK[2, 3:6] = MASK[3] = False
HALF = "mixed_bfloat16"

RECURRENT = {
    "LSTM, mask": (lambda module: module.LSTM(6, dtype=HALF), True),
    "GRU, recurrent dropout": (
        lambda module: module.GRU(6, dropout=0.2, recurrent_dropout=0.3, seed=1, dtype=HALF),
        False,
    ),
    "SimpleRNN, unrolled": (lambda module: module.SimpleRNN(6, unroll=True, dtype=HALF), False),
    "RNN of a cell": (lambda module: module.RNN(keras.layers.GRUCell(6, dtype=HALF)), False),
}


@pytest.mark.parametrize(("make", "masked"), RECURRENT.values(), ids=RECURRENT)
def test_recurrent_layers_compute_what_kerass_do_and_keep_no_cast(make, masked):
    stock, layer = make(keras.layers), make(ours)
    for one in (stock, layer):
        one.build(X.shape)
    layer.set_weights(stock.get_weights())
    weight = RNG.normal(size=(4, 6)).astype("float32")
    mask = {"mask": MASK} if masked else {}
    (wanted, theirs), (given, found) = (
        gradients(one, X, weight, training=True, **mask) for one in (stock, layer)
    )
    np.testing.assert_array_equal(given, wanted)
    for a, b in zip(found, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    before = [keras.layers.Masking()] if masked else []
    kept = [
        saved_bytes(keras.Sequential([keras.Input(X.shape[1:]), *before, one]), X)
        for one in (stock, layer)
    ]
    assert kept[0].weight_casts > 0  # what there is to win
    assert kept[1].weight_casts == 0
    assert kept[1].activations <= kept[0].activations


def test_what_a_cell_keeps_for_itself_moves_on():
    """Under ``jax.checkpoint`` what a cell assigns would be a value that means nothing outside."""
    found = []
    for module in (keras.layers, ours):
        layer = module.RNN(Counting(6, dtype=HALF), unroll=True, dtype=HALF)
        layer.build(X.shape)
        gradients(layer, X, np.ones((4, 6), "float32"), training=True)
        seed = layer.cell.drop.seed_generator.state
        found.append((float(layer.cell.count), keras.ops.convert_to_numpy(seed).tolist()))
    assert found[0] == found[1]
    assert found[1][0] == X.shape[1]


def programs(layer, x):
    """The traced programs of a layer's gradient, and of its forward-mode derivative."""
    import jax

    weights = [v.value for v in layer.trainable_variables]

    def loss(weights, x):
        out = layer.stateless_call(weights, [], x)[0]
        return keras.ops.sum(keras.ops.cast(out, "float32") ** 2)

    def forward(weights, x):
        return jax.jvp(lambda w: loss(w, x), (weights,), (weights,))[1]

    return [str(jax.make_jaxpr(f)(weights, x)) for f in (jax.grad(loss), forward)], loss, weights


@pytest.mark.parametrize("name", ["Dense", "Conv1D"])
def test_nothing_that_costs_time_is_computed_twice(name):
    import jax

    shape = {"Dense": (6,), "Conv1D": (6, 3)}[name]
    layers = [
        getattr(module, name)(*shape, activation="gelu", dtype=HALF)
        for module in (keras.layers, ours)
    ]
    for layer in layers:
        layer.build(X.shape)
    layers[1].set_weights(layers[0].get_weights())
    (stock, _, _), (made, loss, weights) = (programs(layer, X) for layer in layers)
    for operation in ("dot_general", "conv_general_dilated", " erf", " exp", "tanh"):
        assert [p.count(operation) for p in made] == [p.count(operation) for p in stock]
    # Twice differentiable, as Keras' own is.
    second = jax.grad(lambda x: keras.ops.sum(jax.grad(loss, argnums=1)(weights, x) ** 2))(X)
    assert np.isfinite(second).all() and np.any(second)


def test_a_compiled_model_trains():
    keras.config.set_dtype_policy(HALF)
    model = keras.Sequential(
        [keras.Input(X.shape[1:]), ours.Dense(6), ours.GRU(4, dropout=0.3), ours.Dense(1)]
    )
    model.compile("adam", "mse", jit_compile=True)
    losses = model.fit(X, np.ones((4, 1)), epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
