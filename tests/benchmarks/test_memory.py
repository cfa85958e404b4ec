"""The memory that `benchmarks/memory.py` promises, on its five models."""

import importlib.util
from pathlib import Path

import keras
import pytest

pytestmark = [pytest.mark.backend, pytest.mark.slow]

NAMES = ["ResNet-50", "transformer", "LSTM", "LSTM, masked", "MLP", "U-Net"]
SCRIPT = Path(__file__).parents[2] / "benchmarks/memory.py"


def benchmark():
    spec = importlib.util.spec_from_file_location("benchmark_memory", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="what is asserted is torch's")
@pytest.mark.parametrize(
    "name", ["ResNet-50", "transformer", "LSTM", "LSTM, masked", "MLP", "U-Net"]
)
def test_a_plan_keeps_at_most_55_percent_and_no_cast_of_a_weight(name):
    memory = benchmark()
    kept, _ = memory.count(memory.MODELS[name])
    full, plan, stock = kept["float32"], kept["plan"], kept["stock"]
    assert plan.activations <= memory.GOAL * full.activations
    assert not [one for one in plan.kept if one.of_weight and one.dtype != "float32"]
    assert plan.total < stock.total
    assert plan.activations >= 0.2 * full.activations  # they are counted, not hidden
