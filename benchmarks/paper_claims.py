"""The claims of the 2018 paper, what it reports for each, and whether our runs bear them out.

Micikevicius et al., "Mixed Precision Training", ICLR 2018 (arXiv:1710.03740). The paper's figures
are those of its tables 1 to 3 and its text. Nothing here runs a model: a claim reads runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

HOLDS, FAILS, PARTLY = "holds", "does not hold", "in part"
NOT_SHOWN, NOT_MEASURED = "not shown", "not measured"
# task -> (its name, the metric that is compared, whether more is better). Written into the JSON
# file, for the lab shows the same figures.
FAMILIES = {
    "heat_map": ("detector, digit scenes", "hits", True),
    "mlp": ("MLP, digits", "accuracy", True),
    "tabular": ("MLP, 30 measurements", "accuracy", True),
    "cnn": ("residual CNN, digits", "accuracy", True),
    "lstm": ("LSTM, characters", "loss", False),
    "transformer": ("transformer, characters", "loss", False),
    "generator": ("generator (VAE), digits", "nats", False),
    "mlp_sgd": ("MLP, plain SGD", "accuracy", True),
}
PARITY = ("float16, dynamic", "float16, static 1024", "bfloat16")


class Runs:
    """All runs: ``runs.values(task, variant, metric)`` is one figure a seed."""

    def __init__(self, runs: list[dict[str, Any]]):
        self._runs = {(r["task"], r["variant"], r["seed"]): r["metrics"] for r in runs}

    def values(self, task: str, variant: str, metric: str) -> np.ndarray:
        """In the order of the seeds. Raises KeyError where a run is missing."""
        found = [
            (seed, metrics[metric])
            for (one, other, seed), metrics in self._runs.items()
            if (one, other) == (task, variant)
        ]
        if not found:
            raise KeyError(f"{task} / {variant}")
        return np.array([value for _, value in sorted(found)])


@dataclass(frozen=True)
class Finding:
    ours: str
    verdict: str


@dataclass(frozen=True)
class Claim:
    """One row: where the paper says what, what it reports, and how our runs are judged."""

    name: str
    section: str
    claim: str
    paper: str
    judge: Callable[[Runs], Finding]


def text(values: np.ndarray, digits: int = 3) -> str:
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def tolerance(baseline: np.ndarray) -> float:
    """What counts as no difference: float32's own spread over seeds, at least 1 % of its mean."""
    spread = float(baseline.std(ddof=1)) if len(baseline) > 1 else 0.0
    return max(spread, 0.01 * abs(float(baseline.mean())))


def no_worse(baseline: np.ndarray, other: np.ndarray, more_is_better: bool = True) -> bool:
    """Parity: what is lost on average, seed by seed, is within ``tolerance``; a gain is no loss."""
    loss = (baseline - other) if more_is_better else (other - baseline)
    return bool(np.isfinite(other).all()) and bool(loss.mean() <= tolerance(baseline))


def remark(baseline: np.ndarray, other: np.ndarray, more_is_better: bool = True) -> str:
    """Say so where it is better by more than ``tolerance``: that is a difference too."""
    better = no_worse(baseline, other, more_is_better) and no_worse(
        baseline, 2 * baseline - other, more_is_better
    )
    gained = np.isfinite(other).all() and not better and no_worse(baseline, other, more_is_better)
    return " (better)" if gained else ""


def worse(baseline: np.ndarray, other: np.ndarray, more_is_better: bool = True) -> bool:
    """Clearly worse: on every seed, and by more than three times ``tolerance`` on average."""
    loss = (baseline - other) if more_is_better else (other - baseline)
    loss = np.where(np.isfinite(loss), loss, np.inf)
    return bool((loss > 0).all() and loss.mean() > 3 * tolerance(baseline))


def _against_float32(task: str, variant: str, expect: str) -> Callable:
    _, metric, more = FAMILIES[task]

    def judge(runs: Runs) -> Finding:
        base, other = runs.values(task, "float32", metric), runs.values(task, variant, metric)
        note = remark(base, other, more)
        ours = f"{metric}: float32 {text(base)}, {variant} {text(other)}{note}"
        if expect == "same":
            return Finding(ours, HOLDS if no_worse(base, other, more) else FAILS)
        if worse(base, other, more):
            return Finding(ours, HOLDS)
        return Finding(ours, NOT_SHOWN if no_worse(base, other, more) else PARTLY)

    return judge


def _parity(task: str) -> Callable:
    _, metric, more = FAMILIES[task]
    # The detector's static scale is the paper's 8.
    variants = [
        "float16, scale 8" if task == "heat_map" and v == "float16, static 1024" else v
        for v in PARITY
    ]

    def judge(runs: Runs) -> Finding:
        base = runs.values(task, "float32", metric)
        parts, good = [f"{metric}: float32 {text(base)}"], []
        for variant in variants:
            other = runs.values(task, variant, metric)
            good.append(no_worse(base, other, more))
            parts.append(f"{variant} {text(other)}{remark(base, other, more)}")
        verdict = HOLDS if all(good) else FAILS if not any(good) else PARTLY
        return Finding(", ".join(parts), verdict)

    return judge


