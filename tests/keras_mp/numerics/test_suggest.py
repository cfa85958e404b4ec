"""Advice from a run's numbers: right where they are known, on recorded runs, and as a cure."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import keras_mp
from keras_mp.cli import main
from keras_mp.numerics.histogram import exponent_histogram
from keras_mp.numerics.rows import Row
from keras_mp.numerics.suggest import MARGIN, best_scale, scale_range, suggest
from keras_mp.telemetry import records as r
from keras_mp.telemetry.history import history_of
from keras_mp.telemetry.replay import what_if
from keras_mp.telemetry.runs import RunsFolder

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests" / "recorded"
UNSCALED = RECORDED / "verdicts" / "unscaled"


def row(values, layer="d", tensor="gradient"):
    return Row(layer, tensor, exponent_histogram(np.asarray(values, "float32")))


def lost_in_float16(values, scale):
    """Share of the non-zero values that NumPy's float16 makes zero."""
    values = np.asarray(values, np.float64)
    values = values[values != 0]
    return float((np.float16(0) == (values * scale).astype(np.float16)).mean())


def test_the_range_is_where_float16_itself_loses_nothing_and_overflows_nothing():
    rng = np.random.default_rng(0)
    values = np.exp2(rng.uniform(-34, -12, 5000)) * rng.choice([-1, 1], 5000)
    found = scale_range([[row(values)]])
    assert lost_in_float16(values, found.low) <= 0.001 < lost_in_float16(values, found.low / 2)
    with np.errstate(over="ignore"):
        assert np.isfinite((values * found.high).astype(np.float16)).all()
        assert not np.isfinite((values * found.high * 2).astype(np.float16)).all()
    assert found.low <= found.best <= found.high / 2**MARGIN
    assert found.lost_unscaled == pytest.approx(lost_in_float16(values, 1.0), abs=1e-9)
    assert found.lost == pytest.approx(lost_in_float16(values, found.best), abs=1e-9)


def test_the_look_with_the_smallest_and_the_one_with_the_largest_gradients_decide():
    early, late = np.full(100, 2.0**-8), np.full(100, 2.0**-30)
    both = scale_range([[row(early)], [row(late)]])
    assert both.high == scale_range([[row(early)]]).high == 2.0**23
    assert both.low == scale_range([[row(late)]]).low == 2.0**5
    assert best_scale([row(late)]) > best_scale([row(early)])


def test_where_nothing_fits_the_best_compromise_is_told():
    wide = np.concatenate([np.full(50, 2.0**-40), np.full(50, 2.0**2)])
    found = scale_range([[row(wide)]])
    assert found.high == 2.0**13 and found.lost == 0.5
    assert scale_range([[row(np.zeros(5))]]) is None
    assert scale_range([[row([np.inf, 1.0])]]) is None
    assert scale_range([]) is None


def numerics(step, values, layer="d", tensor="gradient"):
    return row(values, layer, tensor).to_record(step, float(step))


def test_layers_that_float16_cannot_serve_are_named():
    tiny, fine = np.full(100, 2.0**-45), np.full(100, 2.0**-3)
    records = [
        r.Start(time=0.0),
        numerics(1, fine, "body"),
        numerics(1, tiny, "deep"),
        numerics(1, np.full(9, 1e6), "wide", "activation"),
        numerics(1, np.full(9, 1e3), "body", "activation"),
        r.Step(step=1, time=1.0, loss=1.0),
    ]
    found = suggest(records)
    assert {layer.path for layer in found.layers} == {"deep", "wide"}
    assert "65,504" in next(layer.why for layer in found.layers if layer.path == "wide")
    assert found.looks == 1


