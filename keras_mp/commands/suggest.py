"""``keras-mp suggest``: the loss scale and the float32 layers that a run's numbers advise."""

import argparse
import json
import sys
from dataclasses import asdict

from keras_mp.commands import _runs

HELP = "say which loss scale, and which layers in float32, a recorded run's numbers advise"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _runs.add_run(parser)
    parser.add_argument("--json", action="store_true", help="print the same as JSON")


def run(args: argparse.Namespace) -> int:
    from keras_mp.numerics.suggest import suggest

    try:
        found = suggest(_runs.load(args).folder)
    except ValueError as error:
        print(f"keras-mp suggest: {error}", file=sys.stderr)
        return _runs.NOTHING
    print(json.dumps(asdict(found), indent=1) if args.json else found)
    return 0