def _unscaled(tasks: tuple[str, ...]) -> Callable:
    def judge(runs: Runs) -> Finding:
        parts, good = [], []
        for task in tasks:
            name, metric, more = FAMILIES[task]
            base = runs.values(task, "float32", metric)
            other = runs.values(task, "float16, unscaled", metric)
            good.append(no_worse(base, other, more))
            parts.append(f"{name}: {metric} {text(base)} → {text(other)}")
        verdict = HOLDS if all(good) else FAILS if not any(good) else PARTLY
        return Finding("; ".join(parts), verdict)

    return judge


def _histogram(runs: Runs) -> Finding:
    parts, gaps = [], []
    for scale in (1, 8, 128, 1024, 32768):
        predicted = runs.values("zeros", "float32", f"predicted_{scale}")
        measured = runs.values("zeros", "float32", f"measured_{scale}")
        gaps.append(np.abs(predicted - measured).max())
        parts.append(f"scale {scale}: {predicted.mean():.1%} / {measured.mean():.1%}")
    ours = f"predicted / measured zeros: {', '.join(parts)}; largest gap {max(gaps):.2%}"
    return Finding(ours, HOLDS if max(gaps) <= 0.02 else FAILS)


def _small_values(runs: Runs) -> Finding:
    zeros = runs.values("zeros", "float32", "measured_8")
    base = runs.values("heat_map", "float32", "hits")
    eight = runs.values("heat_map", "float16, scale 8", "hits")
    ours = f"{zeros.mean():.1%} of the gradients are still zero at scale 8; hits {text(eight)}"
    return Finding(ours, HOLDS if zeros.mean() > 0.3 and no_worse(base, eight) else FAILS)


def _weight_gradients(runs: Runs) -> Finding:
    below = runs.values("zeros", "float32", "weight_gradients_below_2^-24")
    ours = f"{below.mean():.1%} of the heat-map net's, trained: how many depends on the net"
    return Finding(ours, HOLDS if below.mean() > 0.05 else FAILS)


def _swallowed(runs: Runs) -> Finding:
    one, two = (
        runs.values("swallowed", "float32", f"swallowed_{half}").mean()
        for half in ("float16", "bfloat16")
    )
    large = runs.values("swallowed", "float32", "larger_than_2048").mean()
    under = runs.values("swallowed", "float32", "underflow_float16").mean()
    ours = (
        f"weight over 2,048 times its update: {large:.1%}; updates lost in the addition: float16 "
        f"{one:.1%}, bfloat16 {two:.1%}; updates that are zero themselves in float16: {under:.1%}"
    )
    return Finding(ours, HOLDS if one > 0.25 and two > one and under < one else FAILS)


def _accumulation(runs: Runs) -> Finding:
    half, whole, product = (
        runs.values("accumulation", "float32", metric)[0]
        for metric in ("float16_accumulator", "backend_sum", "backend_product")
    )
    ours = (
        f"8,192 ones: {half:.0f} in a float16 accumulator; sum {whole:.0f}, product {product:.0f}"
    )
    return Finding(ours, HOLDS if half < 8192 == whole == product else FAILS)


def _memory(runs: Runs) -> Finding:
    parts, ratios = [], []
    for family in ("mlp", "transformer", "resnet", "lstm"):
        base = runs.values(f"memory {family}", "float32", "kept_MiB")[0]
        stock = runs.values(f"memory {family}", "Keras' policy", "kept_MiB")[0] / base
        plan = runs.values(f"memory {family}", "our plan", "kept_MiB")[0] / base
        whole = (
            runs.values(f"memory {family}", "our plan", "with_state_MiB")[0]
            / runs.values(f"memory {family}", "float32", "with_state_MiB")[0]
        )
        ratios.append(plan)
        parts.append(f"{family} {plan:.2f} (Keras' policy {stock:.2f}; with state {whole:.2f})")
    good = [ratio <= 0.6 for ratio in ratios]
    verdict = HOLDS if all(good) else PARTLY if any(good) else FAILS
    return Finding(f"kept for the backward pass, of float32's: {', '.join(parts)}", verdict)


def _masters_memory(runs: Runs) -> Finding:
    ratio = runs.values("memory of masters", "float16", "ratio")[0]
    return Finding(f"weights and masters: {ratio:.2f} of float32 weights", _near(ratio, 1.5))


def _near(value: float, expected: float) -> str:
    return HOLDS if abs(value - expected) <= 0.02 * expected else FAILS


