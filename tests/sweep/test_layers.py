"""Every layer of Keras under float32, the mixed policies and plans of them, against float32."""

import dataclasses

import pytest
from keras import layers
from sweep.backends import BACKEND
from sweep.cases import ORDINARY
from sweep.known import surprises, unused
from sweep.known_layers import KNOWN_LAYERS
from sweep.layer_cases import LAYERS, NOT_LAYERS
from sweep.layers import wrong_layers

pytestmark = [
    pytest.mark.backend,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # overflows are what is looked for
]

CASES = {
    f"{name}-{case.label}" if case.label else name: case
    for name, cases in LAYERS.items()
    for case in cases
}
# On jax, forward and in ordinary magnitude: layers whose sums XLA might do in half precision.
ON_JAX = {
    *("AveragePooling1D", "AveragePooling2D", "GlobalAveragePooling1D", "GlobalAveragePooling2D"),
    *("BatchNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization"),
    *("UnitNormalization", "Softmax", "Dense", "Embedding", "Normalization", "Rescaling", "Dot"),
}


def test_every_public_layer_has_a_case_or_a_reason_why_not():
    swept = {id(getattr(layers, name)) for name in LAYERS}
    without = [
        name
        for name in dir(layers)
        if not name.startswith("_")
        and name not in NOT_LAYERS
        and id(getattr(layers, name)) not in swept
    ]
    assert without == []
    assert [name for name in (*LAYERS, *NOT_LAYERS) if not hasattr(layers, name)] == []


def test_what_is_known_is_about_cases_that_exist():
    assert unused(KNOWN_LAYERS, set(CASES)) == []


@pytest.mark.parametrize("name", CASES)
def test_layer(name):
    case = CASES[name]
    if BACKEND not in case.backends:
        pytest.skip(f"not on {BACKEND}")
    if BACKEND == "jax":
        if not set(name.split("-")) & ON_JAX or ORDINARY not in case.magnitudes:
            pytest.skip("a compilation a function: minutes")
        case = dataclasses.replace(case, magnitudes=(ORDINARY,), gradient=False)
    assert surprises(KNOWN_LAYERS, name, BACKEND, wrong_layers(case), case.magnitudes) == []
