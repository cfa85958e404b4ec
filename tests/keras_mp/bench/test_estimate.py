"""Hours from hours: the arithmetic, the published figures, Amdahl, and what is refused."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_mp.bench.estimate import Range, amdahl, from_trial, hours_after, question
from keras_mp.bench.published import NothingPublishedError, accuracies, look_up, rows
from keras_mp.bench.results import Advice, Memory, Split, Spread, Trial, Variant
from keras_mp.cli import main

reasonable = st.floats(0.01, 1e6)


def test_a_hundred_hours_at_2_1_are_47_6():
    result = hours_after(100, 2.1)
    assert round(result.after.low, 1) == 47.6
    assert result.after.is_point
    assert round(result.saved.low, 1) == 52.4


@given(hours=reasonable, low=reasonable, factor=st.floats(1, 10))
def test_the_high_end_of_the_hours_is_the_low_end_of_the_speedup(hours, low, factor):
    result = hours_after(hours, Range(low, low * factor))
    assert result.after.low <= result.after.high
    assert math.isclose(result.after.high * low, hours)
    assert math.isclose(result.saved.low, hours - result.after.high, abs_tol=1e-9 * hours)


@pytest.mark.parametrize("bad", [0, -1, -0.0, math.nan, math.inf, True, "2"])
def test_zero_negatives_and_no_numbers_are_refused(bad):
    with pytest.raises(ValueError, match=r"`speedup` must be .* Received: speedup="):
        hours_after(100, bad)
    with pytest.raises(ValueError, match="`hours` must be"):
        hours_after(bad, 2.0)


@pytest.mark.parametrize(
    ("speedup", "questioned"),
    [(0.49, True), (0.5, False), (1.0, False), (5.0, False), (5.01, True), (Range(2, 6), True)],
)
def test_a_speedup_outside_half_to_five_is_questioned(speedup, questioned):
    assert (question(speedup) is not None) is questioned


def test_the_reason_for_the_upper_limit_is_the_published_maximum():
    assert f"{max(row.speedup for row in rows()):g}×" in question(9.0)


# Amdahl's own example: a part of 40 % made 10 times as fast gives 1 / (0.6 + 0.04).
def test_amdahl():
    overall = amdahl({"compute": 4.0, "input": 5.0, "optimizer": 1.0}, 10.0)
    assert overall.speedup == pytest.approx(1.5625)
    assert overall.limit == pytest.approx(1 / 0.6)
    assert overall.held_back_by == ("input", 0.5)


@given(
    compute=reasonable,
    rest=st.floats(0, 1e6),
    gain=st.floats(1, 100),
)
def test_a_step_never_gains_more_than_its_compute_or_its_limit(compute, rest, gain):
    overall = amdahl({"compute": compute, "input": rest}, gain)
    assert 1 - 1e-9 <= overall.speedup <= min(gain, overall.limit) * (1 + 1e-9)


def test_a_step_of_nothing_but_compute_gains_all_of_it():
    overall = amdahl({"compute": 3.0, "input": 0.0}, 2.5)
    assert (overall.speedup, overall.limit, overall.held_back_by) == (2.5, math.inf, None)


@pytest.mark.parametrize("split", [{"input": 1.0}, {"compute": 0.0}, {"compute": 1.0, "input": -1}])
def test_a_split_without_compute_or_with_a_negative_part_is_refused(split):
    with pytest.raises(ValueError, match="Received"):
        amdahl(split, 2.0)


def variant(name, rates, speedup=None, split=None, error=None):
    return Variant(
        name=name,
        policy=name,
        samples_per_s=rates,
        speedup=speedup,
        split=split,
        error=error,
    )


def a_trial(*variants):
    return Trial(
        model="net.keras",
        backend="torch",
        versions={},
        device="a CPU",
        threads=1,
        parameters=10,
        batch_size=32,
        steps=5,
        rounds=3,
        data="synthetic",
        notes=[],
        variants=list(variants),
        advice=Advice("float32", [], ""),
    )


FLOAT32 = variant("float32", [100.0, 90.0, 110.0], split=Split(0.02, 0.06, 0.01, 0.01))
MIXED = variant(
    "mixed_bfloat16",
    [200.0, 171.0, 231.0],
    Spread(2.0, 1.95, 2.05),
    Split(0.02, 0.02, 0.01, 0.01),
)


def test_a_trials_speedup_comes_with_its_spread_and_with_amdahl():
    (up,) = from_trial(a_trial(FLOAT32, MIXED))
    assert (up.name, up.speedup, up.rounds) == ("mixed_bfloat16", Range(1.95, 2.05, 2.0), 3)
    # compute 3 times as fast is 0.1 s -> 0.06 s a step; without any compute 0.04 s are left
    assert up.overall.speedup == pytest.approx(0.1 / 0.06)
    assert up.overall.limit == pytest.approx(2.5)
    assert up.overall.held_back_by == ("input", pytest.approx(0.2))


def test_the_largest_speedup_comes_first_and_a_failed_variant_not_at_all():
    slow = replace(MIXED, name="mixed_float16", speedup=Spread(0.2, 0.19, 0.21), split=None)
    failed = variant("planned", [], error="out of memory")
    ups = from_trial(a_trial(FLOAT32, slow, failed, MIXED))
    assert [up.name for up in ups] == ["mixed_bfloat16", "mixed_float16"]
    assert ups[1].overall is None
    with pytest.raises(ValueError, match="out of memory"):
        from_trial(a_trial(FLOAT32, failed))


def test_a_busy_machines_trial_is_questioned(capsys, tmp_path):
    def status_of(speedup):
        path = tmp_path / "trial.json"
        path.write_text(a_trial(FLOAT32, replace(MIXED, speedup=speedup)).to_json())
        status, out, _ = run(capsys, "--from-trial", str(path))
        return status, " ".join(out.split())

    status, out = status_of(Spread(1.9, 1.3, 3.7))
    assert status == 1 and "the machine was busy" in out
    # float32's split leaves at most 2.5 times: three times is more than that
    status, out = status_of(Spread(3.0, 2.9, 3.1))
    assert status == 1 and "more than the split of a step allows (2.5×)" in out
    assert status_of(Spread(2.0, 1.95, 2.05))[0] == 0


def test_every_published_speedup_is_the_quotient_of_its_two_speeds():
    assert len(rows()) > 50
    for row in rows():
        # The sources round, and some took the quotient before they did.
        quotient = row.mixed / row.baseline
        assert row.speedup == pytest.approx(quotient, rel=0.06), row
        assert row.source.startswith("NVIDIA/DeepLearningExamples ") and "@" in row.source


def test_resnet_50_on_a_v100_is_the_range_of_its_two_figures():
    found = look_up("V100", "resnet50")
    assert (found.speedup.low, found.speedup.high) == (2.91, 3.26)
    assert {row.gpus for row in found.rows} == {1, 8}
    assert {row.model for row in found.rows} == {"ResNet-50 v1.5"}


@pytest.mark.parametrize("card", sorted({row.card for row in rows()}))
@pytest.mark.parametrize("model", sorted({row.model for row in rows()}))
def test_a_published_estimate_is_a_range_and_never_one_number(card, model):
    try:
        found = look_up(card, model)
    except NothingPublishedError:
        assert not [row for row in rows() if row.card == card and row.model == model]
        return
    assert found.speedup.low < found.speedup.high
    assert found.exact >= 1
    assert {row.card for row in found.rows} == {card}


def test_one_figure_borrows_the_range_of_its_kind_and_says_so():
    found = look_up("V100", "NCF")
    assert found.exact == 1 and found.rows[0].speedup == 2.0
    assert {row.kind for row in found.rows} == {"recommender"}
    assert "one figure" in found.basis and "recommender" in found.basis


@pytest.mark.parametrize(
    ("device", "model", "says"),
    [
        ("H100", None, "Cards with figures: A100, V100"),
        ("V100", "llama", "Models with figures: ResNet-50"),
        ("A100", "NCF", "There is one for V100"),
    ],
)
def test_what_is_not_published_is_said_with_what_is(device, model, says):
    with pytest.raises(NothingPublishedError, match=says):
        look_up(device, model)


def test_the_papers_own_tables_say_that_nothing_is_lost():
    """Its conclusion, from the figures: no result worse by more than 0.02, most of them better."""
    paper = [one for one in accuracies() if one.source.startswith("arXiv:1710.03740")]
    assert len(paper) == 10
    gains = [(o.mixed - o.baseline) * (1 if o.higher_is_better else -1) for o in paper]
    assert min(gains) > -0.02
    assert sum(gain > 0 for gain in gains) >= 9
    ssd = next(one for one in paper if "SSD" in one.model)
    assert "8" in ssd.note and "diverges" in ssd.note


def test_every_accuracy_has_a_source_and_both_of_its_values():
    assert len(accuracies()) > 35
    for one in accuracies():
        assert one.baseline > 0 and one.mixed > 0 and one.source
        # No training in mixed precision came out more than 1 % worse.
        change = (one.mixed - one.baseline) / one.baseline
        assert (change if one.higher_is_better else -change) > -0.01, one


@pytest.mark.parametrize(
    ("name", "hardware"),
    [
        ("Tesla V100-SXM2-16GB", {"V100 16GB"}),
        ("NVIDIA A100-SXM4-80GB", {"A100 80GB"}),
        ("v100", {"V100 16GB", "V100 32GB"}),
    ],
)
def test_a_card_is_known_by_the_name_that_its_driver_gives_it(name, hardware):
    assert {row.hardware for row in look_up(name).rows} == hardware


def run(capsys, *arguments):
    try:
        status = main(["estimate", *arguments])
    except SystemExit as stopped:
        status = stopped.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_command_does_the_arithmetic_and_says_to_try(capsys):
    status, out, _ = run(capsys, "--hours", "100", "--speedup", "2.1")
    assert status == 0
    assert "100 h → 47.6 h" in out
    assert "keras-mp bench MODEL" in out
    status, out, _ = run(capsys, "--hours", "100", "--speedup", "2.1", "--json")
    assert json.loads(out)["after"] == pytest.approx(100 / 2.1)


def test_a_questionable_speedup_is_computed_and_questioned(capsys):
    status, out, _ = run(capsys, "--hours", "100", "--speedup", "8")
    assert status == 1
    assert "12.5 h" in out and "questionable" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--hours", "100", "--speedup", "0"),
        ("--hours", "100", "--speedup=-2"),
        ("--hours", "0", "--speedup", "2"),
        ("--hours=-5", "--speedup", "2"),
        ("--hours", "100", "--speedup", "nan"),
        ("--hours", "100", "--speedup", "fast"),
        ("--hours", "100"),
        ("--speedup", "2"),
        (),
        ("--hours", "100", "--speedup", "2", "--device", "V100"),
        ("--hours", "100", "--device", "V100", "--split", "compute=1"),
        ("--hours", "100", "--speedup", "2", "--split", "compute=1,compute=2"),
        ("--parameters", "1M"),
        ("--parameters", "1M", "--activations", "0"),
        ("--parameters", "1M", "--activations", "1M", "--batch-sizes", "0"),
    ],
    ids=" ".join,
)
def test_wrong_use_is_two_and_says_what_was_received(capsys, arguments):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert "estimate: " in err


@pytest.mark.parametrize(
    "arguments",
    [("--device", "H100"), ("--from-trial", "none.json"), ("--device", "V100", "--model", "llama")],
)
def test_nothing_to_read_is_three(capsys, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, "--hours", "1", *arguments)
    assert (status, out) == (3, "")
    assert err.startswith("keras-mp estimate: ")


def test_a_trials_file_gives_hours_with_its_spread(capsys, tmp_path):
    path = tmp_path / "trial.json"
    path.write_text(a_trial(FLOAT32, MIXED).to_json())
    status, out, _ = run(capsys, "--hours", "100", "--from-trial", str(path))
    assert status == 0
    assert "2× (1.95–2.05)" in out and "50 h (48.8–51.3)" in out
    assert "input takes 20 % of a step" in out
    status, out, _ = run(capsys, "--hours", "100", "--from-trial", str(path), "--json")
    after = json.loads(out)["variants"]["mixed_bfloat16"]["after"]
    assert after == {"low": 100 / 2.05, "high": 100 / 1.95, "middle": 50.0}
    assert "memory" not in out
    path.write_text("{}")
    assert run(capsys, "--hours", "100", "--from-trial", str(path))[0] == 2


def test_what_fit_takes_itself_is_called_so(capsys, tmp_path):
    path = tmp_path / "trial.json"
    slow = replace(FLOAT32, split=Split(input=0.0, compute=1.0, optimizer=0.0, other=9.0))
    path.write_text(a_trial(slow, MIXED).to_json())
    assert "fit's own part takes 90 % of a step" in run(capsys, "--from-trial", str(path))[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--device", "A100"), "\nAgainst TF32, which"),
        (("--model", "resnet50"), "\nSome are against TF32, which"),
        (("--device", "V100"), None),
    ],
)
def test_a_baseline_on_tensor_cores_is_said(capsys, arguments, says):
    out = run(capsys, *arguments)[1]
    assert says in out if says else "TF32" not in out


def test_a_trials_measured_memory_is_given_by_batch_size(capsys, tmp_path):
    def line(fixed, slope):
        return Memory(
            "allocator peak", [(1, 1), (2, 2), (4, 4)], fixed, slope, (1.0, 1.0), 9, 10, 0
        )

    base = replace(FLOAT32, memory=line(2e9, 1e8))
    mixed = replace(MIXED, memory=line(2e9, 5e7))
    path = tmp_path / "trial.json"
    path.write_text(a_trial(base, mixed).to_json())
    arguments = ("--from-trial", str(path), "--batch-sizes", "10,40")
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    assert "measured (allocator peak)" in out
    assert "6.0 GB" in out and "4.0 GB" in out  # 2 GB + 40 samples of 100 or 50 MB
    status, out, _ = run(capsys, *arguments, "--json")
    assert json.loads(out)["memory"]["40"] == {"float32": 6e9, "mixed_bfloat16": 4e9}


def test_published_figures_come_with_source_and_range(capsys):
    status, out, _ = run(capsys, "--hours", "100", "--device", "V100", "--model", "resnet50")
    assert status == 0
    assert "2.91–3.26×" in out and "30.7–34.4" in out
    assert out.count("resnet50v1.5/README.md@291f0d02") == 2
    status, out, _ = run(capsys, "--device", "A100", "--model", "wide", "--json")
    found = json.loads(out)
    assert found["speedup"]["low"] == 0.74
    assert all(figure["source"] for figure in found["figures"])
    assert max(map(len, out.splitlines())) < 160


def test_slower_is_said_as_slower(capsys):
    _, out, _ = run(capsys, "--hours", "100", "--speedup", "0.8")
    assert "125 h, 25 h (25 %) more" in out


def test_as_fast_is_neither_more_nor_less(capsys):
    _, out, _ = run(capsys, "--hours", "100", "--speedup", "1")
    assert "100 h → 100 h, nothing saved" in out


def test_numbers_beyond_reason_give_no_infinity(capsys):
    status, out, err = run(capsys, "--hours", "1e300", "--speedup", "1e-300", "--json")
    assert (status, out) == (2, "") and "hours / speedup=inf" in err
    _, out, _ = run(capsys, "--hours", "1e300", "--speedup", "2")
    assert "1e+300 h → 5e+299 h" in out


HEAVY = ("keras", "torch", "tensorflow", "jax")


def modules_after(code, *names):
    code = f"import sys\n{code}\nprint([n for n in {names!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_an_estimate_loads_no_backend():
    code = "from keras_mp.cli import main\nmain(['estimate', '--device', 'V100'])"
    assert modules_after(code, *HEAVY) == "[]"


def test_the_list_of_commands_does_not_wait_for_this_one():
    code = "from keras_mp.commands import estimate, lab"
    assert modules_after(code, *HEAVY, "numpy", "keras_mp.bench", "tui") == "[]"


def test_the_optimizers_are_those_whose_slots_are_known():
    from keras_mp.bench.footprint import SLOTS
    from keras_mp.commands.estimate import OPTIMIZERS

    assert sorted(SLOTS) == OPTIMIZERS
