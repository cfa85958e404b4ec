"""BatchNormalization of ours: Keras' results, float32 statistics, half of the memory."""

import keras
import numpy as np
import pytest
from helpers.gradients import gradients

import keras_mp
from keras_mp.layers import BatchNormalization
from keras_mp.numerics.memory import saved_bytes

pytestmark = pytest.mark.backend

RNG = np.random.default_rng(0)
CASES = {
    "images": ((6, 5, 4, 3), -1),
    "channels first": ((6, 3, 5, 4), 1),
    "rows": ((12, 3), -1),
    "sequences": ((4, 7, 3), -1),
    "sequences, channels first": ((4, 3, 7), 1),
    "volumes": ((3, 2, 3, 2, 5), -1),
    "a middle axis": ((4, 3, 5, 2), 2),
    "one channel": ((8, 4, 1), -1),
}
HALF = ["mixed_float16", "mixed_bfloat16"]
if keras.backend.backend() == "jax":  # the formula is tensorflow's; each case compiles for seconds
    CASES = {name: CASES[name] for name in ("channels first",)}
    HALF = ["mixed_bfloat16"]


def layer_pair(shape, axis=-1, policy="float32", stock_policy="float32", **arguments):
    """Keras' layer and ours, with the same weights that are not the initial ones."""
    made = []
    for cls, chosen in (
        (keras.layers.BatchNormalization, stock_policy),
        (BatchNormalization, policy),
    ):
        layer = cls(axis=axis, dtype=chosen, **arguments)
        layer.build(shape)
        made.append(layer)
    stock, ours = made
    weights = [RNG.uniform(0.5, 1.5, w.shape).astype("float32") for w in stock.weights]
    stock.set_weights(weights)
    ours.set_weights(weights)
    return stock, ours


def host(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")), "float64")


def by_hand(x, gamma, beta, axis, epsilon=1e-3, weights=None):
    """Batch norm in float64: values, mean, variance."""
    axes = tuple(a for a in range(x.ndim) if a != axis % x.ndim)
    x = x.astype("float64")
    weights = np.ones_like(x) if weights is None else np.broadcast_to(weights, x.shape)
    total = weights.sum(axes, keepdims=True)
    mean = (x * weights).sum(axes, keepdims=True) / total
    variance = ((x - mean) ** 2 * weights).sum(axes, keepdims=True) / total
    shape = [1] * x.ndim
    shape[axis % x.ndim] = -1
    values = (x - mean) / np.sqrt(variance + epsilon) * gamma.reshape(shape) + beta.reshape(shape)
    return values, mean.ravel(), variance.ravel()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("shape", "axis"), CASES.values(), ids=CASES)
