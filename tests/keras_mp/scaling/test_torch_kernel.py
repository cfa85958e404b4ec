"""The torch kernels' numbers: against stock Keras, against float64, and against the reference."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_mp
from keras_mp.scaling.presets import PRESETS
from keras_mp.scaling.state import ScaleState, update

if keras.backend.backend() != "torch":
    pytest.skip("about the torch kernels", allow_module_level=True)

import torch
from helpers.stepping import Runner, apply, host, make_gradients, snapshot, stateless

from keras_mp.scaling.kernels import torch_ops

pytestmark = pytest.mark.backend

FUSED = {
    "Adam": lambda **kw: keras.optimizers.Adam(0.01, **kw),
    "AdamW": lambda **kw: keras.optimizers.AdamW(0.01, weight_decay=0.01, **kw),
    "SGD": lambda **kw: keras.optimizers.SGD(0.05, **kw),
    "momentum": lambda **kw: keras.optimizers.SGD(0.05, momentum=0.9, **kw),
    "nesterov": lambda **kw: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, **kw),
}


def in_float64(name, gradients, start):
    """The optimizer's published formula in float64 NumPy, over a list of gradients."""
    w = start.astype(np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(np.asarray(gradients, np.float64), 1):
        if name in ("Adam", "AdamW"):
            if name == "AdamW":
                w = w * (1 - 0.01 * 0.01)
            m = 0.9 * m + 0.1 * g
            v = 0.999 * v + 0.001 * g * g
            rate = 0.01 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            w = w - rate * m / (np.sqrt(v) + 1e-7)
        elif name == "SGD":
            w = w - 0.05 * g
        else:
            m = 0.9 * m - 0.05 * g
            w = w + (0.9 * m - 0.05 * g if name == "nesterov" else m)
    return w


@pytest.mark.parametrize("name", FUSED)
def test_200_fused_steps_stay_with_stock_and_no_further_from_float64(name):
    rng = np.random.default_rng(3)
    shape = (40, 25)
    gradients = [rng.normal(size=shape).astype("float32") for _ in range(200)]
    ours = Runner(keras_mp.LossScaleOptimizer(FUSED[name]()), shapes=(shape,))
    stock = Runner(keras.optimizers.LossScaleOptimizer(FUSED[name]()), shapes=(shape,))
    start = host(ours.variables[0])
    for gradient in gradients:
        ours.step([gradient])
        stock.step([gradient])
    assert ours.optimizer._kernel.fused is not None
    ours_end, stock_end = host(ours.variables[0]), host(stock.variables[0])
    size = np.abs(stock_end).max()
    assert np.abs(ours_end - stock_end).max() / size <= 1e-6
    truth = in_float64(name, gradients, start)
    ours_error, stock_error = (np.abs(end - truth).max() for end in (ours_end, stock_end))
    # "No further" up to the rounding of one step: both drift by chance.
    assert ours_error <= stock_error + np.spacing(np.float32(size))


@pytest.mark.parametrize("follow_device", [False, True], ids=["cpu", "accelerator"])
@pytest.mark.parametrize("name", FUSED)
def test_an_overflow_leaves_every_bit_and_the_next_step_is_as_if_it_had_not_been(
    name, follow_device
):
    gradients = make_gradients(np.random.default_rng(0))
    runs = [
        Runner(keras_mp.LossScaleOptimizer(FUSED[name](), scale=8, on_exhausted="continue"))
        for _ in range(2)
    ]
    for run in runs:
        run.optimizer._kernel.follow_device = follow_device
        run.step(gradients)
    run = runs[0]
    before = snapshot(*run.variables, *run.optimizer.inner_optimizer.variables)
    for bad in (np.inf, -np.inf, np.nan):
        run.step(gradients, bad)
        assert snapshot(*run.variables, *run.optimizer.inner_optimizer.variables) == before
    for run in runs:
        run.step(gradients)
    states = [snapshot(*r.variables, *r.optimizer.inner_optimizer.variables) for r in runs]
    assert states[0] == states[1]


@settings(max_examples=25, deadline=None)
@given(
    finite=st.lists(st.booleans(), min_size=1, max_size=25),
    preset=st.sampled_from(sorted(PRESETS)),
    follow_device=st.booleans(),
    fused=st.booleans(),
)
def test_every_field_follows_the_reference(finite, preset, follow_device, fused):
    inner = keras.optimizers.Adam() if fused else keras.optimizers.Adam(amsgrad=True)
    interval = {} if preset == "paper" else {"growth_interval": 3}
    optimizer = keras_mp.LossScaleOptimizer(
        inner, scale=preset, on_exhausted="continue", **interval
    )
    run = Runner(optimizer)
    optimizer._kernel.follow_device = follow_device
    gradients = make_gradients(np.random.default_rng(0))
    expected = ScaleState.initial(optimizer.config)
    for ok in finite:
        run.step(gradients, None if ok else np.inf)
        expected = update(expected, ok, optimizer.config)
        assert run.state == expected
    assert int(optimizer.iterations) == sum(finite)


def test_gradients_that_overflow_only_when_a_scale_below_one_is_undone_are_found():
    run = Runner(
        keras_mp.LossScaleOptimizer("adam", scale=2.0**-10, attribution=True), shapes=((2,),)
    )
    for own in (False, True):
        gradient = torch.tensor([1.0, 3e38])  # finite, but 2**10 times it is not
        if own:
            run.variables[0].value.grad = gradient
        before = snapshot(*run.variables)
        skipped = run.optimizer.skipped_steps
        apply(run.optimizer, [gradient], run.variables)
        assert snapshot(*run.variables) == before
        assert run.optimizer.skipped_steps == skipped + 1


def test_changes_from_outside_are_noticed():
    optimizer = keras_mp.LossScaleOptimizer("adam", growth_interval=4)
    run = Runner(optimizer)
    gradients = make_gradients(np.random.default_rng(0))
    run.step(gradients)
    optimizer.dynamic_scale.assign(2.0**10)
    optimizer.step_counter.assign(9)  # beyond the interval: a checkpoint of another setting
    run.step(gradients)
    assert optimizer.loss_scale == 2.0**11
    optimizer.inner_optimizer.iterations.assign(70)
    run.step(gradients)
    assert int(optimizer.iterations) == 71
    plain = Runner(keras.optimizers.Adam())
    for _ in range(2):
        plain.step(gradients)
    plain.optimizer.iterations.assign(70)
    plain.step(gradients)
    for ours, theirs in zip(run.variables, plain.variables, strict=True):
        np.testing.assert_allclose(host(ours), host(theirs), rtol=2e-6)


def test_a_variables_own_gradient_may_be_unscaled_but_no_other_tensor():
    run = Runner(keras_mp.LossScaleOptimizer("adam"), shapes=((300, 100),))
    scale = run.optimizer.loss_scale
    gradient = torch.full((300, 100), scale)
    apply(run.optimizer, [gradient], run.variables)
    assert bool((gradient == scale).all())
    run.variables[0].value.grad = gradient
    apply(run.optimizer, [run.variables[0].value.grad], run.variables)
    assert bool((gradient == 1).all())
    plain = Runner(keras.optimizers.Adam(), shapes=((300, 100),))
    for _ in range(2):
        plain.step([np.ones((300, 100), "float32")])
    np.testing.assert_allclose(host(run.variables[0]), host(plain.variables[0]), rtol=1e-6)


def conv_and_dense():
    keras.config.set_dtype_policy("mixed_float16")
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, kernel_initializer="ones", name="first"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dense(1, dtype="float32", name="head"),
        ]
    )