def test_layers_that_are_in_float32_already_need_no_advice():
    wide = row(np.full(9, 1e6), "wide", "activation")
    tiny = row(np.full(100, 2.0**-45), "deep")
    fine = row(np.full(100, 2.0**-3), "body")
    for dtype, named in (
        (None, {"wide", "deep"}),
        ("float32", set()),
        ("float16", {"wide", "deep"}),
    ):
        rows = [replace(one, dtype=dtype) for one in (wide, tiny)]
        rows.append(replace(fine, dtype="float16"))
        records = [r.Start(time=0.0), *(one.to_record(1, 1.0) for one in rows)]
        found = suggest([*records, r.Step(step=1, time=1.0, loss=1.0)])
        assert {layer.path for layer in found.layers} == named


def test_lost_work_of_a_resumed_run_advises_nothing():
    records = [
        r.Start(time=0.0),
        numerics(5, np.full(9, 2.0**10)),
        r.Step(step=6, time=1.0, loss=1.0),
        r.Start(time=2.0, step=2),
        numerics(3, np.full(9, 2.0**-20)),
        r.Step(step=4, time=3.0, loss=1.0),
    ]
    assert suggest(records).static.high == 2.0**35 and suggest(records).looks == 1


def test_the_dynamic_setting_wastes_no_more_than_any_it_was_chosen_from():
    for name in ("sawtooth", "thrashing"):
        folder = RunsFolder(RECORDED / "runs" / name)
        folder.poll(seconds=None)
        history = history_of(folder.jobs[0])
        found = suggest(RECORDED / "runs" / name)
        again = what_if(history, found.dynamic.config)
        assert again.wasted == found.dynamic.wasted < found.dynamic.recorded == history.skipped
        assert any("no numerics" in note for note in found.notes)
    assert "heat_map" in {layer.path for layer in suggest(RECORDED / "runs" / "thrashing").layers}
    assert not suggest(RECORDED / "runs" / "sawtooth").layers


def test_where_the_outputs_overflow_the_layer_is_named_and_no_setting_of_the_scale():
    found = suggest(RECORDED / "verdicts" / "activations")
    assert [layer.path for layer in found.layers] == ["blown_up"]
    assert found.dynamic is None and "no setting of the scale" in found.notes[-1]


def test_a_run_that_tells_nothing_is_said_to():
    with pytest.raises(ValueError, match="tells neither numbers nor single steps"):
        suggest(RECORDED / "runs" / "float32")
    with pytest.raises(ValueError, match="Expected the folder of one run"):
        suggest(RECORDED / "runs")
    with pytest.raises(ValueError, match="Expected the folder of one run"):
        suggest(RECORDED / "nothing")


def test_the_unscaled_jobs_numbers_ask_for_a_scale():
    found = keras_mp.suggest(UNSCALED)
    assert found.static.lost_unscaled > 0.2
    # Measured on this task by hand: 8 is enough to learn it, and 2**15 overflows nowhere.
    assert found.static.low >= 8 and found.static.high >= 2.0**20
    assert found.static.lost < 0.01
    text = str(found)
    assert "LossScaleOptimizer(optimizer, scale=2.0**" in text
    assert not found.layers


def test_the_command_prints_it(capsys):
    assert main(["suggest", str(UNSCALED)]) == 0
    assert "static scale" in capsys.readouterr().out
    assert main(["suggest", str(UNSCALED), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["static"]["best"] == keras_mp.suggest(UNSCALED).static.best
    assert main(["suggest", str(RECORDED / "runs" / "float32")]) == 3
    assert main(["suggest", str(RECORDED / "none")]) == 3


@pytest.mark.slow
def test_what_it_suggests_cures_the_job():
    """The demo's task, with the scale that the sick job's numbers advise: it learns again.

    (Sick, with numerics for the advice, it is the recorded run; unscaled it hits below 0.4.)
    """
    advised = suggest(UNSCALED).static.best
    environment = os.environ | {"KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"}
    out = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "digit_heatmap.py"),
         "--policy", "mixed_float16", "--scale", str(advised)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    hits = float(out.stdout.rsplit("hits", 1)[1])
    assert hits > 0.6
