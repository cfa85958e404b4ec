"""The demo's task end to end: what it is made of, and that it shows the need for loss scaling."""

import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).parents[2] / "examples/digit_heatmap.py"


@pytest.fixture(scope="module")
def task():
    spec = importlib.util.spec_from_file_location("digit_heatmap", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def scenes(task):
    rng = np.random.default_rng(1)
    (digits, classes), _ = task.load_digits(rng)
    return task.make_scenes(digits, classes, 300, rng)


def test_training_and_test_digits_are_other_ones(task):
    (train, _), (test, _) = task.load_digits(np.random.default_rng(0))
    seen = {image.tobytes() for image in train}
    # 5,000 digits hold a few twins once they are shrunk; the rest must be new.
    assert np.mean([image.tobytes() in seen for image in test]) < 0.01
    assert (len(train), len(test)) == (4000, 1000)


def test_scenes_are_the_same_for_every_job(task):
    first, second = (
        task.make_scenes(*task.load_digits(rng)[0], 50, rng)
        for rng in (np.random.default_rng(0), np.random.default_rng(0))
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_target_peaks_at_its_digits_centre_in_its_class(task, scenes):
    images, targets, classes, centres = scenes
    assert images.shape == (300, 576)
    assert targets.shape == (300, 1440)
    maps = targets.reshape(300, 12, 12, 10)
    for image, heat_map, digit_class, centre in zip(images, maps, classes, centres, strict=True):
        assert heat_map.sum() == pytest.approx(heat_map[..., digit_class].sum())
        peak = np.unravel_index(heat_map.argmax(), heat_map.shape)[:2]
        assert np.abs(np.array(peak) - centre).max() <= 0.5
        # The digit stands in the 14x14 pixels about that centre (in pixels: twice the cell + 1).
        rows, columns = np.nonzero(image.reshape(24, 24))
        top, left = (2 * (centre + 0.5) - 7).astype(int)
        assert rows.min() >= top and rows.max() < top + 14
        assert columns.min() >= left and columns.max() < left + 14


def test_a_cell_further_away_has_less_by_the_gaussian(task, scenes):
    _, targets, classes, centres = scenes
    heat_map = targets[0].reshape(12, 12, 10)[..., classes[0]]
    distance2 = (3 - centres[0][0]) ** 2 + (8 - centres[0][1]) ** 2
    assert heat_map[3, 8] == pytest.approx(math.exp(-distance2 / 2), rel=1e-5)


def test_the_measure_counts_right_class_within_a_cell_and_a_half(task, scenes):
    _, targets, classes, centres = scenes
    assert task.share_of_hits(targets, classes, centres) == 1.0
    assert task.share_of_hits(targets, (classes + 1) % 10, centres) == 0.0
    assert task.share_of_hits(targets, classes, centres + 3.0) == 0.0
    assert task.share_of_hits(np.zeros_like(targets), classes, centres) < 0.1


@pytest.mark.parametrize("scale", ["x", "", "8x"])
def test_a_scale_that_is_none_is_refused(task, capsys, scale):
    with pytest.raises(SystemExit, match="2"):
        task.main([f"--scale={scale}"])
    assert f"none, dynamic or a number. Received: --scale={scale}" in capsys.readouterr().err


@pytest.mark.backend
@pytest.mark.parametrize(
    ("scale", "low", "high"),
    [
        ("none", 0.0, 0.4),
        ("dynamic", 0.6, 1.0),
        pytest.param("8", 0.6, 1.0, marks=pytest.mark.slow),  # the paper's factor for SSD
    ],
)
@pytest.mark.filterwarnings("ignore:The model computes in float16")
def test_float16_learns_the_task_only_with_loss_scaling(task, tmp_path, capsys, scale, low, high):
    """Measured over three seeds: 0.24 without, 0.70 with and in float32, spread 0.01."""
    hits = task.main(["--policy=mixed_float16", f"--scale={scale}", f"--runs={tmp_path}"])
    assert low < hits < high
    assert capsys.readouterr().out.splitlines()[-1] == f"hits {hits:.3f}"
    (journal,) = tmp_path.rglob("events-0.jsonl")
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    (result,) = [record for record in records if record["kind"] == "result"]
    assert result["values"] == {"hits": hits}
    scales = {record.get("scale") for record in records if record["kind"] == "step"}
    assert scales == {{"none": None, "8": 8.0, "dynamic": 2.0**15}[scale]}
