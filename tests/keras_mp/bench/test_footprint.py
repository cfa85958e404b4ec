"""Bytes by arithmetic: against hand counts, against Keras itself, and as the command shows them."""

import json

import pytest

from keras_mp.bench.footprint import PARTS, RECIPES, SLOTS, footprint, largest_batch
from keras_mp.cli import main

M = 1_000_000


# Counted by hand from section 3.1 of the paper: half-precision weights, gradients and activations,
# a float32 master copy; Adam's two slots in float32.
@pytest.mark.parametrize(
    ("recipe", "parts"),
    [
        ("float32", (4, 0, 4, 8, 4 * 64)),
        ("paper", (2, 4, 2, 8, 2 * 64)),
        ("mixed", (2, 4, 4, 8, 2 * 64)),
        ("half", (2, 0, 2, 4, 2 * 64)),
    ],
)
def test_bytes_a_parameter(recipe, parts):
    found = footprint(M, M, 64, recipe, slots=2)
    assert tuple(found.parts().values()) == tuple(part * M for part in parts)
    assert tuple(found.parts()) == PARTS
    assert found.total == sum(parts) * M


def test_the_papers_two_sentences_about_memory():
    """Weights take 50 % more with a master copy; the whole is about halved by the activations."""
    full, paper = (footprint(M, 50 * M, 32, name, slots=0) for name in ("float32", "paper"))
    assert (paper.weights + paper.masters) / full.weights == 1.5
    assert paper.total / full.total == pytest.approx(0.5, abs=0.01)


def test_without_activations_mixed_precision_saves_nothing():
    full, mixed = (footprint(100 * M, 1, 1, name) for name in ("float32", "mixed"))
    assert mixed.total > full.total


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_largest_batch_is_the_last_that_fits(recipe):
    budget = 8e9
    batch = largest_batch(budget, 25 * M, 10 * M, recipe, headroom=0.1)
    assert footprint(25 * M, 10 * M, batch, recipe).total <= 0.9 * budget
    assert footprint(25 * M, 10 * M, batch + 1, recipe).total > 0.9 * budget
    assert largest_batch(1000, 25 * M, 10 * M, recipe) == 0


def test_wrong_values_are_named():
    with pytest.raises(ValueError, match="Received: recipe='fp8'"):
        footprint(1, 1, 1, "fp8")
    with pytest.raises(ValueError, match="Received: parameters=0"):
        footprint(0, 1, 1, "float32")
    with pytest.raises(ValueError, match="Received: slots=-1"):
        footprint(1, 1, 1, "float32", slots=-1)
    for part in ("parameters", "activations", "batch"):
        with pytest.raises(ValueError, match=f"at least 1. Received: {part}=0.4"):
            footprint(
                **({"parameters": 1, "activations": 1, "batch": 1} | {part: 0.4}), recipe="half"
            )


def test_the_columns_stay_apart_whatever_stands_in_them(capsys):
    assert main(["estimate", "--parameters", "1e30", "--activations", "1e30"]) == 0
    head, row = capsys.readouterr().out.splitlines()[:2]
    assert len(row.split()) == 1 + 2 * len(head.split()[2:])  # a number and a unit each


@pytest.mark.backend
@pytest.mark.parametrize("name", sorted(SLOTS))
def test_keras_optimizers_keep_as_many_slots(name):
    import keras

    optimizer = keras.optimizers.SGD(momentum=0.9) if name == "momentum" else None
    optimizer = optimizer or keras.optimizers.get(name)
    variable = keras.Variable(keras.ops.ones((64, 64)))
    optimizer.build([variable])
    kept = sum(v.value.shape[0] == 64 for v in optimizer.variables if len(v.shape) == 2)
    assert kept == SLOTS[name]


@pytest.mark.backend
@pytest.mark.parametrize(
    ("recipe", "policy"),
    [("float32", "float32"), ("mixed", "mixed_bfloat16"), ("half", "bfloat16")],
)
def test_keras_keeps_its_variables_and_slots_in_these_bytes(recipe, policy):
    import keras

    keras.config.set_dtype_policy(policy)
    layer = keras.layers.Dense(8)
    layer.build((None, 16))
    optimizer = keras.optimizers.Adam()
    optimizer.build(layer.trainable_variables)
    of = RECIPES[recipe]
    size = {"float32": 4, "bfloat16": 2}
    stored = size[layer.kernel.dtype]
    computed = size[layer.compute_dtype]
    assert computed == of.weights == of.activations
    assert stored == (of.masters or of.weights)
    slots = [v for v in optimizer.variables if tuple(v.shape) == (16, 8)]
    assert {size[str(v.dtype)] for v in slots} == {of.slots}


def test_the_command_prints_a_table_and_bars(capsys):
    arguments = ["estimate", "--parameters", "25.6M", "--activations", "11M"]
    arguments += ["--batch-sizes", "32,128", "--memory", "16GB"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    # 25.6e6 * (4 + 4 + 8) + 11e6 * 32 * 4 bytes, and the same at 128
    assert "1.8 GB" in out and "6.0 GB" in out
    bars = [line for line in out.splitlines() if "·····" in line]
    assert len(bars) == 8
    longest = max(bars, key=lambda line: line.count("·"))
    assert longest.startswith("128 float32")
    assert "largest batch within 16.0 GB" in out
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["memory"]["32"]["float32"]["total"] == 25_600_000 * 16 + 11_000_000 * 32 * 4
    assert set(found["largest_batch"]) == set(RECIPES)


@pytest.mark.parametrize(
    ("text", "size"), [("16GB", 16e9), ("16g", 16e9), ("16 GiB", 2**34), ("512MiB", 2**29)]
)
def test_a_size_may_be_of_either_kind(text, size):
    from keras_mp.cli import build_parser

    assert build_parser().parse_args(["estimate", "--memory", text]).memory == size


def test_where_not_one_sample_fits_it_says_none(capsys):
    few = ["estimate", "--parameters", "1M", "--activations", "1M", "--memory", "1MB"]
    assert main(few) == 0
    assert "float32 none, mixed policy none" in capsys.readouterr().out


def test_without_unicode_the_bars_are_letters(capsys, monkeypatch):
    import io
    import sys

    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", stream)
    main(["estimate", "--parameters", "1M", "--activations", "1M"])
    stream.flush()
    out = stream.buffer.getvalue().decode("ascii")
    assert "w weights" in out and "aaaaa" in out
