"""``keras-mp``: the commands, their help, and what every one of them has in common.

Exit status: 0 well, 1 a warning, 2 unhealthy or wrong use, 3 nothing to read.
"""

import argparse
import errno
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


def find_commands(only: str | None = None) -> dict[str, ModuleType]:
    """Command name -> its module, in alphabetical order; of that one name where there is one."""
    found = sorted(m.name for m in pkgutil.iter_modules(commands.__path__))
    names = {name.replace("_", "-"): name for name in found if not name.startswith("_")}
    if only in names:
        names = {only: names[only]}
    return {
        command: importlib.import_module(f"{commands.__name__}.{name}")
        for command, name in names.items()
    }


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands; of one alone it is there sooner."""
    parser = argparse.ArgumentParser(
        prog="keras-mp",
        description="Mixed precision for Keras 3 that is safe, fast and visible.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"keras-mp {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, module in find_commands(only).items():
        sub = subparsers.add_parser(name, help=module.HELP, description=module.HELP, epilog=_EPILOG)
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``keras-mp``. Returns the exit status."""
    _speak_any_encoding()
    words = sys.argv[1:] if argv is None else list(argv)
    parser = build_parser(only=words[0] if words else None)
    args = parser.parse_args(words)
    if args.command is None:
        parser.print_help(sys.stderr)
        return EXIT_WRONG_USE
    try:
        status = int(args.run(args))
        if sys.stdout is not None:  # it is None where the caller has closed it
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has gone
        _say_no_more()
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _say_no_more()
        print(f"keras-mp: the output cannot be written: {error.strerror}", file=sys.stderr)
        return EXIT_WRONG_USE


def _say_no_more() -> None:
    """What is still to be written would fail once more at the interpreter's exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _speak_any_encoding() -> None:
    """A sign that the terminal's encoding lacks must not end a command with a traceback."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
