"""``keras-mp monitor``: the dashboard, or the same once as a table or as JSON."""

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_mp.telemetry.report import Report

HELP = "watch the jobs under a folder, live in the terminal or once as a table or JSON"

# A journal of gigabytes is shown from its end after this long, its history left out.
READ_SECONDS = 1.5
# How long --once waits for a host to send what it has.
REMOTE_SECONDS = 15.0
EXIT_WRONG_USE, EXIT_NOTHING = 2, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="*",
        default=["runs"],
        metavar="RUNS",
        help="folder of runs, or host:folder over ssh; as many as you like (default: runs)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--once", action="store_true", help="print the table once and exit")
    form.add_argument("--json", action="store_true", help="print the same as JSON and exit")
    parser.add_argument(
        "--fps",
        type=_positive,
        metavar="N",
        help="screen updates a second (default: the settings', 4 at first; 1 for a slow line)",
    )


def run(args: argparse.Namespace) -> int:
    return _once(args) if args.once or args.json else _dashboard(args)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 60:
        raise argparse.ArgumentTypeError(f"expected a number above 0, up to 60. Received: {text!r}")
    return value


def _once(args: argparse.Namespace) -> int:
    from keras_mp.telemetry import report

    reports = [_look(place) for place in args.runs]
    if args.json:
        texts = [report.as_json(result) for result in reports]
        print(texts[0] if len(texts) == 1 else "[" + ",\n".join(texts) + "]")
    else:
        for result in reports:
            if result.error:
                print(f"keras-mp monitor: {result.error}", file=sys.stderr)
            else:
                if len(reports) > 1:
                    print(f"{result.runs}:")
                print(report.as_table(result, getattr(sys.stdout, "encoding", None)))
    found = [result.exit_status for result in reports if not result.error]
    return max(found, default=EXIT_NOTHING)


def _look(place: str) -> "Report":
    import time
    from dataclasses import replace

    from keras_mp.telemetry import report
    from keras_mp.telemetry.runs import RunsFolder
    from tui.places import parse

    where = parse(place)
    if where is None:
        folder = RunsFolder(place)
        folder.poll(seconds=READ_SECONDS)
        return report.look(folder, time.time())
    from tui.remote import RemoteRuns

    far = RemoteRuns(*where)
    try:
        far.settle(REMOTE_SECONDS)
        return replace(report.look(far, time.time()), runs=far.where)
    finally:
        far.close()


def _dashboard(args: argparse.Namespace) -> int:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        print(
            "keras-mp monitor: the dashboard needs a terminal; --once and --json do without.",
            file=sys.stderr,
        )
        return EXIT_WRONG_USE
    try:
        import textual  # noqa: F401
    except ImportError:
        print(
            "keras-mp monitor: the dashboard needs the package textual, which the extra 'tui' "
            "brings: pip install 'keras-mp[tui]'. --once and --json work without it.",
            file=sys.stderr,
        )
        return EXIT_WRONG_USE
    import gc

    # Nothing of what is imported is ever garbage: without the collector it takes a tenth less.
    gc.disable()
    from tui.app import MonitorApp
    from tui.settings import default_path

    app = MonitorApp(args.runs, fps=args.fps, settings=default_path())
    gc.freeze()
    gc.enable()
    app.run()
    return app.return_code or 0