def test_a_new_state_of_the_model_is_not_undone_by_the_next_skip():
    model, optimizer = conv_and_dense(), keras_mp.LossScaleOptimizer("sgd", initial_scale=8.0)
    model.compile(optimizer=optimizer, loss="mse")
    optimizer.bind(model)
    x = np.random.default_rng(0).random((16, 8)).astype("float32")
    bad = x.copy()
    bad[0] = 6e4
    model.train_on_batch(x, x[:, :1])
    loaded = [np.full_like(host(w), 0.25) for w in model.get_layer("norm").weights]
    model.get_layer("norm").set_weights(loaded)
    model.train_on_batch(bad, x[:, :1])
    assert optimizer.skipped_steps == 1
    for weight in model.get_layer("norm").weights:
        np.testing.assert_array_equal(host(weight), np.full_like(host(weight), 0.25))


@pytest.mark.parametrize("policy, scale", [("float32", 1.0), ("mixed_float16", 2.0**15)])
def test_without_a_bound_model_the_graph_of_the_loss_decides(policy, scale):
    optimizer = keras_mp.LossScaleOptimizer("sgd")
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, dtype=policy),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )
    model.compile(optimizer=optimizer, loss="mse")
    x = np.full((8, 4), 0.01, "float32")
    model.fit(x, x[:, :1], verbose=0)
    assert optimizer.loss_scale == scale
    assert optimizer.applied_steps == 1


