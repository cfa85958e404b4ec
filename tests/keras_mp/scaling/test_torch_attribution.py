"""On torch: an overflow planted on the way back is named with its layer, wherever it is."""

import keras
import numpy as np
import pytest

import keras_mp

if keras.backend.backend() != "torch":
    pytest.skip("about the torch kernels", allow_module_level=True)

import torch

pytestmark = pytest.mark.backend
Dense = keras.layers.Dense


def deep():
    layers = [Dense(6, activation="relu", name=f"deep{i}") for i in range(5)]
    return keras.Sequential([keras.Input((4,)), *layers, Dense(1, name="head")]), [
        *(f"deep{i}" for i in range(5)),
        "head",
    ]


def branched():
    inputs = keras.Input((4,))
    stem = Dense(6, name="stem")(inputs)
    left = Dense(6, name="left2")(Dense(6, name="left1")(stem))
    right = Dense(6, name="right")(stem)
    outputs = Dense(1, name="head")(keras.layers.Add()([left, right]))
    return keras.Model(inputs, outputs), ["stem", "left1", "left2", "right", "head"]


class Subclassed(keras.Model):
    """Its attributes stand in another order than the data's way."""

    def __init__(self):
        super().__init__()
        self.head = Dense(1, name="head")
        self.inner = keras.Sequential([Dense(6, name="inner1"), Dense(6, name="inner2")])
        self.first = Dense(6, name="first")

    def call(self, x):
        return self.head(self.inner(self.first(x)))


def subclassed():
    return Subclassed(), ["first", "inner1", "inner2", "head"]


MODELS = {"deep": deep, "branched": branched, "subclassed": subclassed}
CASES = [(m, layer) for m, make in MODELS.items() for layer in make()[1]]


def find(model, name):
    from keras_mp._keras_internals import flatten_layers

    return next(layer for layer in flatten_layers(model) if layer.name == name)


def trained(name, bound):
    model, _ = MODELS[name]()
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(0.01), on_exhausted="continue")
    model.compile(optimizer=optimizer, loss="mse")
    optimizer.watch(8)
    if bound:
        optimizer.bind(model)
    x = np.random.default_rng(0).random((8, 4)).astype("float32")
    model.train_on_batch(x, x[:, :1])
    assert optimizer.skipped_steps == 0
    return model, optimizer, (x, x[:, :1])


def last_overflow(optimizer):
    row = optimizer.recent_steps()[-1]
    assert not row.finite
    return optimizer.describe(row)


@pytest.mark.parametrize("follow_device", [False, True], ids=["cpu", "accelerator"])
@pytest.mark.parametrize("name, layer", CASES)
def test_a_gradient_that_overflows_on_its_way_back(name, layer, follow_device):
    model, optimizer, batch = trained(name, bound=layer != "head")
    optimizer._kernel.follow_device = follow_device

    def plant(module, args, output):
        output.register_hook(lambda gradient: gradient * float("inf"))

    hook = find(model, layer).register_forward_hook(plant)
    model.train_on_batch(*batch)
    hook.remove()
    said = last_overflow(optimizer)
    assert said.layer.split("/")[-1] == layer
    assert said.origin == "backward"
    report = optimizer.overflow_report()
    assert (report.layer, report.origin) == (said.layer, "backward")
    assert {v.path for v in report.variables} == set(said.variables)


@pytest.mark.parametrize("name, layer", CASES)
def test_one_kernels_gradient_alone(name, layer):
    model, optimizer, batch = trained(name, bound=False)
    kernel = find(model, layer).kernel
    hook = kernel.value.register_hook(lambda gradient: gradient + float("nan"))
    model.train_on_batch(*batch)
    hook.remove()
    said = last_overflow(optimizer)
    assert said.variables == [kernel.path]
    assert said.layer.split("/")[-1] == layer
    assert said.origin == "backward"


@pytest.mark.parametrize("name", MODELS)
def test_the_origin_is_the_loss_only_where_the_loss_was_not_finite(name):
    model, optimizer, (x, y) = trained(name, bound=False)
    model.train_on_batch(np.full_like(x, np.inf), y)
    assert last_overflow(optimizer).origin == "loss"


@pytest.mark.parametrize("follow_device", [False, True], ids=["cpu", "accelerator"])
@pytest.mark.parametrize("name, layer", CASES)
def test_an_overflow_on_the_way_forward(name, layer, follow_device):
    model, optimizer, batch = trained(name, bound=True)
    optimizer._kernel.follow_device = follow_device

    def plant(module, args, output):
        return output * float("inf")

    hook = torch.nn.Module.register_forward_hook(find(model, layer), plant, prepend=True)
    model.train_on_batch(*batch)
    if follow_device:  # the first overflow makes the host look at the following steps
        assert last_overflow(optimizer).origin == "loss"
        model.train_on_batch(*batch)
    hook.remove()
    said = last_overflow(optimizer)
    assert (said.layer.split("/")[-1], said.origin) == (layer, "loss")
    report = optimizer.overflow_report()
    assert (report.layer, report.origin) == (said.layer, "loss")
    assert f"last in {said.layer}" in str(report)


def test_an_overflow_between_layers_is_the_models():
    class Between(Subclassed):
        def call(self, x):
            return super().call(x) * self.factor

    model = Between()
    model.factor = 1.0
    optimizer = keras_mp.LossScaleOptimizer("sgd", model=model)
    model.compile(optimizer=optimizer, loss="mse")
    optimizer.watch(4)
    x = np.ones((4, 4), "float32")
    model.train_on_batch(x, x[:, :1])
    model.factor = float("inf")
    model.train_on_batch(x, x[:, :1])
    assert last_overflow(optimizer).layer == model.path


def test_a_batch_that_is_not_finite_is_blamed_itself():
    model, optimizer, (x, y) = trained("deep", bound=True)
    x[3, 1] = np.nan
    model.train_on_batch(x, y)
    said = last_overflow(optimizer)
    assert (said.layer, said.origin) == ("inputs", "loss")


def test_a_loss_that_overflows_by_itself_is_the_last_layers():
    model, optimizer, (x, y) = trained("deep", bound=True)
    model.train_on_batch(x, y * float("inf"))
    said = last_overflow(optimizer)
    assert (said.layer.split("/")[-1], said.origin) == ("head", "loss")


def test_nothing_is_held_after_a_step_nor_by_a_prediction():
    model, optimizer, (x, y) = trained("deep", bound=True)
    model.train_on_batch(x, y)
    assert not optimizer._kernel.forward.passes
    model.predict(x, verbose=0)
    assert not optimizer._kernel.forward.passes


def test_without_scale_loss_the_origin_is_unknown():
    optimizer = keras_mp.LossScaleOptimizer("sgd")
    optimizer.watch(4)
    variable = keras.Variable(np.ones(3, "float32"))
    optimizer.build([variable])
    assert optimizer.loss_scale  # scaled by hand
    optimizer.apply([torch.full((3,), float("inf"))], [variable])
    assert last_overflow(optimizer).origin == "unknown"


def test_with_attribution_off_nobody_is_blamed():
    optimizer = keras_mp.LossScaleOptimizer("sgd", attribution=False)
    optimizer.watch(4)
    variable = keras.Variable(np.ones(3, "float32"))
    optimizer.build([variable])
    assert optimizer.loss_scale
    optimizer.apply([torch.full((3,), float("inf"))], [variable])
    said = last_overflow(optimizer)
    assert (said.variables, said.layer) == ([], None)
    assert optimizer.skipped_steps == 1
