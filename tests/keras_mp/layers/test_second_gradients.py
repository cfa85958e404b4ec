"""A gradient penalty through layers of ours: the gradient of a gradient, as through Keras' own.

Silence would be the worst: torch leaves out, without a word, what cannot be differentiated twice.
"""

import keras
import numpy as np
import pytest

from keras_mp import layers as ours

pytestmark = [
    pytest.mark.backend,
    pytest.mark.skipif(keras.backend.backend() == "jax", reason="it compiles each for seconds"),
]

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 5, 8)).astype("float32")
MASK = np.ones((3, 4, 5), bool)
MASK[0, 2:] = MASK[2, 1] = False
CASES = {
    "layer": ("LayerNormalization", {}, {}),
    "rms": ("RMSNormalization", {}, {}),
    "group": ("GroupNormalization", {"groups": 4}, {}),
    "batch": ("BatchNormalization", {}, {"training": True}),
    "batch, inference": ("BatchNormalization", {}, {"training": False}),
    "batch, masked": ("BatchNormalization", {}, {"training": True, "mask": MASK}),
    "convolution": ("Conv2D", {"filters": 3, "kernel_size": 2, "activation": "tanh"}, {}),
}


def penalty(layer, call):
    """The gradients of ``sum(slope ** 2)``, with the slope that of a loss in the input."""
    weights = [v.value for v in layer.trainable_variables]

    def loss_of(x):
        out = keras.ops.cast(layer(x, **call), "float32")
        return keras.ops.sum(keras.ops.sin(out) * keras.ops.cos(1.0 + out[:, :1]))

    if keras.backend.backend() == "torch":
        import torch

        x = torch.tensor(X, requires_grad=True)
        slope = torch.autograd.grad(loss_of(x), [x], create_graph=True)[0]
        found = torch.autograd.grad((slope**2).sum(), [x, *weights], allow_unused=True)
        return [None if g is None else g.float().numpy() for g in found]
    import tensorflow as tf

    x = tf.constant(X)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = loss_of(x)
        total = tf.reduce_sum(inner.gradient(loss, x) ** 2)
    return [None if g is None else g.numpy() for g in outer.gradient(total, [x, *weights])]


@pytest.mark.parametrize(("name", "arguments", "call"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_penalty_on_the_gradient_has_keras_gradients(name, arguments, call, policy):
    layers = [getattr(module, name)(**arguments, dtype=policy) for module in (keras.layers, ours)]
    for layer in layers:
        layer.build(X.shape)
    weights = [RNG.uniform(0.5, 1.5, w.shape) for w in layers[0].get_weights()]
    wanted, given = None, None
    for layer in layers:
        layer.set_weights(weights)
        wanted, given = given, penalty(layer, call)
    assert [g is None for g in given] == [g is None for g in wanted]
    bound = 1e-3 if policy == "float32" else 0.06  # bfloat16's roundoff is 0.004
    for a, b in zip(given, wanted, strict=True):
        if b is not None:
            assert np.abs(a - b).max() <= bound * np.abs(b).max()
