"""An overflow is blamed on the layer nearest the loss by distance in the graph.

Not by the order of a list, nor by a way around: residual blocks and regularizers have short ones.
"""

import pytest
from helpers.planting import Branched, Deep, Regularized, planted_data
from helpers.stepping import BACKEND

import keras_mp

pytestmark = pytest.mark.backend

KINDS = [Deep, Branched, Regularized]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("guarded", [False, True] if BACKEND == "jax" else [False])
def test_in_fit_each_planted_overflow_is_blamed_on_its_layer(kind, guarded):
    class Guarded(keras_mp.GuardedTrainStep, kind):
        pass

    model = Guarded() if guarded else kind()
    optimizer = keras_mp.LossScaleOptimizer("sgd", on_exhausted="continue")
    model.compile(optimizer=optimizer, loss="mse")
    if BACKEND == "jax" and not guarded:
        optimizer.bind(model)  # a guarded model is known without it
    optimizer.watch(8)
    places = len(kind.planted)
    model.fit(*planted_data(places), batch_size=2, shuffle=False, verbose=0)
    rows = optimizer.recent_steps()
    assert [r.finite for r in rows] == [False] * places + [True]
    blamed = [optimizer.describe(row).layer for row in rows[:places]]
    assert blamed == [f"{model.name}/{layer}" for layer in kind.planted]
    assert optimizer.overflow_report().layer == blamed[-1]
