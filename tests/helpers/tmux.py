"""A program in a real terminal: tmux draws, takes keys and says what is on the screen."""

import os
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable

import pytest

CLI = "import sys; from keras_mp.cli import main; sys.exit(main(sys.argv[1:]))"
SECONDS = 90.0  # generous: the machine may be busy


class Tmux:
    """``keras-mp`` with ``arguments`` in a session of its own."""

    def __init__(self, *arguments: str, columns: int = 120, rows: int = 40, **environment: str):
        self._socket = f"keras-mp-{uuid.uuid4().hex[:8]}"
        # pytest-xdist sets COLUMNS and LINES, which win over the terminal's own size.
        words = ["env", "-u", "COLUMNS", "-u", "LINES"]
        words += [f"{name}={value}" for name, value in environment.items()]
        command = shlex.join([*words, sys.executable, "-c", CLI, *arguments])
        self._tmux("new-session", "-d", "-x", str(columns), "-y", str(rows), f"exec {command}")
        self._tmux("set-option", "-g", "remain-on-exit", "on")

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-f", os.devnull, "-L", self._socket, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env=os.environ | {"LC_ALL": "C.UTF-8"},
        )
        return done.stdout

    def screen(self) -> list[str]:
        """The rows that a person sees."""
        return [row.rstrip() for row in self._tmux("capture-pane", "-p").splitlines()]

    def text(self) -> str:
        return "\n".join(self.screen())

    def press(self, *keys: str) -> None:
        """Keys as tmux names them: ``Enter``, ``Escape``, ``Up``, ``a``."""
        for key in keys:
            self._tmux("send-keys", key)

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def wait(self, holds: Callable[[str], bool], what: str, seconds: float = SECONDS) -> str:
        """Until ``holds(text of the screen)``; returns that text."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            text = self.text()
            if holds(text):
                return text
            time.sleep(0.2)
        raise AssertionError(f"not within {seconds:.0f} s: {what}. On the screen:\n{self.text()}")

    def wait_for(self, *texts: str, seconds: float = SECONDS) -> str:
        return self.wait(lambda shown: all(t in shown for t in texts), f"{texts}", seconds)

    def exit_status(self, seconds: float = SECONDS) -> int:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            dead, _, status = (
                self._tmux("display-message", "-p", "#{pane_dead} #{pane_dead_status}")
                .strip()
                .partition(" ")
            )
            if dead == "1":
                return int(status or 0)
            time.sleep(0.2)
        raise AssertionError(f"the program has not ended. On the screen:\n{self.text()}")

    def close(self) -> None:
        self._tmux("kill-server")


@pytest.fixture
def tmux():
    """Starts programs; what is still open is closed at the end of the test."""
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux")
    opened: list[Tmux] = []

    def start(*arguments: str, **options) -> Tmux:
        opened.append(Tmux(*arguments, **options))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()
