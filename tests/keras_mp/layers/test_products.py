"""Layers of products of ours: Keras' numbers to the bit, and no cast of a weight kept."""

import keras
import numpy as np
import pytest
from helpers.gradients import gradients

import keras_mp
from keras_mp import layers as ours
from keras_mp.numerics.memory import saved_bytes

pytestmark = pytest.mark.backend

TORCH = keras.backend.backend() == "torch"
TENSORFLOW = keras.backend.backend() == "tensorflow"
torch_only = pytest.mark.skipif(not TORCH, reason="written in torch")
ours_only = pytest.mark.skipif(TENSORFLOW, reason="there they are Keras' own")
RNG = np.random.default_rng(0)
ROWS, SEQUENCES, IMAGES, VOLUMES = (3, 7), (2, 9, 4), (2, 9, 9, 4), (2, 5, 5, 5, 4)
CASES = {
    "Dense": ("Dense", (6,), {}, ROWS),
    "Dense, relu": ("Dense", (6,), {"activation": "relu"}, SEQUENCES),
    "Dense, lora": ("Dense", (6,), {"lora_rank": 2}, ROWS),
    "EinsumDense": ("EinsumDense", ("abc,cd->abd", (None, 5)), {"bias_axes": "d"}, SEQUENCES),
    "Conv1D": ("Conv1D", (6, 3), {}, SEQUENCES),
    "Conv2D": ("Conv2D", (6, 3), {"padding": "same", "strides": 2}, IMAGES),
    "Conv2D, 1x1": ("Conv2D", (8, 1), {}, IMAGES),
    "Conv2D, groups": ("Conv2D", (6, 3), {"groups": 2}, IMAGES),
    "Conv2D, channels first": ("Conv2D", (6, 3), {"data_format": "channels_first"}, IMAGES),
    "Conv3D": ("Conv3D", (6, 3), {}, VOLUMES),
    "Conv1DTranspose": ("Conv1DTranspose", (6, 3), {}, SEQUENCES),
    "Conv2DTranspose": ("Conv2DTranspose", (6, 3), {"strides": 2, "padding": "same"}, IMAGES),
    "Conv3DTranspose": ("Conv3DTranspose", (6, 3), {}, VOLUMES),
    "DepthwiseConv1D": ("DepthwiseConv1D", (3,), {}, SEQUENCES),
    "DepthwiseConv2D": ("DepthwiseConv2D", (3,), {"depth_multiplier": 2}, IMAGES),
    "SeparableConv1D": ("SeparableConv1D", (5, 3), {}, SEQUENCES),
    "SeparableConv2D": ("SeparableConv2D", (5, 3), {}, IMAGES),
}
# jax compiles each for seconds: one of each way that a weight's cast takes to its product.
FEW = ("Dense", "EinsumDense", "Conv2D", "Conv2D, groups", "DepthwiseConv2D", "SeparableConv2D")
TRIED = {name: CASES[name] for name in (FEW if keras.backend.backend() == "jax" else CASES)}


class AfterAnother(keras.Model):
    """The layer after one whose result wants a gradient."""

    def __init__(self, layer, features):
        super().__init__()
        self.before = keras.layers.Dense(features, dtype=layer.dtype_policy, name="before")
        self.layer = layer

    def call(self, x):
        return self.layer(self.before(x))


def copies_of_weights(layer, shape):
    kept = saved_bytes(AfterAnother(layer, shape[-1]), np.ones(shape, "float32")).kept
    return sum(one.nbytes for one in kept if one.of_weight and one.layer == layer.name)


def pair(name, arguments, options, shape):
    made = []
    for module in (keras.layers, ours):
        layer = getattr(module, name)(*arguments, dtype="mixed_bfloat16", **options)
        layer.build(shape)
        made.append(layer)
    made[0].set_weights([RNG.normal(size=w.shape) for w in made[0].get_weights()])
    made[1].set_weights(made[0].get_weights())
    return made


