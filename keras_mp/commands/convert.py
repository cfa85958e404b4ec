"""``keras-mp convert``: a saved model in another precision, weights and optimizer state kept."""

import argparse
import sys

HELP = "write a saved model in another precision, with its weights and optimizer state"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN.keras")
    parser.add_argument("output", metavar="OUT.keras")
    parser.add_argument(
        "--policy", required=True, help="mixed_float16, mixed_bfloat16, float32, ..."
    )
    parser.add_argument(
        "--half", action="store_true", help="half-size variables too, for inference; not compiled"
    )


def run(args: argparse.Namespace) -> int:
    from keras_mp.commands._models import WRONG_USE, load

    try:
        model = load(args.model)
        from keras_mp.policies.convert import convert
        from keras_mp.policies.plan import plan
        from keras_mp.policies.saving import save_model

        planned = plan(model, args.policy)
        save_model(convert(model, planned, half=args.half), args.output, None)
    except (ValueError, OSError, ImportError) as error:
        print(f"keras-mp convert: {error}", file=sys.stderr)
        return WRONG_USE
    kept = sum(row.policy == "float32" for row in planned)
    print(f"{args.output}: {planned.policy}, {kept} of {len(planned.rows)} layers in float32")
    return 0