def test_float32_gives_what_keras_gives(shape, axis, training):
    stock, ours = layer_pair(shape, axis)
    x = RNG.normal(3.0, 2.0, shape).astype("float32")
    weight = RNG.normal(size=shape).astype("float32")
    wanted, wanted_gradients = gradients(stock, x, weight, training=training)
    given, given_gradients = gradients(ours, x, weight, training=training)
    np.testing.assert_allclose(given, wanted, atol=2e-5)
    for a, b in zip(given_gradients, wanted_gradients, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4)
    for a, b in zip(ours.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", HALF)
@pytest.mark.parametrize(("shape", "axis"), CASES.values(), ids=CASES)
def test_statistics_are_float32_in_half_precision(shape, axis, policy):
    dtype = policy.removeprefix("mixed_")
    _, ours = layer_pair(shape, axis, policy, momentum=0.0)
    x = keras.ops.cast(RNG.normal(60.0, 2.0, shape).astype("float32"), dtype)
    out = ours(x, training=True)
    assert keras.backend.standardize_dtype(out.dtype) == dtype
    gamma, beta = ours.gamma.numpy(), ours.beta.numpy()
    values, mean, variance = by_hand(host(x), gamma, beta, axis)
    # With momentum 0 the moving statistics are the batch's. They carry no rounding of half
    # precision, whose step at 60 is 0.03 (float16) or 0.25 (bfloat16).
    np.testing.assert_allclose(host(ours.moving_mean), mean, rtol=1e-6)
    np.testing.assert_allclose(host(ours.moving_variance), variance, rtol=1e-4)
    step = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    np.testing.assert_allclose(host(out), values, rtol=2 * step, atol=4 * step)


@pytest.mark.parametrize("policy", HALF)
def test_gradients_in_half_precision_are_as_near_to_float32_as_kerass(policy):
    shape = (8, 6, 6, 5)
    x = RNG.normal(1.0, 2.0, shape).astype("float32")
    weight = RNG.normal(size=shape).astype("float32")
    # Both start from the input as half precision has it.
    x = host(keras.ops.cast(x, policy.removeprefix("mixed_"))).astype("float32")
    reference, _ = layer_pair(shape)
    stock, ours = layer_pair(shape, policy=policy, stock_policy=policy)
    for layer in (reference, stock):
        layer.set_weights(ours.get_weights())
    _, exact = gradients(reference, x, weight, training=True)
    _, theirs = gradients(stock, x, weight, training=True)
    _, given = gradients(ours, x, weight, training=True)
    for a, b, c in zip(given, theirs, exact, strict=True):
        assert np.linalg.norm(a - c) <= 1.1 * np.linalg.norm(b - c) + 1e-6 * np.linalg.norm(c)


def test_values_near_the_end_of_float16_do_not_overflow():
    _, ours = layer_pair((64, 3), policy="mixed_float16", momentum=0.0)
    x = keras.ops.cast(RNG.choice([-60000.0, 60000.0], (64, 3)).astype("float32"), "float16")
    out, found = gradients(
        ours, host(x).astype("float32"), np.ones((64, 3), "float32"), training=True
    )
    assert np.isfinite(out).all() and all(np.isfinite(g).all() for g in found)
    np.testing.assert_allclose(host(ours.moving_variance), host(x).var(0), rtol=1e-4)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_masked_values_do_not_count(policy):
    shape = (5, 7, 3)
    stock, ours = layer_pair(shape, policy=policy, stock_policy=policy)
    x = RNG.normal(1.0, 2.0, shape).astype("float32")
    mask = RNG.random((5, 7)) < 0.6
    weight = RNG.normal(size=shape).astype("float32")
    wanted, wanted_gradients = gradients(stock, x, weight, training=True, mask=mask)
    given, given_gradients = gradients(ours, x, weight, training=True, mask=mask)
    tolerance = 1e-5 if policy == "float32" else 2.0**-7
    np.testing.assert_allclose(given, wanted, rtol=tolerance, atol=10 * tolerance)
    for a, b in zip(given_gradients, wanted_gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=20 * tolerance, atol=20 * tolerance)
    for a, b in zip(ours.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_what_is_masked_has_no_say_at_all():
    _, ours = layer_pair((2, 4, 3), momentum=0.0)
    x = RNG.normal(size=(2, 4, 3)).astype("float32")
    mask = np.array([[True, True, False, True], [True, False, True, True]])
    x[~mask] = 1e30
    ours(x, training=True, mask=keras.ops.convert_to_tensor(mask))
    np.testing.assert_allclose(host(ours.moving_mean), x[mask].mean(0), rtol=1e-5)


def test_a_mask_of_another_rank_is_refused():
    _, ours = layer_pair((5, 7, 3))
    with pytest.raises(ValueError, match=r"one dimension less.*Received: mask\.shape"):
        ours(np.ones((5, 7, 3), "float32"), mask=keras.ops.ones((5,), "bool"), training=True)


@pytest.mark.parametrize("arguments", [{"scale": False}, {"center": False}])
def test_without_scale_or_center(arguments):
    stock, ours = layer_pair((6, 4, 3), **arguments)
    x = RNG.normal(2.0, 3.0, (6, 4, 3)).astype("float32")
    for training in (True, False):
        wanted = host(stock(x, training=training))
        np.testing.assert_allclose(host(ours(x, training=training)), wanted, atol=2e-5)


def test_a_frozen_layer_normalizes_by_its_moving_statistics_and_keeps_them():
    stock, ours = layer_pair((6, 3))
    stock.trainable = ours.trainable = False
    before = ours.get_weights()
    x = RNG.normal(2.0, 3.0, (6, 3)).astype("float32")
    np.testing.assert_allclose(
        host(ours(x, training=True)), host(stock(x, training=True)), atol=1e-5
    )
    for a, b in zip(ours.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_batch_of_one_row():
    stock, ours = layer_pair((1, 3))
    x = RNG.normal(2.0, 3.0, (1, 3)).astype("float32")
    np.testing.assert_allclose(
        host(ours(x, training=True)), host(stock(x, training=True)), atol=1e-5
    )
    for a, b in zip(ours.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_renorm_computes_as_keras_does():
    stock, ours = layer_pair((6, 3), renorm=True)
    x = RNG.normal(2.0, 3.0, (6, 3)).astype("float32")
    np.testing.assert_array_equal(host(ours(x, training=True)), host(stock(x, training=True)))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tensorflow's alone")
def test_synchronized_computes_as_keras_does():
    stock, ours = layer_pair((6, 3), synchronized=True)
    x = RNG.normal(2.0, 3.0, (6, 3)).astype("float32")
    np.testing.assert_array_equal(host(ours(x, training=True)), host(stock(x, training=True)))
    np.testing.assert_array_equal(host(ours.moving_mean), host(stock.moving_mean))


def convnet(cls):
    layers = [keras.Input((16, 16, 3))]
    for filters in (16, 16, 32):
        layers += [keras.layers.Conv2D(filters, 3, padding="same"), cls(), keras.layers.ReLU()]
    return keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(4)])


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="cannot be counted there")
def test_it_keeps_half_of_what_float32_keeps():
    x = RNG.random((8, 16, 16, 3)).astype("float32")
    full = saved_bytes(convnet(keras.layers.BatchNormalization), x).activations
    keras.config.set_dtype_policy("mixed_bfloat16")
    stock = saved_bytes(convnet(keras.layers.BatchNormalization), x).activations
    ours = saved_bytes(convnet(BatchNormalization), x).activations
    assert stock / full > 0.65  # what there is to win
    assert ours / full <= 0.55


def test_files_load_into_each_other(tmp_path):
    stock, ours = convnet(keras.layers.BatchNormalization), convnet(BatchNormalization)
    for source, target in ((stock, ours), (ours, stock)):
        source.set_weights([RNG.random(w.shape) for w in source.weights])
        source.save_weights(tmp_path / "w.weights.h5")
        target.load_weights(tmp_path / "w.weights.h5")
        for a, b in zip(source.get_weights(), target.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
    ours.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert any(type(layer) is BatchNormalization for layer in again.layers)
    x = RNG.random((2, 16, 16, 3)).astype("float32")
    np.testing.assert_array_equal(host(again(x)), host(ours(x)))


def test_it_trains_compiled(backend):
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = convnet(BatchNormalization)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = RNG.random((32, 16, 16, 3)).astype("float32")
    y = (x.mean((1, 2, 3)) > np.median(x.mean((1, 2, 3)))).astype("int32")
    history = model.fit(x, y, epochs=2, batch_size=16, verbose=0).history["loss"]
    assert np.isfinite(history).all()
    moved = model.layers[1].moving_mean.numpy()
    assert np.abs(moved).max() > 0


def test_the_class_is_lazily_public():
    assert keras_mp.layers.BatchNormalization is BatchNormalization
