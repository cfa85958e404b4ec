"""Normalization and Rescaling of ours: raw numbers in float32, what comes out in half precision."""

import keras
import numpy as np
import pytest

from keras_mp import layers as ours

pytestmark = pytest.mark.backend

RAW = np.array([[100000.0, 2023.0], [120000.0, 2024.0], [140000.0, 2025.0]], "float32")


def host(tensor):
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))


def by_hand(mean, variance):
    return (RAW.astype("float64") - mean) / np.sqrt(variance)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float32"])
@pytest.mark.parametrize("how", ["given", "adapted", "adapted to batches"])
def test_large_features_are_normalized(policy, how):
    mean, variance = RAW.astype("float64").mean(0), RAW.astype("float64").var(0)
    if how == "given":
        layer = ours.Normalization(mean=mean, variance=variance, dtype=policy)
        layer.build(RAW.shape)
    else:
        layer = ours.Normalization(dtype=policy)
        layer.adapt(RAW if how == "adapted" else [RAW, RAW])
    out = layer(RAW)
    half = policy.removeprefix("mixed_")
    assert keras.backend.standardize_dtype(out.dtype) == half == layer.compute_dtype
    np.testing.assert_allclose(host(out), by_hand(mean, variance), rtol=2.0**-7, atol=2e-3)


def test_keras_own_does_not():
    """What the layer is for."""
    layer = keras.layers.Normalization(mean=RAW.mean(0), variance=RAW.var(0), dtype="mixed_float16")
    assert not np.isfinite(host(layer(RAW))).all()


def test_it_turns_back_and_follows_its_axis():
    x = np.random.default_rng(0).normal(5.0, 3.0, (4, 3, 2)).astype("float32")
    for axis in (-1, 1, None, (1, 2)):
        stock = keras.layers.Normalization(axis=axis)
        layer = ours.Normalization(axis=axis)
        for one in (stock, layer):
            one.adapt(x)
        np.testing.assert_allclose(host(layer(x)), host(stock(x)), rtol=1e-5, atol=1e-6)
    back = ours.Normalization(mean=2.0, variance=9.0, axis=None, invert=True)
    np.testing.assert_allclose(host(back(x)), 2.0 + 3.0 * x, rtol=1e-6)


def test_a_layer_that_was_not_adapted_to_anything_says_so():
    with pytest.raises(ValueError, match="build"):
        ours.Normalization(mean=1.0, variance=1.0, axis=None).call(RAW)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_large_values_are_rescaled(policy):
    layer = ours.Rescaling(1e-5, offset=-1.0, dtype=policy)
    out = layer(RAW)
    assert keras.backend.standardize_dtype(out.dtype) == policy.removeprefix("mixed_")
    np.testing.assert_allclose(host(out), RAW * 1e-5 - 1.0, atol=2.0**-8)
    channels = ours.Rescaling([1e-5, 1e-3], dtype=policy)
    np.testing.assert_allclose(host(channels(RAW)), RAW * [1e-5, 1e-3], rtol=2.0**-7)


def test_whole_numbers_beyond_2048_stay_apart():
    years = np.array([[2049], [2050], [2051]], "int32")
    out = host(ours.Rescaling(1.0, offset=-2049.0, dtype="mixed_float16")(years))
    np.testing.assert_array_equal(out, [[0.0], [1.0], [2.0]])


def test_files_load_into_each_other(tmp_path):
    def model(module):
        layer = module.Normalization(dtype="mixed_float16")
        layer.adapt(RAW)
        scaled = module.Rescaling(2.0, dtype="mixed_float16")
        return keras.Sequential([keras.Input((2,)), layer, scaled, keras.layers.Dense(1)])

    stock, mine = model(keras.layers), model(ours)
    for source, target in ((stock, mine), (mine, stock)):
        source.save_weights(tmp_path / "w.weights.h5")
        target.load_weights(tmp_path / "w.weights.h5")
    mine.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert type(again.layers[0]) is ours.Normalization
    np.testing.assert_array_equal(host(again(RAW)), host(mine(RAW)))
    assert np.isfinite(host(mine(RAW))).all()
