"""The guards of torch's fused step, each taken out: the check that it answers to must fail."""

import keras
import numpy as np
import pytest

import keras_mp

if keras.backend.backend() != "torch":
    pytest.skip("about the torch kernels", allow_module_level=True)

from helpers.stepping import Runner, host, make_gradients, snapshot

from keras_mp.scaling.kernels import torch_fused, torch_guard, torch_ops, torch_state

pytestmark = pytest.mark.backend


def an_overflow_changes_nothing():
    run = Runner(keras_mp.LossScaleOptimizer("adam"))
    gradients = make_gradients(np.random.default_rng(0))
    run.step(gradients)
    before = snapshot(*run.variables, *run.optimizer.inner_optimizer.variables)
    run.step(gradients, np.inf)
    return snapshot(*run.variables, *run.optimizer.inner_optimizer.variables) == before


def the_scale_stays_within_its_limits():
    optimizer = keras_mp.LossScaleOptimizer(
        "adam", min_scale=2.0**14, max_scale=2.0**16, growth_interval=1, on_exhausted="continue"
    )
    run = Runner(optimizer)
    gradients = make_gradients(np.random.default_rng(0))
    scales = []
    for bad in (None, None, None, np.inf, np.inf, np.inf, np.inf):
        run.step(gradients, bad)
        scales.append(optimizer.loss_scale)
    return max(scales) <= 2.0**16 and min(scales) >= 2.0**14


def gradients_are_divided_by_their_scale():
    run = Runner(keras_mp.LossScaleOptimizer(keras.optimizers.SGD(1.0)), shapes=((2,),))
    before = host(run.variables[0])
    run.step([np.ones(2, "float32")])
    return np.array_equal(host(run.variables[0]), before - 1)


def an_overflow_after_one_is_found_too():
    run = Runner(keras_mp.LossScaleOptimizer("adam"))
    gradients = make_gradients(np.random.default_rng(0))
    run.step(gradients, np.nan)
    run.step(gradients)
    return (run.optimizer.skipped_steps, run.optimizer.applied_steps) == (1, 1)


def statistics_survive_a_skip():
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )
    optimizer = keras_mp.LossScaleOptimizer("sgd")
    model.compile(optimizer=optimizer, loss="mse")
    optimizer.bind(model)
    x = np.ones((4, 4), "float32")
    model.train_on_batch(x, x[:, :1])
    before = snapshot(*model.non_trainable_variables)
    model.train_on_batch(np.full_like(x, np.inf), x[:, :1])
    return snapshot(*model.non_trainable_variables) == before


def never(*args, **kwargs):
    return None


MUTANTS = {
    "no check": (
        an_overflow_changes_nothing,
        [
            (torch_ops, "check_and_unscale_", never),
            (torch_fused.np, "isfinite", lambda x: True),
        ],
    ),
    "no limits": (the_scale_stays_within_its_limits, [(torch_state.torch, "clamp", never)]),
    "flag never reset": (
        an_overflow_after_one_is_found_too,
        [(torch_state.torch, "clamp", never)],
    ),
    "no guard": (statistics_survive_a_skip, [(torch_guard.TorchGuard, "settle", never)]),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_with_its_guard_out_the_check_fails(name, monkeypatch):
    check, patches = MUTANTS[name]
    assert check()
    for target, attribute, mutant in patches:
        monkeypatch.setattr(target, attribute, mutant)
    assert not check()


def test_gradients_are_unscaled_and_the_check_sees_it(monkeypatch):
    assert gradients_are_divided_by_their_scale()
    scale = torch_fused.FusedSGD.apply

    def without_scale(self, *args):
        self.state.scale.fill_(1.0)
        return scale(self, *args)

    monkeypatch.setattr(torch_fused.FusedSGD, "apply", without_scale)
    assert not gradients_are_divided_by_their_scale()
