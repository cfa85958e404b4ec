"""``keras-mp plan``: a policy for every layer of a saved model, with the reasons."""

import argparse
import sys

HELP = "print a policy for every layer of a saved model, with the reason for each"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.keras")
    parser.add_argument("--policy", default="auto", help="default: auto, by the device")
    parser.add_argument(
        "--device", metavar="NAME", help="where it will compute: A100, T4, 7.5 (default: here)"
    )
    parser.add_argument("--json", action="store_true", help="print the same as JSON")
    parser.add_argument(
        "--output", metavar="OUT.keras", help="write the model with the plan put on it"
    )


def run(args: argparse.Namespace) -> int:
    from keras_mp.commands._models import WRONG_USE, load

    try:
        model = load(args.model)
        from keras_mp.policies.plan import plan
        from keras_mp.policies.saving import save_model

        planned = plan(model, args.policy, device=args.device)
        print(planned.to_json() if args.json else planned)
        if args.output is not None:
            save_model(planned.apply(model), args.output)
    except (ValueError, OSError, ImportError) as error:
        print(f"keras-mp plan: {error}", file=sys.stderr)
        return WRONG_USE
    return 0
