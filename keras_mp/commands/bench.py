"""``keras-mp bench``: what mixed precision gains on the user's model, by short trials."""

import argparse
import sys
from pathlib import Path

HELP = "train a model for a short while in several precisions, and say what each gains"

EXIT_WARNING = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a .keras file, or package.module:function (or file.py:function) that makes a model",
    )
    parser.add_argument(
        "--data",
        metavar="DATA",
        help="a .npz file with x and y, or package.module:function that returns (x, y) or what "
        "fit takes; default: made-up numbers of the model's shapes",
    )
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="default: 32")
    parser.add_argument(
        "--variants",
        default="float32,mixed_bfloat16,mixed_float16,planned",
        metavar="A,B",
        help="default: %(default)s",
    )
    parser.add_argument(
        "--policy", help="what planned plans for; default: what is recommended here"
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns a variant (default: 5)")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="length of a turn, about (default: 2)"
    )
    parser.add_argument(
        "--loss-steps", type=int, default=20, help="steps whose losses are compared (default: 20)"
    )
    parser.add_argument(
        "--memory",
        type=_gigabytes,
        metavar="GB",
        help="find the largest batch for so much; default: what the device has",
    )
    parser.add_argument("--json", action="store_true", help="print the trial as JSON")
    parser.add_argument("--svg", metavar="FILE", help="draw the trial as a picture")


def run(args: argparse.Namespace) -> int:
    from keras_mp.bench import trial
    from keras_mp.bench.progress import ProgressBar
    from keras_mp.commands._models import WRONG_USE

    bar = ProgressBar()
    try:
        if args.svg is not None and not Path(args.svg).absolute().parent.is_dir():
            raise ValueError(f"There is no such folder. Received: --svg {args.svg}")
        found = trial(
            args.model,
            args.data,
            variants=args.variants.split(","),
            policy=args.policy,
            batch_size=args.batch_size,
            rounds=args.rounds,
            seconds=args.seconds,
            loss_steps=args.loss_steps,
            memory=args.memory,
            progress=bar,
        )
        bar.close()
        if args.svg is not None:
            from keras_mp.bench.picture import as_svg

            Path(args.svg).write_text(as_svg(found), encoding="utf-8")
    except (ValueError, OSError, ImportError) as error:
        bar.close()
        print(f"keras-mp bench: {error}", file=sys.stderr)
        return WRONG_USE
    print(found.to_json() if args.json else found)
    troubled = any(code in ("failed", "losses") for code, _ in found.advice.held_back)
    return EXIT_WARNING if troubled else 0


def _gigabytes(text: str) -> int:
    unit = 2**30 if text.upper().endswith("GIB") else 10**9
    number = text.upper().removesuffix("B").removesuffix("I").removesuffix("G").strip()
    try:
        size = float(number) * unit
    except ValueError:
        size = -1
    if not 0 < size < float("inf"):
        raise argparse.ArgumentTypeError(f"expected gigabytes, such as 80. Received: {text!r}")
    return int(size)