class Hidden(keras.Model):
    """Attributes in another order than the data's way through them."""

    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(1, dtype="float32")
        self.middle = keras.layers.Dense(8)
        self.first = keras.layers.Dense(8)

    def call(self, x):
        return self.head(self.middle(self.first(x)))


def test_the_layer_to_blame_is_the_nearest_to_the_loss_and_not_the_last_in_the_list():
    model, optimizer = Hidden(), keras_mp.LossScaleOptimizer("sgd", on_exhausted="continue")
    model.compile(optimizer=optimizer, loss="mse")
    optimizer.watch(8)
    x = np.ones((4, 4), "float32")
    model.fit(x, x[:, :1], verbose=0)
    # An overflow on the way back, at the output of the middle layer: the layers before it are hit.
    middle = model.middle.register_forward_hook(
        lambda module, args, out: out.register_hook(lambda g: g * float("inf")) and None
    )
    model.fit(x, x[:, :1], verbose=0)
    middle.remove()
    row = optimizer.recent_steps()[-1]
    said = optimizer.describe(row)
    assert not row.finite
    assert said.layer.endswith(model.middle.name)
    assert said.origin == "backward"
    assert {p.split("/")[-2] for p in said.variables} == {model.middle.name, model.first.name}


@pytest.mark.parametrize("assigned", [0.0, -1.0, np.inf, np.nan, 2.0**100])
@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_a_scale_that_somebody_assigned_is_brought_back(name, assigned):
    run = Runner(keras_mp.LossScaleOptimizer(FUSED[name]()))
    gradients = make_gradients(np.random.default_rng(0))
    run.step(gradients)
    run.optimizer.dynamic_scale.assign(assigned)
    run.step(gradients)
    run.step(gradients)
    config = run.optimizer.config
    assert config.min_scale <= run.optimizer.loss_scale <= config.max_scale
    assert all(np.isfinite(host(v)).all() for v in run.variables)


def test_complex_variables_train_and_skip_as_any():
    variable = keras.Variable(np.ones(2) + 1j, dtype="complex64")
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(0.5), scale=8.0)
    optimizer.build([variable])
    for value in (8.0, float("nan"), 8.0):
        apply(optimizer, [torch.full((2,), value, dtype=torch.complex64)], [variable])
    assert host(variable).tolist() == [1j, 1j]
    assert (optimizer.applied_steps, optimizer.skipped_steps) == (2, 1)


