"""``keras-mp estimate``: hours and bytes before anything is trained, with what they stand on."""

import argparse
import json
import re
import sys

HELP = "estimate hours and memory in mixed precision, from a trial, published figures or a guess"

EXIT_WRONG_USE, EXIT_NOTHING = 2, 3
# Those of keras_mp.bench.footprint, which is not imported for the list of commands.
OPTIMIZERS = ["adadelta", "adagrad", "adam", "adamw", "lion", "momentum", "nadam", "rmsprop", "sgd"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    hours = parser.add_argument_group("hours")
    hours.add_argument("--hours", type=_amount, metavar="H", help="a training's length now")
    hours.add_argument("--speedup", type=_amount, metavar="X", help="a guess, such as 2.1")
    hours.add_argument(
        "--split",
        type=_split,
        metavar="PARTS",
        help="with --speedup: how long the parts of a step take, such as "
        "input=2,compute=7,optimizer=1; the speed-up is then that of compute",
    )
    hours.add_argument(
        "--from-trial", metavar="FILE", help="what keras-mp bench --json has measured"
    )
    hours.add_argument("--device", metavar="CARD", help="published figures of a card: V100, A100")
    hours.add_argument("--model", metavar="NAME", help="... of a model, or a kind: resnet50, BERT")
    memory = parser.add_argument_group("memory")
    memory.add_argument("--parameters", type=_amount, metavar="N", help="trainable: 25.6M")
    memory.add_argument(
        "--activations",
        type=_amount,
        metavar="N",
        help="numbers kept for the backward pass, for each sample: 22M",
    )
    memory.add_argument(
        "--batch-sizes", type=_batches, default=[1, 32, 128], metavar="B,B", help="1,32,128"
    )
    memory.add_argument("--optimizer", choices=OPTIMIZERS, default="adam", help="default: adam")
    memory.add_argument("--memory", type=_bytes, metavar="SIZE", help="there is this much: 16GB")
    parser.add_argument("--json", action="store_true", help="print the same as JSON")


def run(args: argparse.Namespace) -> int:
    from keras_mp.bench.published import NothingPublishedError
    from keras_mp.commands import _estimate

    try:
        _estimate.check(args)
        found, lines, status = _estimate.hours(args)
        more, further = _estimate.memory(args)
    except (NothingPublishedError, FileNotFoundError) as error:
        return _fail(error, EXIT_NOTHING)
    except (ValueError, OSError) as error:
        return _fail(error, EXIT_WRONG_USE)
    if args.json:
        print(json.dumps(found | more, indent=2))
    else:
        print("\n".join([*lines, *([""] if lines and further else []), *further]))
    return status


def _fail(error: Exception, status: int) -> int:
    if isinstance(error, OSError):
        print(f"keras-mp estimate: {error.filename}: {error.strerror}", file=sys.stderr)
    else:
        print(f"keras-mp estimate: {error}", file=sys.stderr)
    return status


_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}


def _amount(text: str) -> float:
    """A number with an optional k, M, G (or B) or T. What it may be is checked where it is used."""
    match = re.fullmatch(r"\s*([-+.\deE]+|[-+]?(?:inf|nan))\s*([kmgbt]?)\s*", text, re.IGNORECASE)
    try:
        return float(match[1]) * _UNITS[match[2].lower()] if match else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected a number such as 2.1 or 25.6M. Received: {text!r}"
        ) from None


def _bytes(text: str) -> float:
    binary = re.fullmatch(r"(.*?)\s*([kmgt])ib", text.strip(), re.IGNORECASE)
    if binary:  # 16GiB
        value = _amount(binary[1]) * 1024 ** ("kmgt".index(binary[2].lower()) + 1)
    else:
        value = _amount(re.sub(r"(?<=[kmgtKMGT\d ])[bB]$", "", text.strip()))
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a size such as 16GB. Received: {text!r}")
    return value


def _batches(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(
            f"expected whole numbers from 1 on with commas, such as 32,64. Received: {text!r}"
        )
    return [int(part) for part in parts]


def _split(text: str) -> dict[str, float]:
    try:
        pairs = [part.split("=") for part in text.split(",")]
        parts = {name.strip(): float(value) for name, value in pairs}
        if len(parts) < len(pairs):
            raise ValueError("a part twice")
        return parts
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected parts, each once, such as input=2,compute=7. Received: {text!r}"
        ) from None