CLAIMS = [
    Claim("unscaled-fails", "3.2, table 2", "Unscaled float16 fails where gradients are tiny",
          "Multibox SSD: 76.9 mAP in float32, diverges without scaling",
          _against_float32("heat_map", "float16, unscaled", "worse")),
    Claim("scale-8-cures", "3.2, table 2", "A loss scale of 8 cures it",
          "Multibox SSD: 77.1 mAP at scale 8",
          _against_float32("heat_map", "float16, scale 8", "same")),
    Claim("dynamic-cures", "3.2", "A scale that finds itself does as well as a constant",
          "described, no figure",
          _against_float32("heat_map", "float16, dynamic", "same")),
    Claim("small-values-do-not-matter", "3.2", "The very smallest gradients do not matter",
          "SSD: below 2⁻²⁷ irrelevant, 2⁻²⁷ to 2⁻²⁴ essential", _small_values),
    Claim("histogram-predicts", "3.2, figure 3", "A float32 histogram tells float16's zeros",
          "SSD: 67 % of activation gradients are zero", _histogram),
    Claim("weight-gradients", "3.1", "A good share of weight gradients is below float16's range",
          "Mandarin speech: about 5 % below 2⁻²⁴", _weight_gradients),
    Claim("pure-float16-loses", "3.1", "float16 weights without a float32 master lose accuracy",
          "Mandarin speech: 80 % relative accuracy loss",
          _against_float32("mlp_sgd", "pure float16", "worse")),
    Claim("pure-bfloat16-loses", "(not in the paper)", "bfloat16 weights without a master lose too",
          "–", _against_float32("mlp_sgd", "pure bfloat16", "worse")),
    Claim("masters-float16", "3.1", "With float32 masters float16 weights lose nothing",
          "Mandarin speech: matches float32",
          _against_float32("mlp_sgd", "pure float16, masters", "same")),
    Claim("masters-bfloat16", "(not in the paper)", "With float32 masters bfloat16 loses nothing",
          "–", _against_float32("mlp_sgd", "pure bfloat16, masters", "same")),
    Claim("updates-swallowed", "3.1", "Updates vanish in the addition to a much larger weight",
          "lost from a ratio of 2,048 on", _swallowed),
    Claim("float32-accumulation", "3.3", "Sums of float16 products are kept in float32",
          "some networks need it", _accumulation),
    Claim("no-scaling-needed", "4.1, table 1", "Image classifiers need no loss scaling",
          "AlexNet 56.77 → 56.93 … ResNet-50 75.92 → 76.04 % top-1", _unscaled(("mlp", "cnn"))),
    Claim("language-model-needs-scaling", "4.5", "A large LSTM language model needs scaling",
          "bigLSTM diverges unscaled after 300,000 iterations, matches with scale 128",
          _against_float32("lstm", "float16, unscaled", "worse")),
    *(
        Claim(f"parity-{task}", section, f"Same accuracy: {FAMILIES[task][0]}", paper,
              _parity(task))
        for task, section, paper in (
            ("mlp", "4", "no MLP alone"),
            ("tabular", "4", "no such task"),
            ("cnn", "4.1, table 1", "ResNet-50: 75.92 and 76.04 % top-1"),
            ("lstm", "4.5", "bigLSTM matches with scale 128 (a figure)"),
            ("transformer", "4.4", "translation LSTMs match (a figure); no transformer then"),
            ("heat_map", "4.2, table 2", "SSD 76.9 and 77.1, Faster R-CNN 69.1 and 69.7 mAP"),
            ("generator", "4.6", "DCGAN: comparable pictures, no figure"),
        )
    ),
    Claim("memory-halved", "3, 5", "Memory is roughly halved, as activations dominate",
          "“nearly halved”, no table", _memory),
    Claim("masters-memory", "3.1", "Masters make the weights' memory half as large again",
          "+50 %", _masters_memory),
    Claim("speed", "5", "Products and memory-bound layers are 2 to 6 times as fast on Volta",
          "2–6× where not bound by latency",
          lambda runs: Finding("no GPU was at hand; `benchmarks/gpu.py` measures it on one",
                               NOT_MEASURED)),
]  # fmt: skip


def families() -> dict[str, dict[str, Any]]:
    """``FAMILIES`` in JSON's terms."""
    return {
        task: {"name": name, "metric": metric, "more_is_better": more}
        for task, (name, metric, more) in FAMILIES.items()
    }


def judge_all(runs: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Every claim as a row; one whose runs are not there says so."""
    found, rows = Runs(runs), []
    for claim in CLAIMS:
        try:
            finding = claim.judge(found)
        except KeyError as error:
            finding = Finding(f"no run of {error.args[0]}", NOT_MEASURED)
        rows.append(
            {
                "name": claim.name,
                "section": claim.section,
                "claim": claim.claim,
                "paper": claim.paper,
                "ours": finding.ours,
                "verdict": finding.verdict,
            }
        )
    return rows
