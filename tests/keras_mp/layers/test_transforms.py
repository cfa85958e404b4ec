"""Layers of ours inside a backend's own transforms of functions, as Keras' own."""

import keras
import numpy as np
import pytest
from helpers.stepping import host
from keras import ops

from keras_mp import layers as ours

pytestmark = pytest.mark.backend

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(3, 4, 5, 8)).astype("float32")
SEQUENCES = RNG.normal(size=(3, 4, 8)).astype("float32")
MASK = np.array([[True] * 4, [True] * 2 + [False] * 2, [True] * 4])
CASES = {
    "rms": ("RMSNormalization", {}, IMAGES, {}),
    "layer, a middle axis": ("LayerNormalization", {"axis": [1, 3]}, IMAGES, {}),
    "group": ("GroupNormalization", {"groups": 4}, IMAGES, {}),
    "batch, inference": ("BatchNormalization", {}, IMAGES, {"training": False}),
    "batch, masked": ("BatchNormalization", {}, SEQUENCES, {"training": True, "mask": MASK}),
    "product": ("Dense", {"units": 3}, IMAGES, {}),
    "recurrent": ("LSTM", {"units": 3, "use_cudnn": False}, SEQUENCES, {}),
}


def functions(name, arguments, x, call):
    """What Keras' layer gives in float32, and what ours does: as functions of x alone."""
    made = [
        getattr(module, name)(**arguments, dtype=policy)
        for module, policy in ((keras.layers, "float32"), (ours, "mixed_bfloat16"))
    ]
    for layer in made:
        layer.build(x.shape)
    if name == "LayerNormalization":  # on torch Keras' own refuses a middle axis
        made[0] = ours.LayerNormalization(**arguments, dtype="float32")
        made[0].build(x.shape)
    made[1].set_weights(made[0].get_weights())
    call = {k: ops.convert_to_tensor(v) if k == "mask" else v for k, v in call.items()}

    def function(layer):
        values = [v.value for v in layer.trainable_variables]
        others = [v.value for v in layer.non_trainable_variables]

        def called(x):
            out, _ = layer.stateless_call(values, others, x, **call)
            return ops.cast(out, "float32")

        return called

    return [function(layer) for layer in made]


def weighted_sum(function):
    def total(x):
        out = function(x)
        weights = np.cos(np.arange(np.prod(out.shape))).reshape(out.shape)
        return ops.sum(out * ops.convert_to_tensor(weights, "float32"))

    return total


def assert_near(found, exact):
    found, exact = (host(v).astype("float64") for v in (found, exact))
    assert np.linalg.norm(found - exact) < 0.03 * np.linalg.norm(exact)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's
@pytest.mark.skipif(keras.backend.backend() != "torch", reason="torch's transforms")
@pytest.mark.parametrize("how", ["reverse", "forward"])
@pytest.mark.parametrize(("name", "arguments", "x", "call"), CASES.values(), ids=CASES)
def test_torchs_transforms(name, arguments, x, call, how):
    import torch
    from torch.autograd import forward_ad

    x = torch.tensor(x)
    direction = torch.sin(torch.arange(x.numel()) * 1.3).reshape(x.shape)

    def transformed(function):
        if how == "reverse":
            return torch.func.grad(weighted_sum(function))(x)
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(function(forward_ad.make_dual(x, direction))).tangent

    exact, found = map(transformed, functions(name, arguments, x, call))
    assert_near(found, exact)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="jax' transforms")
@pytest.mark.parametrize("how", ["jit", "checkpoint"])
@pytest.mark.parametrize("case", ["batch, inference", "batch, masked", "rms", "product"])
def test_jaxs_gradient_of_what_another_transform_traced(case, how):
    import jax

    name, arguments, x, call = CASES[case]
    exact, found = functions(name, arguments, x, call)
    traced = getattr(jax, how)(weighted_sum(found))
    assert_near(jax.grad(traced)(x), jax.grad(weighted_sum(exact))(x))
