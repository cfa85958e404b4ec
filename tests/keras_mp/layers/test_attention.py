"""Attention of ours: finite in float16 where Keras' own is not, and equal to it elsewhere."""

import threading

import keras
import numpy as np
import pytest
from helpers.gradients import gradients
from helpers.stepping import host

import keras_mp
from keras_mp import layers as ours

pytestmark = pytest.mark.backend

RNG = np.random.default_rng(0)
SHAPE = (2, 5, 8)
KINDS = {
    "Attention": {},
    "AdditiveAttention": {},
    "MultiHeadAttention": {"num_heads": 2, "key_dim": 4},
    "GroupQueryAttention": {"head_dim": 4, "num_query_heads": 2, "num_key_value_heads": 1},
}
FEW = list(KINDS)
if keras.backend.backend() == "jax":  # each compiles for seconds
    FEW = ["Attention"]
# One row sees all, the other nothing.
MASK = np.array([[True] * 5, [False] * 5])


class OfItself(keras.layers.Layer):
    """Attention of one input to itself, by any of the layers' ways to be called."""

    def __init__(self, kind, module, policy, **arguments):
        super().__init__(dtype=policy)
        self.supports_masking = True
        self.inner = getattr(module, kind)(**KINDS[kind], **arguments, dtype=policy)

    def build(self, shape):
        one = not hasattr(self.inner, "query_dense") and "heads" not in "".join(dir(self.inner))
        self.inner.build([shape, shape]) if one else self.inner.build(shape, shape)

    def call(self, x, mask=None, causal=False, training=False):
        if isinstance(self.inner, keras.layers.Attention):
            mask = None if mask is None else [None, mask]
            return self.inner([x, x], mask=mask, use_causal_mask=causal, training=training)
        mask = None if mask is None else keras.ops.repeat(mask[:, None], 5, 1)
        return self.inner(x, x, attention_mask=mask, use_causal_mask=causal, training=training)


def trio(kind, policy, size=1.0, **arguments):
    """Keras' in float32, Keras' and ours under a policy; the same weights, ``size`` times."""
    made = [
        OfItself(kind, module, chosen, **arguments)
        for module, chosen in ((keras.layers, "float32"), (keras.layers, policy), (ours, policy))
    ]
    for layer in made:
        layer.build(SHAPE)
    weights = [size * np.asarray(w) for w in made[0].get_weights()]
    for layer in made:
        layer.set_weights(weights)
    return made


@pytest.mark.parametrize("kind", FEW)
@pytest.mark.parametrize("arguments", [{}, {"mask": MASK}, {"causal": True}], ids=str)
def test_float16_is_as_near_to_float32_as_kerass(kind, arguments):
    full, stock, layer = trio(kind, "mixed_float16")
    x = RNG.normal(size=SHAPE).astype("float32")
    weight = RNG.normal(size=SHAPE).astype("float32")
    exact, right = gradients(full, x, weight, **arguments)
    wanted, _ = gradients(stock, x, weight, **arguments)
    given, found = gradients(layer, x, weight, **arguments)
    assert np.isfinite(given).all() and all(np.isfinite(g).all() for g in found)
    if np.isfinite(wanted).all():
        assert np.abs(given - exact).max() <= 2 * np.abs(wanted - exact).max() + 2.0**-9
    np.testing.assert_allclose(given, exact, atol=0.02)
    for a, b in zip(found, right, strict=True):
        np.testing.assert_allclose(a, b, atol=0.02 * max(1.0, np.abs(b).max()))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "AdditiveAttention"])
def test_large_logits_are_finite_and_right(kind, dropout):
    size = 1.0 if kind == "Attention" else 6.0
    full, stock, layer = trio(kind, "mixed_float16", size, dropout=dropout)
    x = (RNG.normal(size=SHAPE) * (150 if kind == "Attention" else 60)).astype("float32")
    x = keras.ops.cast(keras.ops.cast(x, "float16"), "float32")
    exact, given = (keras.ops.convert_to_numpy(one(x)).astype("float64") for one in (full, layer))
    assert np.isfinite(given).all()
    if kind == "Attention":  # nothing before the logits was rounded
        np.testing.assert_allclose(given, exact, rtol=2e-3, atol=0.1)
    if kind == "Attention" or dropout:
        assert not np.isfinite(keras.ops.convert_to_numpy(stock(x))).all()  # what there is to win


