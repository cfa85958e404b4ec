"""``keras-mp export``: a run's journal as TensorBoard event files or as CSV."""

import argparse
import os
import sys
from pathlib import Path

HELP = "write a run's journal as TensorBoard event files or as CSV"

EXIT_WRONG_USE, EXIT_NOTHING = 2, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="RUN", help="folder of one run, or (TensorBoard) of several"
    )
    parser.add_argument(
        "--tensorboard", metavar="DIR", help="event files, DIR/<run>: tensorboard --logdir DIR"
    )
    parser.add_argument(
        "--csv",
        metavar="FILE",
        help="a row for each window of steps; skipped steps beside it in <FILE>.overflows.csv",
    )


def run(args: argparse.Namespace) -> int:
    from keras_mp.telemetry import export

    if not args.tensorboard and args.csv is None:
        print(
            "keras-mp export: nothing to write; expected --tensorboard DIR, --csv FILE or both",
            file=sys.stderr,
        )
        return EXIT_WRONG_USE
    folder = Path(os.path.expanduser(args.folder))
    runs = [folder] if export.is_run(folder) else []
    if not runs and folder.is_dir():
        runs = sorted(path for path in folder.iterdir() if export.is_run(path))
    if not runs:
        print(f"keras-mp export: no journal in {folder}", file=sys.stderr)
        return EXIT_NOTHING
    if args.csv is not None and len(runs) > 1:
        names = ", ".join(path.name for path in runs[:10])
        print(
            f"keras-mp export: --csv writes one run; expected the folder of one of: {names}. "
            f"Received: RUN={args.folder}",
            file=sys.stderr,
        )
        return EXIT_WRONG_USE
    try:
        for path in runs:
            written = []
            if args.tensorboard:
                written += export.export_tensorboard(path, os.path.expanduser(args.tensorboard))
            if args.csv is not None:
                written += export.export_csv(path, os.path.expanduser(args.csv))
            for one in written:
                print(f"{one.path}: {one.count:,} records")
    except (OSError, ValueError) as error:
        print(f"keras-mp export: {error}", file=sys.stderr)
        return EXIT_WRONG_USE
    return 0
