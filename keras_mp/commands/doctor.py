"""``keras-mp doctor``: which precision suits this machine, why, and what stands in the way."""

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_mp.policies.diagnosis import Diagnosis

HELP = "say which precision suits this machine, why, and what stands in the way"

EXIT_WRONG_USE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="ask about another device: A100, T4, 7.5 (a compute capability), tpu, mps, cpu",
    )
    parser.add_argument("--json", action="store_true", help="print the same as JSON")


def run(args: argparse.Namespace) -> int:
    os.environ.setdefault(
        "TF_CPP_MIN_LOG_LEVEL", "3"
    )  # the report is the doctor's, not TensorFlow's
    from keras_mp.policies.diagnosis import diagnose, diagnose_device

    try:
        found = diagnose_device(args.device) if args.device is not None else diagnose()
    except ValueError as error:
        print(f"keras-mp doctor: {error}", file=sys.stderr)
        return EXIT_WRONG_USE
    print(json.dumps(found.as_json(), indent=2) if args.json else as_text(found))
    return found.exit_status


def as_text(found: "Diagnosis") -> str:
    """The diagnosis as lines for a person."""
    lines = []
    if found.backend is not None:
        others = f"; also installed: {', '.join(found.others)}" if found.others else ""
        version = f" {found.version}" if found.version else ""
        lines.append(f"backend  {found.backend}{version} (chosen by {found.chosen_by}){others}")
    if found.device is not None:
        lines.append(f"device   {found.device}")
        for name, precision in found.precisions.items():
            lines.append(f"         {name:<9} {precision.support:<9} {precision.why}")
    if found.card is not None:
        rates = ", ".join(f"{name} {rate:g}" for name, rate in found.card.tflops.items())
        if rates:
            lines.append(f"peaks    {rates} TFLOPS (published, not measured: {found.card.source})")
    if found.choice is not None:
        lines.append(f"policy   {found.choice.policy}: {found.choice.reason}")
        if found.choice.alternatives:
            lines.append(f"         else {', '.join(found.choice.alternatives)}")
    for name, value in found.switches.items():
        lines.append(f"switch   {name}={value}")
    for trouble in found.troubles:
        lines.append(f"{trouble.severity:<8} {trouble.message}")
    return "\n".join(lines)
