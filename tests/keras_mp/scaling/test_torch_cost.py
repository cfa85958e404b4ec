"""What a step costs on torch, counted: the gate for the table in benchmarks/scaler.py."""

import keras
import numpy as np
import pytest

import keras_mp

if keras.backend.backend() != "torch":
    pytest.skip("about the torch kernels", allow_module_level=True)

import torch
import torch._dynamo
from helpers.operators import count

pytestmark = pytest.mark.backend

VARIABLES = 291


def variables(number=VARIABLES, size=8):
    return [keras.Variable(np.linspace(-1, 1, size, dtype="float32")) for _ in range(number)]


def cost_of_apply(optimizer, number=VARIABLES, own=False):
    """The count of one steady step, on tensors of the caller's or the variables' own gradients."""
    targets = variables(number)
    optimizer.build(targets)
    gradients = [torch.full((8,), 0.5) for _ in targets]

    def step():
        scale = getattr(optimizer, "scale_loss", None)
        if scale is not None:
            scale(torch.ones(()))
        if own:
            for v, g in zip(targets, gradients, strict=True):
                v.value.grad = g.clone()
        grads = [v.value.grad for v in targets] if own else gradients
        return count(lambda: optimizer.apply(grads, targets))

    with torch.no_grad():
        for _ in range(3):
            step()
        return step()


FUSED = {
    "Adam": lambda **kw: keras.optimizers.Adam(**kw),
    "AdamW": lambda **kw: keras.optimizers.AdamW(**kw),
    "SGD": lambda **kw: keras.optimizers.SGD(0.1, **kw),
    "SGD momentum": lambda **kw: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, **kw),
    "SGD decay": lambda **kw: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01, **kw),
}


@pytest.mark.parametrize("own", [False, True], ids=["tensors", "own .grad"])
@pytest.mark.parametrize("name", FUSED)
def test_a_fused_step_is_at_most_16_operators_and_asks_the_host_nothing(name, own):
    cost = cost_of_apply(keras_mp.LossScaleOptimizer(FUSED[name]()), own=own)
    assert cost.operators <= 16, cost.by_name
    assert (cost.reads, cost.scalar_copies) == (0, 0)


@pytest.mark.parametrize("name", FUSED)
def test_the_accelerators_path_keeps_the_same_bounds(name):
    optimizer = keras_mp.LossScaleOptimizer(FUSED[name](), attribution=False)
    optimizer.build(variables())
    optimizer._kernel.follow_device = True
    targets = optimizer._trainable_variables
    gradients = [torch.full((8,), 0.5) for _ in targets]
    for _ in range(3):
        optimizer.scale_loss(torch.ones(()))
        cost = count(lambda: optimizer.apply(gradients, targets))
    assert cost.operators <= 16, cost.by_name
    assert (cost.reads, cost.scalar_copies) == (0, 0)


@pytest.mark.parametrize("follow_device", [False, True], ids=["cpu", "accelerator"])
@pytest.mark.parametrize("name", FUSED)
def test_attribution_norm_ring_and_a_bound_model_stay_within_28_operators(name, follow_device):
    model = keras.Sequential(
        [keras.Input((4,))]
        + [
            layer
            for _ in range(20)
            for layer in (keras.layers.Dense(4), keras.layers.BatchNormalization())
        ]
    )
    optimizer = keras_mp.LossScaleOptimizer(FUSED[name]())
    model.compile(optimizer=optimizer, loss="mse")
    optimizer.build(model.trainable_variables)
    optimizer._kernel.follow_device = follow_device
    optimizer.watch(64)
    optimizer.bind(model)
    targets = model.trainable_variables
    gradients = [torch.full(tuple(v.shape), 0.5) for v in targets]
    loss = torch.ones(())

    def step():
        optimizer.scale_loss(loss)
        return count(lambda: optimizer.apply(gradients, targets))

    for _ in range(3):
        step()
    cost = step()
    assert cost.operators <= 28, cost.by_name
    assert (cost.reads, cost.scalar_copies) == (0, 0)
    assert optimizer.recent_steps()[-1].grad_norm > 0


GENERAL = {
    "RMSprop": lambda: keras.optimizers.RMSprop(),
    "Lion": lambda: keras.optimizers.Lion(),
    "Adagrad": lambda: keras.optimizers.Adagrad(),
    "Adam amsgrad": lambda: keras.optimizers.Adam(amsgrad=True),
    "Adam clipnorm": lambda: keras.optimizers.Adam(clipnorm=1.0),
    "Adam global_clipnorm": lambda: keras.optimizers.Adam(global_clipnorm=1.0),
    "SGD clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=1.0),
    "Adam EMA": lambda: keras.optimizers.Adam(use_ema=True),
    "AdamW accumulating": lambda: keras.optimizers.AdamW(gradient_accumulation_steps=2),
}


@pytest.mark.parametrize("name", GENERAL)
def test_any_other_optimizer_costs_at_most_5_operators_and_one_read_more(name):
    plain = cost_of_apply(GENERAL[name](), number=30)
    ours = cost_of_apply(keras_mp.LossScaleOptimizer(GENERAL[name]()), number=30)
    assert ours.operators <= plain.operators + 5
    assert ours.reads <= plain.reads + 1
    assert ours.scalar_copies <= plain.scalar_copies


@pytest.mark.parametrize("preset", ["keras", "torch", "apex", "megatron", "deepspeed", "flax"])
def test_a_preset_costs_no_more_on_a_cpu(preset):
    cost = cost_of_apply(keras_mp.LossScaleOptimizer(keras.optimizers.AdamW(), scale=preset))
    assert cost.operators <= 16, cost.by_name
    assert cost.reads == 0


def graphs_of(optimizer):
    """Graphs that torch.compile makes of ``apply``, an overflow in the middle."""
    targets = variables(3, 4)
    optimizer.build(targets)
    torch._dynamo.reset()
    graphs = []

    def backend(module, _):
        graphs.append(module)
        return module.forward

    step = torch.compile(lambda grads: optimizer.apply(grads, targets), backend=backend)
    with torch.no_grad():
        for value in (1.0, 1.0, np.inf, 1.0):
            step([torch.full((4,), float(value)) for _ in targets])
    return len(graphs), targets


@pytest.mark.filterwarnings("ignore")  # dynamo's own, about Keras
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("Adam", "SGD momentum") else pytest.mark.slow)
        for name in FUSED
    ],
)
def test_a_compiled_step_makes_no_more_graphs_than_the_plain_optimizer(name):
    plain, _ = graphs_of(FUSED[name]())
    optimizer = keras_mp.LossScaleOptimizer(FUSED[name]())
    ours, targets = graphs_of(optimizer)
    assert ours <= plain
    assert (optimizer.skipped_steps, optimizer.applied_steps) == (1, 3)
    assert all(bool(torch.isfinite(v.value).all()) for v in targets)
