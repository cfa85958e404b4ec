"""``keras-mp lab``: number formats, a training step, a loss scale and memory, to see and move."""

import argparse
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_mp.telemetry.records import Numerics

HELP = "see what number formats do to numbers, to a training step, to gradients and to memory"

EXIT_WRONG_USE, EXIT_NOTHING = 2, 3
PAGES = ("bits", "step", "scale", "memory", "ops", "results")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "page", nargs="?", choices=PAGES, default="bits", help="begin with this page"
    )
    parser.add_argument(
        "--run",
        dest="recorded",
        metavar="DIR",
        help="a run's folder: its recorded numerics stand first on the page scale",
    )


def run(args: argparse.Namespace) -> int:
    name = ""
    numerics: tuple[Numerics, ...] = ()
    if args.recorded is not None:
        from keras_mp.telemetry.runs import RunsFolder

        if not os.path.isdir(args.recorded):
            print(f"keras-mp lab: {args.recorded}: there is no such folder", file=sys.stderr)
            return EXIT_NOTHING
        folder = RunsFolder(args.recorded)
        folder.poll(seconds=None)
        found = [job for job in folder.jobs if job.numerics]
        if not found:
            print(
                f"keras-mp lab: {args.recorded} holds no run with numerics. Expected one that was "
                "trained with keras_mp.Monitor(..., numerics=True)",
                file=sys.stderr,
            )
            return EXIT_NOTHING
        name, numerics = found[0].name, tuple(found[0].numerics.values())
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        print("keras-mp lab: the lab needs a terminal.", file=sys.stderr)
        return EXIT_WRONG_USE
    try:
        import textual  # noqa: F401
    except ImportError:
        print(
            "keras-mp lab: the lab needs the package textual, which the extra 'tui' brings: "
            "pip install 'keras-mp[tui]'.",
            file=sys.stderr,
        )
        return EXIT_WRONG_USE
    from tui.lab.app import LabApp
    from tui.settings import default_path

    LabApp(name, numerics, page=args.page.title(), settings=default_path()).run()
    return 0
