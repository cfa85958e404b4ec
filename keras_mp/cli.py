"""``keras-mp``: the commands, their help, and what every one of them has in common.

Exit status: 0 well, 1 a warning, 2 unhealthy or wrong use, 3 nothing to read.
"""

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType

from keras_mp import commands
from keras_mp._version import __version__

EXIT_WRONG_USE = 2
EXIT_INTERRUPTED = 130

_EPILOG = "exit status: 0 well, 1 a warning, 2 unhealthy or wrong use, 3 nothing to read"


def find_commands() -> dict[str, ModuleType]:
    """Command name -> its module, in alphabetical order."""
    names = sorted(m.name for m in pkgutil.iter_modules(commands.__path__))
    return {
        name.replace("_", "-"): importlib.import_module(f"{commands.__name__}.{name}")
        for name in names
        if not name.startswith("_")
    }


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="keras-mp",
        description="Mixed precision for Keras 3 that is safe, fast and visible.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"keras-mp {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, module in find_commands().items():
        sub = subparsers.add_parser(name, help=module.HELP, description=module.HELP, epilog=_EPILOG)
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``keras-mp``. Returns the exit status."""
    _speak_any_encoding()
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return EXIT_WRONG_USE
    try:
        status = int(args.run(args))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone; say nothing more, also not at the interpreter's exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _speak_any_encoding() -> None:
    """A sign that the terminal's encoding lacks must not end a command with a traceback."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
