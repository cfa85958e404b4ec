"""What a probe is given: batches that are none, and models whose passes differ by a cast alone."""

import numpy as np
import pytest

pytestmark = pytest.mark.backend


@pytest.fixture
def keras():
    import keras

    keras.config.set_dtype_policy("mixed_float16")
    return keras


def probe(*args, **kwargs):
    import keras_mp

    return keras_mp.probe(*args, **kwargs)


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(16, 6)).astype("float32"), rng.normal(size=(16, 2)).astype("float32")


@pytest.mark.parametrize("casts", [False, True])
def test_layers_that_only_cast_do_not_hinder_the_comparison(keras, casts):
    """Such a layer makes a tensor of its own in the float16 pass and none in the float32 pass."""
    layers = keras.layers
    keras.utils.set_random_seed(1)
    body = [layers.Dense(32, "relu"), layers.Dense(2)]
    if casts:
        body = [layers.Activation("linear"), *body, layers.Activation("linear", dtype="float32")]
    else:
        body[-1] = layers.Dense(2)
    model = keras.Sequential([keras.Input((6,)), *body])
    # Gradients of the outputs are about 2**-5 a value: at this scale most are below 2**-25.
    found = probe(model, data(), loss="mse", scale=2.0**-20)
    assert found.own_loss == pytest.approx(found.loss, rel=0.01)
    row = found.get("dense" if "dense" in [r.layer for r in found.rows] else found.rows[0].layer)
    assert row.underflow > 0.5 and found.underflow > 0.5
    assert all(r.underflow is not None for r in found.gradients if "dense" in r.layer)


@pytest.mark.parametrize(
    "batch", [(), None, (1, 2, 3, 4), (np.zeros((0, 6), "float32"), np.zeros((0, 2), "float32"))]
)
def test_a_batch_that_is_none_is_said(keras, batch):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
    with pytest.raises(
        ValueError, match=r"`batch` must be .* one sample at least. Received: batch"
    ):
        probe(model, batch, loss="mse")


def test_wrong_use_is_said(keras):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match=r"`model` must be a keras.Model. Received: model='mlp'"):
        probe("mlp", data())
    for scale in (0, -1.0, float("nan"), float("inf"), "dynamic"):
        with pytest.raises(ValueError, match=r"`scale` must be a positive finite number. Received"):
            probe(model, data(), loss="mse", scale=scale)
