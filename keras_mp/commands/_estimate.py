"""The answers of ``keras-mp estimate``: each as (JSON, lines, exit status)."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from keras_mp.bench import estimate, estimate_text, footprint
from keras_mp.bench.published import look_up
from keras_mp.bench.results import Trial

EXIT_WELL, EXIT_QUESTIONED = 0, 1


def check(args: argparse.Namespace) -> None:
    """Whether the arguments go together. Raises ValueError otherwise."""
    sources = {
        "--speedup": args.speedup is not None,
        "--from-trial": args.from_trial is not None,
        "--device or --model": args.device is not None or args.model is not None,
    }
    given = [name for name, is_given in sources.items() if is_given]
    if len(given) > 1:
        raise ValueError(f"A speed-up comes from one place. Received: {' and '.join(given)}")
    if args.split is not None and args.speedup is None:
        raise ValueError("--split needs --speedup: what forward and backward pass gain")
    for_memory = {"--parameters": args.parameters, "--activations": args.activations}
    missing = [name for name, value in for_memory.items() if value is None]
    if len(missing) == 1:
        raise ValueError(f"Memory needs --parameters and --activations. Missing: {missing[0]}")
    if not given and missing:
        raise ValueError(
            "Nothing to estimate. Expected --speedup, --from-trial, --device or --model for hours; "
            "--parameters and --activations for memory"
        )
    if args.hours is not None and not given:
        raise ValueError("--hours needs a speed-up: --speedup, --from-trial, --device or --model")
    if args.speedup is not None and args.hours is None and args.split is None:
        raise ValueError("--speedup needs --hours")


def hours(args: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    """What the arguments say about time; nothing where they do not ask.

    Raises:
        ValueError, OSError, NothingPublishedError: As the sources of the speed-up do.
    """
    if args.hours is not None:
        estimate.positive("hours", args.hours)
    if args.speedup is not None:
        return _from_guess(args)
    if args.from_trial is not None:
        return _from_trial(args)
    if args.device is not None or args.model is not None:
        return _from_published(args)
    return {}, [], EXIT_WELL


def _from_guess(args: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    speedup = estimate.positive("speedup", args.speedup)
    questioned = estimate.question(speedup)
    found: dict[str, Any] = {"source": "guess", "speedup": speedup, "question": questioned}
    lines = []
    if args.split is not None:
        overall = estimate.amdahl(args.split, speedup)
        found |= {"split": args.split, "overall": _finite(asdict(overall))}
        lines.append(f"forward and backward pass {speedup:.3g}×: a step {overall.speedup:.3g}×")
        lines.append(estimate_text.limits(overall))
        speedup = overall.speedup
    if args.hours is not None:
        result = estimate.hours_after(args.hours, speedup)
        found |= {"hours": result.before, "after": result.after.low, "saved": result.saved.low}
        lines.append(f"{estimate_text.from_to(result)} at {speedup:.3g}×")
    if questioned:
        lines += estimate_text.wrapped(f"questionable: {questioned}")
    lines.append(estimate_text.TRY_IT)
    return found, lines, EXIT_QUESTIONED if questioned else EXIT_WELL


def _from_trial(args: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    trial = Trial.read(args.from_trial)
    ups = estimate.from_trial(trial)
    results = {}
    if args.hours is not None:
        results = {up.name: estimate.hours_after(args.hours, up.speedup) for up in ups}
    questions = [said for up in ups for said in estimate.question_trial(up)]
    lines = [
        f"{trial.model} on {trial.device} ({trial.backend}), batch {trial.batch_size}: "
        f"median and quartiles of {ups[0].rounds} rounds",
        *estimate_text.trial_lines(ups, results),
    ]
    for each in questions:
        lines += estimate_text.wrapped(f"questionable: {each}")
    measured = {v.name: v.memory for v in trial.variants if v.memory is not None}
    if measured and args.parameters is None:
        lines += ["", *estimate_text.measured_memory(measured, args.batch_sizes), ""]
    lines.append("Measured there: the same model on another device may gain more or less.")
    found = {
        "source": "trial",
        "model": trial.model,
        "device": trial.device,
        "variants": {
            up.name: {
                "speedup": asdict(up.speedup),
                "rounds": up.rounds,
                "overall": None if up.overall is None else _finite(asdict(up.overall)),
            }
            | ({"after": asdict(results[up.name].after)} if up.name in results else {})
            for up in ups
        },
        "questions": questions,
    }
    if args.hours is not None:
        found["hours"] = args.hours
    if measured and args.parameters is None:
        found["memory"] = {
            str(batch): {name: of.at(batch) for name, of in measured.items()}
            for batch in args.batch_sizes
        }
    return found, lines, EXIT_QUESTIONED if questions else EXIT_WELL


def _from_published(args: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    published = look_up(args.device, args.model)
    up = published.speedup
    lines = [f"{up.low:.3g}–{up.high:.3g}×, median {up.middle:.3g}×: {published.basis}"]
    found: dict[str, Any] = {
        "source": "published",
        "basis": published.basis,
        "speedup": asdict(up),
        "figures": [asdict(row) for row in published.rows],
        "figures_of_the_model": published.exact,
    }
    if args.hours is not None:
        result = estimate.hours_after(args.hours, up)
        found |= {"hours": args.hours, "after": asdict(result.after)}
        lines.append(estimate_text.from_to(result))
    lines += estimate_text.published_lines(published)
    baselines = sorted({row.baseline_precision.upper() for row in published.rows})
    if "TF32" in baselines:
        which = "Against TF32" if len(baselines) == 1 else "Some are against TF32"
        lines.append(f"{which}, which uses the tensor cores already.")
    lines.append(estimate_text.TRY_YOURS)
    return found, lines, EXIT_WELL


def memory(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """What the arguments say about bytes, by arithmetic; nothing where they do not ask."""
    if args.parameters is None:
        return {}, []
    slots = footprint.SLOTS[args.optimizer]
    of = {
        batch: {
            name: footprint.footprint(args.parameters, args.activations, batch, name, slots)
            for name in footprint.RECIPES
        }
        for batch in args.batch_sizes
    }
    largest: dict[str, int] | None = None
    if args.memory is not None:
        largest = {
            name: footprint.largest_batch(
                args.memory, args.parameters, args.activations, name, slots
            )
            for name in footprint.RECIPES
        }
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    lines = estimate_text.memory_lines(of, largest, args.memory, encoding.startswith("utf"))
    lines += [
        "",
        "By arithmetic: what Keras' layers keep in float32, and temporary room, come on top; the",
        "mixed policy's weights are copies, which keras_mp.plan does not keep (torch, jax).",
        "Measured on your model: keras-mp bench MODEL.",
    ]
    found: dict[str, Any] = {
        "memory": {
            str(batch): {name: asdict(each) | {"total": each.total} for name, each in all_.items()}
            for batch, all_ in of.items()
        }
    }
    if largest is not None:
        found["largest_batch"] = largest
    return found, lines


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: "inf" if v == float("inf") else v for k, v in values.items()}
