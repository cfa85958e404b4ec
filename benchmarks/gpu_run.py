"""One backend's processes for ``gpu.py``: started, read row by row, ended when their time is up."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpu_work import BROKEN

ROOT = Path(__file__).parents[1]
WORKER = ROOT / "benchmarks" / "gpu_work.py"
STARTING = 120.0  # seconds that a backend has to load and to find its device
AGAIN = 15.0  # seconds that must be left to start once more: loading takes most of them

Row = dict[str, Any]


def start(backend: str, options: Sequence[str]) -> subprocess.Popen[str]:
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])
    )
    return subprocess.Popen(
        [sys.executable, str(WORKER), *options],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def about(backends: Sequence[str], seconds: float = STARTING) -> dict[str, Row]:
    """What each backend says of itself, asked side by side; ``{"why": ...}`` where it says nothing.

    Loading the backends once more costs seconds. In return the time is shared among those that see
    a device, and one that cannot even be imported is known before anything is measured.
    """
    running = {backend: start(backend, ["--about"]) for backend in backends}
    end = time.monotonic() + seconds
    found: dict[str, Row] = {}
    for backend, process in running.items():
        try:
            said, _ = process.communicate(timeout=max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            found[backend] = {"why": f"did not answer within {seconds:.0f} s"}
            continue
        rows = list(_rows(said.splitlines()))
        found[backend] = rows[0] if rows else {"why": f"ended with status {process.returncode}"}
    return found


def pieces(
    backend: str,
    wanted: Sequence[str],
    seconds: float,
    options: Sequence[str],
    add: Callable[[Row], None],
) -> None:
    """Add the rows of one backend, each when it is there.

    A process that dies, or whose device does not answer any more, is followed by another, behind
    the row that did it. The rows that are missing in the end are named in rows of their own:
    "late" (no time), "crash" (with the process's exit status).
    """
    end = time.monotonic() + seconds
    left, done, silent = list(wanted), 0, 0
    while left and silent < 2:
        remaining = end - time.monotonic()
        limits = ["--seconds", f"{max(1.0, remaining - 2):.0f}", "--skip", str(done)]
        process = start(backend, [*options, *limits, *(o for p in left for o in ("--only", p))])
        alarm = threading.Timer(max(1.0, remaining), process.kill)
        alarm.start()
        silent += 1
        try:
            for row in _rows(process.stdout or ()):
                silent = 0
                if row["piece"] == "ended":
                    left.remove(row["of"])
                    done = 0
                    continue
                done += row["piece"] == left[0]
                add(row)
        finally:
            alarm.cancel()
            process.kill()
            status = process.wait()
            if process.stdout is not None:
                process.stdout.close()
        remaining = end - time.monotonic()
        if not left or remaining <= 0:
            break
        # A broken device is told after its row; whatever else ended the process had no row yet.
        done += status != BROKEN
        add({"piece": "crash", "of": left[0], "row": done, "status": status})
        if remaining < AGAIN:
            break
    for piece in left:
        add({"piece": "late", "of": piece, "left": ["the rest"]})


def _rows(lines: Any) -> Any:
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue  # a library that prints where it should not
        if isinstance(row, dict) and "piece" in row:
            yield row