@pytest.mark.parametrize("how", ["eager", "stateless", "compiled"])
def test_half_precision_gradients_are_unscaled_in_float32_and_checked_in_their_dtype(how):
    variables = [keras.Variable([0.0], dtype=dtype) for dtype in ("float16", "float32")]
    optimizer = keras_mp.LossScaleOptimizer(
        keras.optimizers.SGD(1.0), initial_scale=2.0**20, master_weights=False
    )
    optimizer.build(variables)
    step = {"eager": apply, "stateless": stateless}.get(how) or torch.compile(
        lambda optimizer, *given: optimizer.apply(*given), backend="eager"
    )

    def values_after(*gradients):
        optimizer.scale_loss(torch.ones(()))
        with torch.no_grad():
            step(optimizer, [torch.tensor([g], dtype=torch.float16) for g in gradients], variables)
        return [host(v).item() for v in variables]

    # Neither this scale nor the quotient for the second variable is a float16 number.
    assert values_after(2.0**15, 2.0**-24) == [-(2.0**-5), -(2.0**-44)]
    optimizer.dynamic_scale.assign(0.5)  # 2**15 / 0.5 is none, either
    assert values_after(2.0**15, 1.0) == [-(2.0**-5), -(2.0**-44)]
    assert (optimizer.applied_steps, optimizer.skipped_steps) == (1, 1)


@pytest.mark.parametrize("size", [8, 160])  # a CPU gathers the short ones first
@pytest.mark.parametrize("name", FUSED)
def test_however_numbers_are_stored_each_meets_its_own(name, size):
    gradients = np.random.default_rng(0).normal(size=(6, size, size)).astype("float32")

    def trained(wrapped):
        # Keras' orthogonal kernels are stored transposed.
        initializer = keras.initializers.Orthogonal(seed=0)
        variable = keras.Variable(initializer=initializer, shape=(size, size))
        assert not variable.value.is_contiguous()
        optimizer = keras_mp.LossScaleOptimizer(FUSED[name]()) if wrapped else FUSED[name]()
        optimizer.build([variable])
        for i, gradient in enumerate(gradients):
            if i == 3:  # as Module.to(memory_format=...) stores it anew
                variable.value.data = variable.value.data.contiguous()
            tensor = torch.tensor(gradient * (host(optimizer.dynamic_scale) if wrapped else 1))
            variable.value.grad = tensor.t().contiguous().t() if i % 2 else tensor
            with torch.no_grad():
                if wrapped:
                    optimizer.scale_loss(torch.ones(()))
                optimizer.apply([variable.value.grad], [variable])
        return host(variable)

    np.testing.assert_allclose(trained(True), trained(False), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_variables_may_get_another_dtype_from_torch(dtype):
    def trained(optimizer):
        variable = keras.Variable(np.ones(4), dtype="float32")
        optimizer.build([variable])
        wrapped = isinstance(optimizer, keras_mp.LossScaleOptimizer)
        for i in range(4):
            if i == 2:  # as Module.half() and Module.double() do
                variable.value.data = variable.value.data.to(dtype)
            variable.value.grad = torch.full((4,), 4.0 if wrapped else 1.0).to(variable.value.dtype)
            with torch.no_grad():
                optimizer.scale_loss(torch.ones(()))
                optimizer.apply([variable.value.grad], [variable])
        assert variable.value.dtype == dtype
        return host(variable).tolist()

    ours = trained(keras_mp.LossScaleOptimizer(keras.optimizers.Adam(0.25), scale=4.0))
    np.testing.assert_allclose(ours, trained(keras.optimizers.Adam(0.25)), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", [*FUSED, "general"])
def test_torchs_default_dtype_plays_no_part(name, dtype):
    def trained():
        torch_ops.probe.cache_clear()
        run = Runner(keras_mp.LossScaleOptimizer(FUSED.get(name, keras.optimizers.RMSprop)()))
        run.optimizer.watch(4)
        run.optimizer.measure_headroom(1)
        rng = np.random.default_rng(0)
        for bad in (None, np.inf, None):
            run.step(make_gradients(rng), bad)
        return snapshot(*run.variables), run.optimizer.recent_steps(), run.optimizer.headroom()

    expected = trained()
    torch.set_default_dtype(dtype)
    try:
        assert str(trained()) == str(expected)
    finally:
        torch.set_default_dtype(torch.float32)
        torch_ops.probe.cache_clear()
