"""``benchmarks/paper.py``: how claims are judged, the page that is committed, a quick run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS, DOCS = ROOT / "benchmarks", ROOT / "docs"


@pytest.fixture
def claims(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import paper_claims

    return paper_claims


BASE = np.array([0.70, 0.72, 0.71])  # a spread of 0.01


class TestRules:
    @pytest.mark.parametrize(
        ("other", "no_worse", "worse"),
        [
            ([0.70, 0.72, 0.71], True, False),
            ([0.705, 0.725, 0.715], True, False),
            ([0.68, 0.70, 0.69], False, False),  # twice the spread: neither one nor the other
            ([0.24, 0.25, 0.23], False, True),
            ([0.75, 0.77, 0.76], True, False),  # better is no loss
            ([0.24, 0.73, 0.23], False, False),  # one seed was as good
            ([np.nan, np.nan, np.nan], False, True),  # it diverged
        ],
    )
    def test_no_worse_and_worse(self, claims, other, no_worse, worse):
        assert claims.no_worse(BASE, np.array(other)) is no_worse
        assert claims.worse(BASE, np.array(other)) is worse

    def test_for_losses_less_is_better(self, claims):
        assert claims.worse(BASE, BASE + 0.1, more_is_better=False)
        assert not claims.worse(BASE, BASE - 0.1, more_is_better=False)
        assert claims.no_worse(BASE, BASE - 0.1, more_is_better=False)
        assert not claims.no_worse(BASE, BASE + 0.1, more_is_better=False)

    def test_a_gain_beyond_the_spread_is_marked(self, claims):
        assert claims.remark(BASE, BASE + 0.02) == " (better)"
        assert claims.remark(BASE, BASE - 0.02, more_is_better=False) == " (better)"
        for same in (BASE, BASE + 0.005, BASE - 0.02, BASE * np.nan):
            assert claims.remark(BASE, same) == ""

    def test_one_per_cent_is_no_difference_however_alike_the_seeds_are(self, claims):
        base = np.array([1.0, 1.0, 1.0])
        assert claims.no_worse(base, base - 0.009) and not claims.no_worse(base, base - 0.011)


def runs(task, metric, **variants):
    return [
        {"task": task, "variant": variant, "seed": seed, "metrics": {metric: value}}
        for variant, values in variants.items()
        for seed, value in enumerate(values)
    ]


def verdict(claims, name, found):
    return next(row for row in claims.judge_all(found) if row["name"] == name)["verdict"]


class TestVerdicts:
    @pytest.mark.parametrize(
        ("unscaled", "expected"),
        [
            ([0.24, 0.25, 0.23], "holds"),
            ([0.70, 0.72, 0.71], "not shown"),
            ([0.68, 0.70, 0.69], "in part"),
        ],
    )
    def test_a_failure_that_is_claimed(self, claims, unscaled, expected):
        found = runs("heat_map", "hits", **{"float32": BASE, "float16, unscaled": unscaled})
        assert verdict(claims, "unscaled-fails", found) == expected

    @pytest.mark.parametrize(
        ("eight", "expected"), [([0.70, 0.72, 0.71], "holds"), ([0.5, 0.5, 0.5], "does not hold")]
    )
    def test_a_cure_that_is_claimed(self, claims, eight, expected):
        found = runs("heat_map", "hits", **{"float32": BASE, "float16, scale 8": eight})
        assert verdict(claims, "scale-8-cures", found) == expected

    def test_parity_in_some_precisions_holds_in_part(self, claims):
        good = {"float32": BASE, "float16, dynamic": BASE, "float16, static 1024": BASE}
        for bf16, expected in ((BASE, "holds"), (BASE - 0.1, "in part")):
            found = runs("cnn", "accuracy", **good, bfloat16=bf16)
            assert verdict(claims, "parity-cnn", found) == expected

    @pytest.mark.parametrize(
        ("ratios", "expected"),
        [((0.5, 0.5), "holds"), ((0.5, 0.8), "in part"), ((0.8, 0.9), "does not hold")],
    )
    def test_memory(self, claims, ratios, expected):
        found = []
        for family in ("mlp", "transformer", "resnet", "lstm"):
            ratio = ratios[family == "lstm"]
            for variant, share in (("float32", 1), ("Keras' policy", 0.9), ("our plan", ratio)):
                metrics = {"kept_MiB": 100 * share, "with_state_MiB": 150 * share}
                found.append({"task": f"memory {family}", "variant": variant, "seed": 0,
                              "metrics": metrics})  # fmt: skip
        assert verdict(claims, "memory-halved", found) == expected

    def test_without_runs_nothing_is_claimed(self, claims):
        verdicts = {row["name"]: row["verdict"] for row in claims.judge_all([])}
        assert set(verdicts.values()) == {"not measured"}


class TestPage:
    """The committed page and figures."""

    def test_it_says_what_the_runs_say(self, claims):
        import paper

        kept = json.loads((DOCS / "paper.json").read_text(encoding="utf-8"))
        assert kept["claims"] == claims.judge_all(kept["runs"])
        assert kept["families"] == claims.families()
        assert (DOCS / "paper.md").read_text(encoding="utf-8") == paper.table(kept)

    def test_every_task_was_run_with_every_seed(self, claims):
        import paper

        kept = json.loads((DOCS / "paper.json").read_text(encoding="utf-8"))
        assert kept["quick"] is False
        expected = {
            (task, variant, seed)
            for task, variants in paper.TASKS.items()
            for variant in variants
            for seed in range(1 if task in paper.ONE_SEED else 3)
        }
        assert {(r["task"], r["variant"], r["seed"]) for r in kept["runs"]} == expected


@pytest.mark.slow
def test_a_quick_run_does_every_task_and_resumes(tmp_path):
    for module in ("mlxtend", "tensorflow", "torch"):
        pytest.importorskip(module)
    path, page = tmp_path / "paper.json", tmp_path / "paper.md"
    command = [sys.executable, str(BENCHMARKS / "paper.py"), "--quick"]
    command += ["--json", str(path), "--table", str(page)]
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    environment["PYTHONPATH"] = str(ROOT)
    subprocess.run(command, env=environment, check=True, capture_output=True)
    kept = json.loads(path.read_text())
    verdicts = {claim["name"]: claim["verdict"] for claim in kept["claims"]}
    # What does not depend on how long a model trained holds in a quick run too.
    for name in ("histogram-predicts", "updates-swallowed", "float32-accumulation",
                 "masters-memory"):  # fmt: skip
        assert verdicts[name] == "holds", name
    assert verdicts["speed"] == "not measured"
    assert list(verdicts.values()).count("not measured") == 1
    assert "Quick run: too short to judge by." in page.read_text()
    # Started again, it does what is missing and nothing else.
    gone = kept["runs"].pop(3)
    path.write_text(json.dumps(kept))
    subprocess.run(
        [*command, "--only", gone["task"]], env=environment, check=True, capture_output=True
    )
    again = json.loads(path.read_text())["runs"]
    assert again[:-1] == kept["runs"]
    assert again[-1]["task"] == gone["task"] and again[-1]["variant"] == gone["variant"]
