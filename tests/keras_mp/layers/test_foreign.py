"""Modules of other frameworks inside Keras models, under every policy."""

import keras
import numpy as np
import pytest
from helpers.stepping import host
from keras import ops

import keras_mp

pytestmark = pytest.mark.backend
BACKEND = keras.backend.backend()
POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
UNIT = {"float32": 2.0**-24, "mixed_float16": 2.0**-11, "mixed_bfloat16": 2.0**-8}
on_torch = pytest.mark.skipif(BACKEND != "torch", reason="the layer is torch's")


def convnet():
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 36, 8),
    )


def model_of(wrapper, policy, module=None):
    """A torch convnet between Keras layers; weights are the same for every policy."""
    keras.utils.set_random_seed(0)
    with keras_mp.policy_scope(policy):
        return keras.Sequential(
            [
                keras.Input((1, 6, 6)),
                keras.layers.Rescaling(2.0, dtype="float32"),
                wrapper(module or convnet(), output_shape=(None, 8), name="net"),
                keras.layers.Dense(2, dtype="float32"),
            ]
        )


DATA = np.random.default_rng(0).normal(size=(16, 1, 6, 6)).astype("float32")
TARGETS = np.random.default_rng(1).normal(size=(16, 2)).astype("float32")


def gradients(model):
    import torch

    loss = torch.mean((model(DATA, training=True).float() - torch.tensor(TARGETS)) ** 2) * 1024
    leaves = [v.value for v in model.trainable_variables]
    return [np.asarray(g) / 1024 for g in torch.autograd.grad(loss, leaves)]


@on_torch
@pytest.mark.parametrize("policy", POLICIES)
def test_values_and_gradients_are_those_of_float32(policy):
    exact_model = model_of(keras.layers.TorchModuleWrapper, "float32")
    model = model_of(keras_mp.layers.TorchModuleWrapper, policy)
    wrapper = model.get_layer("net")
    compute = keras.DTypePolicy(policy).compute_dtype
    outputs = wrapper(ops.convert_to_tensor(DATA), training=False)
    assert keras.backend.standardize_dtype(outputs.dtype) == compute
    assert {keras.backend.standardize_dtype(v.dtype) for v in wrapper.weights} == {"float32"}
    # Eight roundings from the input to the loss and as many back; all gradients together, as a ReLU
    # may fall to the other side of zero for one element.
    got, exact = (np.concatenate([g.ravel() for g in gradients(m)]) for m in (model, exact_model))
    assert np.linalg.norm(got - exact) <= 16 * UNIT[policy] * np.linalg.norm(exact)


@on_torch
@pytest.mark.parametrize("policy", POLICIES[1:])
def test_keras_own_raises(policy):
    with pytest.raises(RuntimeError, match="dtype"):
        model_of(keras.layers.TorchModuleWrapper, policy)(DATA)


@on_torch
@pytest.mark.parametrize("policy", POLICIES)
def test_it_trains(policy):
    model = model_of(keras_mp.layers.TorchModuleWrapper, policy)
    model.compile(keras_mp.LossScaleOptimizer(keras.optimizers.Adam(1e-2)), "mse")
    history = model.fit(DATA, TARGETS, epochs=15, batch_size=8, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0]
    assert all(np.isfinite(host(w)).all() for w in model.weights)


@on_torch
def test_a_skipped_step_leaves_the_modules_statistics_as_they_were():
    model = model_of(keras_mp.layers.TorchModuleWrapper, "mixed_float16")
    optimizer = keras_mp.LossScaleOptimizer("sgd", initial_scale=8.0, model=model)
    model.compile(optimizer, "mse")
    model.train_on_batch(DATA, TARGETS)
    module = model.get_layer("net").module
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model.train_on_batch(np.full_like(DATA, 3e38), TARGETS)
    assert optimizer.skipped_steps == 1
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            assert bool((value == before[name]).all()), name
    model.train_on_batch(DATA, TARGETS)
    assert not bool((module[1].running_mean == before["1.running_mean"]).all())


