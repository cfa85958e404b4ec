"""``keras-mp audit``: what mixed precision will make wrong in a saved model."""

import argparse
import json
import sys

HELP = "say what mixed precision will make wrong in a saved model, and how to mend it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.keras")
    parser.add_argument(
        "--policy", help="look at it as if every layer had this policy (default: each its own)"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="where it will compute: A100, T4, 7.5 (default: here)"
    )
    parser.add_argument("--json", action="store_true", help="print the same as JSON")


def run(args: argparse.Namespace) -> int:
    from keras_mp.commands._models import WRONG_USE, load

    try:
        model = load(args.model)
        from keras_mp.policies.audit import audit

        report = audit(model, args.policy, device=args.device)
    except (ValueError, ImportError) as error:
        print(f"keras-mp audit: {error}", file=sys.stderr)
        return WRONG_USE
    print(json.dumps(report.as_json(), indent=2) if args.json else report)
    return report.exit_status
