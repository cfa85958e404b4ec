"""``keras-mp replay``: what another loss scale setting would have made of a recorded run."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from keras_mp.commands import _runs

if TYPE_CHECKING:
    from keras_mp.scaling.state import ScaleConfig
    from keras_mp.telemetry.history import History
    from keras_mp.telemetry.replay import Outcome

HELP = "say how many steps a recorded run would have wasted under another loss scale setting"

LAST = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _runs.add_run(parser)
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help="dynamic, keras, torch, apex, megatron, deepspeed, flax, paper (default: the run's)",
    )
    parser.add_argument("--scale", type=float, metavar="X", help="a static scale")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        type=_runs.setting,
        default=[],
        metavar="NAME=VALUE",
        help="a field of the setting, such as growth_interval=500 or initial_scale=2**16",
    )
    parser.add_argument("--json", action="store_true", help="print the same as JSON")


def run(args: argparse.Namespace) -> int:
    from keras_mp.telemetry.history import history_of
    from keras_mp.telemetry.replay import what_if

    try:
        job = _runs.load(args)
    except ValueError as error:
        print(f"keras-mp replay: {error}", file=sys.stderr)
        return _runs.NOTHING
    try:
        history = history_of(job)
    except ValueError as error:
        print(f"keras-mp replay: {error}", file=sys.stderr)
        return _runs.NOTHING
    try:
        name, config = _setting(args, history)
    except (TypeError, ValueError) as error:
        print(f"keras-mp replay: {error}", file=sys.stderr)
        return _runs.WRONG_USE
    outcome = what_if(history, config)
    if args.json:
        print(json.dumps(_plain(job.name, name, history, outcome), indent=1))
    else:
        print(_text(job.name, name, history, outcome))
    return 0


def _setting(args: argparse.Namespace, history: "History") -> tuple[str, "ScaleConfig"]:
    """What the arguments ask for: (its name, the setting)."""
    from dataclasses import fields, replace

    from keras_mp.scaling.presets import resolve
    from keras_mp.scaling.state import ScaleConfig

    given = dict(args.settings)
    known = [field.name for field in fields(ScaleConfig)]
    for name in given.keys() - set(known):
        raise ValueError(
            f"--set must name a field of the setting: one of {', '.join(known)}. Received: {name}"
        )
    if args.preset is not None and args.scale is not None:
        raise ValueError("Give --preset or --scale, not both.")
    if args.scale is not None:
        return resolve(args.scale, **given)
    if args.preset is not None:
        return resolve(args.preset, **given)
    if history.config is None:
        raise ValueError(
            "The run has no loss scale setting of its own. Expected --preset or --scale."
        )
    return ("its own, changed" if given else "its own"), replace(history.config, **given)


def _text(run: str, name: str, history: "History", outcome: "Outcome") -> str:
    from keras_mp.telemetry.format import power_of_two

    config = outcome.config
    lines = [f"{run} under {name}: {outcome.sentence}"]
    if config.dynamic:
        lines.append(
            f"  starts at {power_of_two(config.initial_scale)}, × {config.growth_factor:g} after "
            f"{config.growth_interval:,} clean steps, × {config.backoff_factor:g} on "
            + ("each overflow" if config.hysteresis == 1 else f"overflow {config.hysteresis}")
        )
    path = " → ".join(f"{power_of_two(s)} from {step:,}" for step, s in outcome.scales[-LAST:])
    before = "… → " if len(outcome.scales) > LAST else ""
    lines.append(f"  scale: {before}{path}")
    if outcome.estimated:
        lines.append(
            f"  {outcome.estimated:,} steps were decided by an estimate: the run did not try that "
            "scale there"
        )
    lines += [f"  note: {note}" for note in history.notes]
    return "\n".join(lines)


def _plain(run: str, name: str, history: "History", outcome: "Outcome") -> dict:
    return {
        "run": run,
        "setting": name,
        "config": outcome.config.as_dict(),
        "steps": outcome.steps,
        "wasted": outcome.wasted,
        "least": outcome.least,
        "most": outcome.most,
        "share": outcome.share,
        "recorded": outcome.recorded,
        "estimated": outcome.estimated,
        "unknown": outcome.unknown,
        "stopped_at": outcome.stopped_at,
        "final_scale": outcome.final_scale,
        "scales": [list(point) for point in outcome.scales],
        "overflows": list(outcome.overflows),
        "sentence": outcome.sentence,
        "notes": list(history.notes),
    }