@pytest.mark.parametrize("kind", FEW)
def test_bfloat16_is_keras_own(kind):
    _, stock, layer = trio(kind, "mixed_bfloat16")
    x = RNG.normal(size=SHAPE).astype("float32")
    wanted, given = (keras.ops.cast(one(x, causal=True), "float32") for one in (stock, layer))
    np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (given, wanted)))


def test_scores_can_be_asked_for():
    layer = ours.MultiHeadAttention(2, 4, dtype="mixed_float16")
    x = RNG.normal(size=SHAPE).astype("float32")
    output, scores = layer(x, x, return_attention_scores=True)
    assert {keras.backend.standardize_dtype(t.dtype) for t in (output, scores)} == {"float16"}
    total = keras.ops.sum(keras.ops.cast(scores, "float32"), -1)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(total), 1.0, atol=2e-3)
    parts = [p for p in layer._flatten_layers() if type(p).__name__ == "Softmax"]
    assert all(part.compute_dtype == "float16" for part in parts)  # as it was before


@pytest.mark.parametrize("kind", ["Attention", "MultiHeadAttention"])
def test_files_load_into_each_other(kind, tmp_path):
    def model(module):
        inputs = keras.Input(SHAPE[1:])
        options = {"use_scale": True} if kind == "Attention" else KINDS[kind]
        layer = getattr(module, kind)(**options)
        ways = [inputs, inputs]
        return keras.Model(inputs, layer(ways) if kind == "Attention" else layer(*ways))

    models = [model(keras.layers), model(ours)]
    for source, target in (models, models[::-1]):
        source.set_weights([RNG.random(w.shape) for w in source.weights])
        source.save_weights(tmp_path / "w.weights.h5")
        target.load_weights(tmp_path / "w.weights.h5")
        for a, b in zip(source.get_weights(), target.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
    models[1].save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert any(type(layer) is getattr(ours, kind) for layer in again.layers)


def test_it_trains_with_masks_from_an_embedding():
    keras.config.set_dtype_policy("mixed_float16")
    inputs = keras.Input((4,), dtype="int32")
    x = keras.layers.Embedding(10, 8, mask_zero=True)(inputs)
    x = ours.Attention()([x, x])
    x = ours.MultiHeadAttention(2, 4, dropout=0.1)(x, x)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.ops.mean(x, axis=1)))
    model.compile(keras_mp.LossScaleOptimizer("adam"), "mse", auto_scale_loss=False)
    ids = np.array([[1, 2, 0, 0], [0, 0, 0, 0]] * 4)
    losses = model.fit(ids, np.ones((8, 1)), epochs=4, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    assert model.optimizer.skipped_steps <= 1  # while the scale is being found


def test_the_plan_gets_those_that_cost_nothing():
    for kind, given in (("Attention", ours.Attention), ("MultiHeadAttention", None)):
        layer = getattr(keras.layers, kind)(**KINDS[kind])
        assert keras_mp.layers.replacement(layer) is given


def test_threads_may_call_one_layer_at_a_time_each(monkeypatch):
    layer = ours.MultiHeadAttention(2, 4, dtype="mixed_float16")
    x = RNG.normal(size=SHAPE).astype("float32")
    layer.build(SHAPE, SHAPE)
    exact = host(layer(x, x, return_attention_scores=True)[0])
    other_done = threading.Event()
    inside = threading.Event()
    softmax = layer._softmax.call

    def slow(*args, **kwargs):
        if threading.current_thread().name == "first":
            inside.set()
            other_done.wait(0.5)  # the other overtakes, if it can
        return softmax(*args, **kwargs)

    monkeypatch.setattr(layer._softmax, "call", slow)
    found, errors = {}, []

    def run():
        try:
            outputs, _ = layer(x, x, return_attention_scores=True)
            found[threading.current_thread().name] = host(outputs)
        except Exception as error:
            errors.append(error)

    first = threading.Thread(target=run, name="first")
    first.start()
    assert inside.wait(60)
    second = threading.Thread(target=run, name="second")
    second.start()
    second.join(0.4)
    other_done.set()
    for thread in (first, second):
        thread.join(60)
    assert not errors
    for values in found.values():
        np.testing.assert_array_equal(values, exact)
    assert layer._softmax.dtype_policy.name == "mixed_float16"