@on_torch
def test_checkpoints_are_kerass_both_ways(tmp_path):
    ours = model_of(keras_mp.layers.TorchModuleWrapper, "mixed_bfloat16")
    ours.compile("sgd", "mse")
    ours.fit(DATA, TARGETS, verbose=0)
    theirs = model_of(keras.layers.TorchModuleWrapper, "float32")
    ours.save_weights(tmp_path / "ours.weights.h5")
    theirs.load_weights(tmp_path / "ours.weights.h5")
    state, loaded = (m.get_layer("net").module.state_dict() for m in (ours, theirs))
    assert all(bool((state[name] == loaded[name]).all()) for name in state)
    again = model_of(keras_mp.layers.TorchModuleWrapper, "mixed_bfloat16")
    theirs.save_weights(tmp_path / "theirs.weights.h5")
    again.load_weights(tmp_path / "theirs.weights.h5")
    np.testing.assert_array_equal(again.predict(DATA, verbose=0), ours.predict(DATA, verbose=0))


@on_torch
def test_a_saved_model_comes_back(tmp_path):
    model = model_of(keras_mp.layers.TorchModuleWrapper, "mixed_bfloat16")
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", safe_mode=False)
    assert type(again.get_layer("net")) is keras_mp.layers.TorchModuleWrapper
    np.testing.assert_array_equal(again.predict(DATA, verbose=0), model.predict(DATA, verbose=0))


@on_torch
@pytest.mark.parametrize("policy", POLICIES[1:])
def test_a_plan_puts_it_in(policy):
    model = model_of(keras.layers.TorchModuleWrapper, "float32")
    exact = host(model(DATA, training=False))
    plan = keras_mp.plan(model, policy)
    assert plan["net"].policy == policy
    assert plan["net"].replace == "keras_mp.layers.TorchModuleWrapper"
    plan.apply(model)
    np.testing.assert_allclose(
        host(model(DATA, training=False)), exact, atol=16 * UNIT[policy] * np.abs(exact).max()
    )
    buffers = [v for v in model.non_trainable_variables if "buffer" in v.name]
    assert len(buffers) == 2
    stock = model_of(keras.layers.TorchModuleWrapper, "float32")
    kept = keras_mp.plan(stock, policy, replace=False)
    assert (kept["net"].policy, kept["net"].code) == ("float32", "foreign")


@on_torch
def test_what_comes_out_may_be_a_structure_and_whole_numbers_stay():
    import torch

    class Several(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)

        def forward(self, x, scale=1.0):
            return {"values": self.inner(x) * scale, "best": x.argmax(-1)}

    with keras_mp.policy_scope("mixed_bfloat16"):
        layer = keras_mp.layers.TorchModuleWrapper(Several())
    out = layer(ops.ones((2, 3)), scale=2.0)
    assert out["values"].dtype == torch.bfloat16
    assert out["best"].dtype == torch.int64


@pytest.mark.skipif(BACKEND != "jax", reason="elsewhere a JaxLayer needs jax beside the backend")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_jax_layer_computes_by_its_policy(policy):
    """Keras casts its float32 parameters as any layer's; a plan leaves it in float32."""
    import jax.numpy as jnp

    weights = np.random.default_rng(0).normal(size=(3, 2)).astype("float32")

    def call(params, inputs):
        return jnp.tanh(inputs @ params["w"])

    x = np.random.default_rng(1).normal(size=(5, 3)).astype("float32")
    with keras_mp.policy_scope(policy):
        layer = keras.layers.JaxLayer(call, params={"w": weights})
        out = layer(x)
    compute = keras.DTypePolicy(policy).compute_dtype
    assert keras.backend.standardize_dtype(out.dtype) == compute
    got = host(ops.cast(out, "float32"))
    np.testing.assert_allclose(got, np.tanh(x @ weights), atol=8 * UNIT[policy])
    assert keras.backend.standardize_dtype(layer.weights[0].dtype) == "float32"