@ours_only
@pytest.mark.parametrize(("name", "arguments", "options", "shape"), TRIED.values(), ids=TRIED)
def test_it_computes_what_keras_computes_and_keeps_no_cast(name, arguments, options, shape):
    stock, layer = pair(name, arguments, options, shape)
    x = RNG.normal(size=shape).astype("float32")
    weight = RNG.normal(size=stock(x).shape).astype("float32")
    wanted, theirs = gradients(stock, x, weight)
    given, found = gradients(layer, x, weight)
    np.testing.assert_array_equal(given, wanted)
    for a, b in zip(found, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    assert copies_of_weights(stock, shape) > 0  # what there is to win
    assert copies_of_weights(layer, shape) == 0


@ours_only
def test_a_layer_that_is_used_twice_makes_its_cast_again_for_each():
    stock, layer = pair("Dense", (7,), {}, ROWS)
    x = RNG.normal(size=ROWS).astype("float32")
    weight = RNG.normal(size=ROWS).astype("float32")

    class Twice(keras.layers.Layer):
        def __init__(self, inner):
            super().__init__(dtype="mixed_bfloat16")
            self.inner = inner

        def call(self, x):
            return self.inner(self.inner(x))

    results = []
    for inner in (stock, layer):
        twice = Twice(inner)
        twice.build(ROWS)
        results.append(gradients(twice, x, weight))
    for a, b in zip(results[1][1], results[0][1], strict=True):
        np.testing.assert_array_equal(a, b)


@torch_only
def test_the_graph_can_be_gone_through_twice():
    import torch

    _, layer = pair("Dense", (6,), {}, ROWS)
    x = torch.ones(ROWS, requires_grad=True)
    loss = layer(x).float().sum()
    first = torch.autograd.grad(loss, [x], retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, [x])[0])


@torch_only
def test_other_hooks_see_the_activations_and_not_the_casts():
    import torch

    _, layer = pair("Dense", (6,), {}, ROWS)
    seen = []
    x = torch.ones(ROWS, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: seen.append(tuple(tensor.shape)) or ("packed", tensor),
        lambda packed: packed[1],
    ):
        loss = layer(x).float().sum()
    assert ROWS in seen and (7, 6) not in seen
    loss.backward()


@torch_only
def test_a_weight_that_changes_before_the_backward_pass_is_an_error():
    import torch

    _, layer = pair("Dense", (6,), {}, ROWS)
    loss = layer(torch.ones(ROWS, requires_grad=True)).float().sum()
    layer.kernel.assign(layer.kernel * 2.0)
    with pytest.raises(RuntimeError, match=r"changed between.*variable=dense"):
        loss.backward()


@torch_only
def test_torchs_inference_mode():
    import torch

    stock, layer = pair("Dense", (6,), {}, ROWS)
    with torch.inference_mode():
        x = torch.ones(ROWS)
        assert torch.equal(layer(x), stock(x))
        x = torch.ones((8, 5))
        assert torch.equal(*(end(x) for end in endings()))


@torch_only
def test_frozen_weights_and_stateless_scopes():
    import torch

    stock, layer = pair("Dense", (6,), {}, ROWS)
    x = torch.ones(ROWS, requires_grad=True)
    results = []
    for one in (stock, layer):
        mapping = [(v, v.value * 3.0) for v in one.trainable_variables]
        with keras.StatelessScope(mapping):
            results.append(one(x))
    assert torch.equal(*results) and not torch.equal(results[1], layer(x))
    values = [v.value for v in layer.trainable_variables]
    assert torch.equal(*(one.stateless_call(values, [], x)[0] for one in (stock, layer)))
    layer.trainable = stock.trainable = False
    found = [torch.autograd.grad(one(x).float().sum(), [x])[0] for one in (stock, layer)]
    assert torch.equal(*found)


@torch_only
def test_inside_torchs_compiler_it_is_keras_own():
    import torch

    _, layer = pair("Dense", (6,), {}, ROWS)
    x = torch.ones(ROWS)
    compiled = torch.compile(lambda x: layer(x), backend="eager", fullgraph=False)
    assert torch.equal(compiled(x), layer(x))


