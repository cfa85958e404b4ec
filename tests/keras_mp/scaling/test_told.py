"""What the optimizer says aloud: steps without ``scale_loss``, and runs that train nothing."""

import warnings

import numpy as np
import pytest
from helpers.stepping import BACKEND, Runner, make_gradients, snapshot
from keras import ops

import keras_mp
from keras_mp.scaling.state import ScaleConfig
from keras_mp.scaling.told import LossScaleExhaustedError, Teller

pytestmark = pytest.mark.backend


def test_a_step_without_scale_loss_is_said_once():
    run = Runner(keras_mp.LossScaleOptimizer("sgd"))
    gradients = [ops.ones(v.shape) for v in run.variables]
    with pytest.warns(UserWarning, match="`scale_loss`"):
        run.optimizer.apply(gradients, run.variables)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.optimizer.apply(gradients, run.variables)


@pytest.mark.parametrize("way", ["dynamic", "static"])
def test_a_lost_run_is_said_once_with_what_to_do(way):
    kwargs = {"min_scale": 1.0, "initial_scale": 2.0} if way == "dynamic" else {"scale": 8.0}
    run = Runner(keras_mp.LossScaleOptimizer("sgd", **kwargs))
    gradients = make_gradients(np.random.default_rng(0))
    gradients[1][:] = np.nan
    run.step(gradients)
    run.step(gradients)
    with pytest.warns(RuntimeWarning, match="Nothing trains: .*mixed_bfloat16"):
        for _ in range(6):
            run.step(gradients)


def test_a_lost_run_can_end_the_training():
    run = Runner(keras_mp.LossScaleOptimizer("sgd", "deepspeed", initial_scale=2.0))
    gradients = make_gradients(np.random.default_rng(0))
    before = snapshot(*run.variables)
    with pytest.raises(RuntimeError, match="Nothing trains"):
        for _ in range(10):
            run.step(gradients, np.inf)
    assert snapshot(*run.variables) == before
    assert run.optimizer.loss_scale == 1.0


WAYS = {"torch": ["eager", "accelerator"]}.get(BACKEND, ["eager", "graph"])


@pytest.mark.parametrize("how", WAYS)
def test_at_the_floor_the_hysteresis_is_used_up_before_the_training_ends(how):
    run = Runner(
        keras_mp.LossScaleOptimizer("sgd", "deepspeed", initial_scale=1.0),
        "graph" if how == "graph" else "eager",
    )
    run.optimizer._kernel.follow_device = how == "accelerator"
    run.optimizer.watch(8)
    gradients = make_gradients(np.random.default_rng(0))

    def step(bad=None):
        run.step(gradients, bad)
        if BACKEND == "jax":
            import jax

            jax.effects_barrier()  # calls from a compiled step come late
        run.optimizer.overflow_report()  # looks at the device, and tells

    step(np.inf)
    step()  # refills nothing: only growth does
    assert (run.optimizer.skipped_steps, run.optimizer.applied_steps) == (1, 1)
    with pytest.raises(Exception, match="Nothing trains: a step "):  # compiled steps wrap it
        step(np.inf)


def test_a_lost_run_can_be_let_be():
    run = Runner(keras_mp.LossScaleOptimizer("sgd", min_scale=1.0, on_exhausted="continue"))
    for _ in range(24):
        run.step(make_gradients(np.random.default_rng(0)), np.inf)
    assert run.optimizer.skipped_steps == 24


@pytest.mark.parametrize(
    ("config", "said", "not_said"),
    [
        ({}, "at its floor of 2**-14", "smaller scale"),
        ({"dynamic": False, "initial_scale": 8.0}, "static at 2**3", "floor"),
        # In force where no layer computes in float16.
        ({"initial_scale": 1.0, "min_scale": 1.0, "max_scale": 1.0}, "No layer comp", "bfloat16"),
    ],
)
def test_the_advice_fits_the_scale(config, said, not_said):
    config = ScaleConfig(**config, on_exhausted="raise")
    teller = Teller(config, lambda: "head")
    with pytest.raises(LossScaleExhaustedError) as error:
        teller.check(config.min_scale if config.dynamic else config.initial_scale, 3)
    message = str(error.value)
    assert said in message and not_said not in message and "'head'" in message
