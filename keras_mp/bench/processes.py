"""The trial's side of its child processes: start one a variant, ask, take answers."""

import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import IO, Any, cast

# What TensorFlow's libraries say of themselves when they load: not why a process ended.
_START_UP_NOISE = re.compile(r"WARNING: All log messages before absl|[IW]\d{4} |To enable the foll")


class WorkerFailed(RuntimeError):
    """A variant's process could not do what it was asked; the message says why."""


class WorkerProcess:
    """One variant's process. A context manager: leaving it ends the process.

    Args:
        name: The variant, for messages.
    """

    def __init__(self, name: str):
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            # Several variants live on one device: none may take all of it beforehand.
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            **os.environ,
            # The user's modules must be found where they were found here.
            "PYTHONPATH": os.pathsep.join(dict.fromkeys([os.getcwd(), *filter(None, sys.path)])),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "keras_mp.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        pipes = self._process.stdin, self._process.stdout
        self._stdin, self._stdout = cast(IO[str], pipes[0]), cast(IO[str], pipes[1])

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is not None:  # Ctrl-C, mostly: nobody waits for a step that it is in
            self._process.kill()
        self.end()

    def ask(self, do: str, **arguments: Any) -> Any:
        """The answer to one request.

        Raises:
            WorkerFailed: The process could not do it, or has died.
        """
        self.send(do, **arguments)
        return self.answer()

    def send(self, do: str, **arguments: Any) -> None:
        """Ask, and do not wait: ``answer`` does."""
        with suppress(OSError):  # it has died: ``answer`` tells why
            self._stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._stdin.flush()

    def answer(self) -> Any:
        """The answer to what was sent. Raises ``WorkerFailed`` as ``ask`` does."""
        line = self._stdout.readline()
        if not line:
            raise WorkerFailed(self._last_words())
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(_in_words(answer["error"], answer.get("kind", "")))
        return answer["ok"]

    def end(self) -> None:
        """End the process, at once if it does not end by itself."""
        with suppress(OSError):  # it may have died with a request half sent
            self._stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()
        self._errors.close()

    def _last_words(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        said = [line for line in said if not _START_UP_NOISE.match(line)]
        why = f": {said[-1]}" if said else ""
        if status == -9:
            why = ": it was killed, as the system does when memory runs out"
        return f"its process ended with status {status}{why}"


def _in_words(message: str, kind: str) -> str:
    text = message.lower()
    signs = ("out of memory", "resource_exhausted", "resourceexhausted")
    if any(sign in text for sign in signs) or kind in ("MemoryError", "ResourceExhaustedError"):
        return f"out of memory; try a smaller batch size ({message[:120]})"
    return message