@pytest.mark.parametrize("name", ["Dense", "Conv2D"])
def test_files_load_into_each_other(name, tmp_path):
    shape = {"Dense": (7,), "Conv2D": (9, 9, 4)}[name]
    arguments = {"Dense": (6,), "Conv2D": (6, 3)}[name]
    models = [
        keras.Sequential([keras.Input(shape), getattr(module, name)(*arguments)])
        for module in (keras.layers, ours)
    ]
    for source, target in (models, models[::-1]):
        source.set_weights([RNG.random(w.shape) for w in source.weights])
        source.save_weights(tmp_path / "w.weights.h5")
        target.load_weights(tmp_path / "w.weights.h5")
        for a, b in zip(source.get_weights(), target.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
    models[1].save(tmp_path / "m.keras")
    assert type(keras.models.load_model(tmp_path / "m.keras").layers[0]) is getattr(ours, name)


def test_they_replace_keras_own_where_they_are_better():
    layer = keras.layers.Dense(3)
    layer.build((2, 4))
    assert (keras_mp.layers.replacement(layer) is ours.Dense) != TENSORFLOW


@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize`")
@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
@pytest.mark.parametrize("name", ["Dense", "EinsumDense"])
def test_they_are_quantized_as_keras_own(name, mode, tmp_path):
    """Keras refuses subclasses, with a warning: a planned model would stay as it is."""
    arguments = {"Dense": (6,), "EinsumDense": ("abc,cd->abd", (None, 6))}[name]
    x = RNG.normal(size=(2, 9, 8)).astype("float32")
    results = []
    for module in (keras.layers, ours):
        layer = getattr(module, name)(*arguments, dtype="mixed_bfloat16")
        model = keras.Sequential([keras.Input((9, 8)), layer])
        model.set_weights([np.cos(np.arange(w.size)).reshape(w.shape) for w in model.get_weights()])
        model.quantize(mode)
        assert layer.quantization_mode == mode
        results.append(model(x))
    wanted, given = (keras.ops.convert_to_numpy(keras.ops.cast(y, "float32")) for y in results)
    np.testing.assert_array_equal(given, wanted)
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert type(again.layers[0]) is getattr(ours, name)
    assert again.layers[0].quantization_mode == mode


def test_it_trains(backend):
    keras.config.set_dtype_policy("mixed_bfloat16")
    layers = [keras.Input((8, 8, 2)), ours.Conv2D(4, 3), keras.layers.Flatten(), ours.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse")
    x, y = RNG.random((16, 8, 8, 2)), RNG.random((16, 1))
    losses = model.fit(x, y, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


class Ending(keras.Model):
    """A half-precision layer and a float32 one, as a plan ends a model."""

    def __init__(self, module):
        super().__init__()
        self.body = keras.layers.Dense(64, activation="relu", dtype="mixed_bfloat16")
        self.end = module.Dense(3, dtype="float32")

    def call(self, x):
        return self.end(self.body(x))


def endings():
    models = [Ending(keras.layers), Ending(ours)]
    for model in models:
        model(np.ones((8, 5), "float32"))
    models[1].set_weights(models[0].get_weights())
    return models


@ours_only
def test_a_float32_end_keeps_its_half_precision_input_and_not_a_copy():
    x = np.ones((8, 5), "float32")
    stock, model = (saved_bytes(one, x) for one in endings())
    assert stock.by_dtype["float32"] == 4 * 8 * 64
    assert "float32" not in model.by_dtype
    # The body's own result, half of the copy's bytes, is there anyway on torch.
    assert stock.total - model.total == (4 if TORCH else 2) * 8 * 64


def test_a_float32_end_computes_what_keras_computes():
    x = RNG.normal(size=(8, 5)).astype("float32")
    weight = RNG.normal(size=(8, 3)).astype("float32")
    (wanted, theirs), (given, found) = (gradients(one, x, weight) for one in endings())
    np.testing.assert_array_equal(given, wanted)
    for a, b in zip(found, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_a_float32_layer_takes_what_keras_takes(dtype):
    stock, layer = keras.layers.Dense(3), ours.Dense(3)
    for one in (stock, layer):
        one.build((2, 5))
    layer.set_weights(stock.get_weights())
    x = keras.ops.cast(RNG.integers(0, 9, (2, 5)), dtype)
    given, wanted = layer(x), stock(x)
    assert given.dtype == wanted.dtype
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(given), keras.ops.convert_to_numpy(wanted)
    )


@torch_only
def test_a_convolution_keeps_its_input_and_not_a_copy_in_another_order():
    def model(module):
        chain = [module.Conv2D(8, 3, padding="same") for _ in range(2)]
        return keras.Sequential(
            [keras.Input((8, 8, 4)), chain[0], keras.layers.ReLU(), chain[1], keras.layers.ReLU()]
        )

    keras.config.set_dtype_policy("mixed_bfloat16")
    stock, kept = (
        saved_bytes(model(module), np.ones((2, 8, 8, 4))) for module in (keras.layers, ours)
    )
    rows = 2 * 8 * 8
    # The input, and what each relu gave, which is the next convolution's input too.
    assert kept.total == 2 * rows * (4 + 8 + 8)
    assert stock.activations == kept.total + 2 * rows * 8  # once more, in Keras' order
