"""The dashboard in a real pseudo-terminal, with keys sent as a keyboard sends them."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

import pytest
from helpers.dashboard import RECORDED

MAIN = "import sys; from keras_mp.cli import main; sys.exit(main(sys.argv[1:]))"
ESCAPES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(\x1b\\|\x07)|[@-Z\\-_])", re.S)


class Terminal:
    """A program in a pseudo-terminal of its own."""

    def __init__(
        self,
        *arguments: str,
        columns: int = 120,
        rows: int = 40,
        shell: str | None = None,
        **environment: str,
    ):
        self.output = b""
        command = [sys.executable, "-c", MAIN, *arguments]
        if shell is not None:  # a script in which $@ is the program
            command = ["bash", "-c", shell, "bash", *command]
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            env = os.environ | {"TERM": "xterm-256color"} | environment
            for fixed in ("COLUMNS", "LINES"):  # pytest-xdist sets them; they win over the ioctl
                env.pop(fixed, None)
            os.execvpe(command[0], command, env)
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def hang_up(self) -> None:
        os.close(self._fd)
        self._fd = os.open(os.devnull, os.O_RDONLY)

    def wait_for(self, *texts: str, seconds: float = 90.0) -> None:
        """Until all of the texts have been written since the last call."""
        deadline = time.monotonic() + seconds
        while not all(text in self.text() for text in texts):
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"{texts} did not appear in: {self.text()[-3000:]}")
        self.output = b""

    def text(self) -> str:
        return ESCAPES.sub(b"", self.output).decode(errors="replace")

    def _read(self, seconds: float) -> bool:
        if seconds <= 0 or not select.select([self._fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # the program has closed its side
            return False
        self.output += data
        return bool(data)

    def exit_status(self, seconds: float = 60.0) -> int:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._read(0.1)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
        raise AssertionError("the program has not ended")

    def close(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self._fd)


@pytest.fixture
def open_terminal():
    opened = []

    def start(*arguments, **options):
        opened.append(Terminal(*arguments, **options))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


def test_the_dashboard_in_a_terminal_with_keys_and_quit(open_terminal):
    terminal = open_terminal("monitor", str(RECORDED))
    terminal.wait_for("quit")
    terminal.send("\x1b[F")  # End
    terminal.send("\x1b[A")  # up
    terminal.resize(79, 20)
    os.kill(terminal.pid, signal.SIGWINCH)
    terminal.wait_for("this one has 79 x 20")
    terminal.resize(100, 30)
    os.kill(terminal.pid, signal.SIGWINCH)
    terminal.wait_for("quit")  # all is drawn anew
    terminal.send("?")
    terminal.wait_for("Back to the first order")
    terminal.send("xq")  # any key closes the help; the next one is answered
    assert terminal.exit_status() == 0


def test_ctrl_c_quits_cleanly(open_terminal):
    terminal = open_terminal("monitor", str(RECORDED))
    terminal.wait_for("quit")
    terminal.send("\x03")
    assert terminal.exit_status() == 0


def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_brings_all_of_it_back(open_terminal):
    terminal = open_terminal(
        *("monitor", str(RECORDED)), shell='set -m; "$@"; echo the shell; fg; echo the end'
    )
    terminal.wait_for("quit")
    terminal.send("\x1a")
    terminal.wait_for("the shell", "need you", "samples/s", "quit")  # and all is drawn anew
    terminal.send("q")
    terminal.wait_for("the end")
    assert terminal.exit_status() == 0


def test_without_a_shell_behind_it_ctrl_z_does_not_freeze_the_terminal(open_terminal):
    terminal = open_terminal("monitor", str(RECORDED))
    terminal.wait_for("quit")
    terminal.send("\x1a")
    terminal.wait_for("no shell behind")
    terminal.send("q")
    assert terminal.exit_status() == 0


@pytest.fixture
def remote(tmp_path):
    """The environment of a dashboard whose other host only hangs, and where its copies lie."""
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text("#!/bin/sh\nexec sleep 600\n")
    ssh.chmod(0o755)
    copies = tmp_path / "copies"
    copies.mkdir()
    return copies, {"PATH": f"{ssh.parent}:{os.environ['PATH']}", "TMPDIR": str(copies)}


def test_told_to_end_it_leaves_the_terminal_and_the_disk_as_they_were(open_terminal, remote):
    copies, environment = remote
    terminal = open_terminal("monitor", str(RECORDED), "gpu1:runs", **environment)
    terminal.wait_for("gpu1:runs: connecting", "quit")
    assert len(list(copies.iterdir())) == 1
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.exit_status() == 128 + signal.SIGTERM
    assert b"\x1b[?1049l" in terminal.output, "back from the alternate screen"
    assert list(copies.iterdir()) == []


@pytest.mark.parametrize("shell", [None, "trap '' HUP; \"$@\"; exit $?"], ids=["told", "untold"])
def test_without_its_terminal_it_ends(open_terminal, remote, shell):
    copies, environment = remote
    terminal = open_terminal("monitor", str(RECORDED), "gpu1:runs", shell=shell, **environment)
    terminal.wait_for("gpu1:runs: connecting", "quit")
    terminal.hang_up()
    assert terminal.exit_status() == 128 + signal.SIGHUP
    assert list(copies.iterdir()) == []


def test_a_locale_without_unicode_gets_ascii_alone(open_terminal):
    terminal = open_terminal(
        "monitor",
        str(RECORDED),
        LC_ALL="C",
        PYTHONUTF8="0",
        PYTHONCOERCECLOCALE="0",
    )
    sent = b""
    deadline = time.monotonic() + 90
    while not (b"quit" in sent and b"2^" in sent) and time.monotonic() < deadline:
        terminal._read(1.0)
        sent = terminal.output
    assert b"quit" in sent
    assert b"2^" in sent
    assert not [byte for byte in sent if byte > 127]
    assert b"\\u" not in sent, "an escape in place of a character would break the columns"
    terminal.send("q")
    assert terminal.exit_status() == 0


def test_the_lab_on_eighty_columns(open_terminal, tmp_path):
    terminal = open_terminal("lab", "memory", columns=80, rows=24, XDG_CONFIG_HOME=str(tmp_path))
    terminal.wait_for("keras-mp lab", "ResNet-50")
    terminal.send("1")
    terminal.wait_for("as each format holds it")
    terminal.send("q")
    assert terminal.exit_status() == 0
