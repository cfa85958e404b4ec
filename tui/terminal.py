"""The terminal under the dashboard: lent to a shell, taken away, or left as it was found."""

import asyncio
import contextlib
import os
import signal
import sys

from textual.app import App

# What a system sends to a program that is to end. Without an answer to it the terminal would stay
# without echo and line ends, and the copies of other hosts' journals on the disk.
ENDINGS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
NO_SHELL = "There is no shell behind this dashboard that could bring it back."


class TerminalApp(App[None]):
    """An app that goes to the shell and comes back, and ends when it is told to or left alone."""

    def on_mount(self) -> None:
        # Whatever the shell has written meanwhile.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        if self.is_headless:
            return
        for number in ENDINGS:
            if callable(signal.getsignal(number)):
                continue  # whoever runs the dashboard has jobs of its own to end
            with contextlib.suppress(NotImplementedError):  # Windows
                asyncio.get_running_loop().add_signal_handler(number, self._end, number)
        self.set_interval(1.0, self._see_whether_it_is_there)

    def release(self) -> None:
        """Close what outlives the process."""

    def action_suspend(self) -> None:
        """Give the terminal back to the shell until it says ``fg``."""
        if can_suspend():
            self.action_suspend_process()
        else:
            self.notify(NO_SHELL, severity="warning", markup=False)

    def _see_whether_it_is_there(self) -> None:
        """Whoever ignores hangups, or runs under somebody who does, would read nothing for ever."""
        if gone():
            os.kill(os.getpid(), ENDINGS[-1])

    def _end(self, number: int) -> None:
        if not gone():
            self.exit(return_code=128 + number)
            return
        # There is nothing to be put in order, and writing to it would never end.
        self.release()
        os._exit(128 + number)


def gone() -> bool:
    """Whether the terminal has hung up: a closed window, a line that broke."""
    try:
        return not os.isatty(sys.__stdin__.fileno()) if sys.__stdin__ is not None else True
    except (OSError, ValueError):
        return True


def can_suspend() -> bool:
    """Whether a shell with job control started this process.

    Such a shell is in the same session and gives each job a process group of its own. Behind
    ``docker run``, ``ssh -t host keras-mp monitor`` or a tmux window of its own there is none, and
    a stopped dashboard would hold the terminal for good.
    """
    if not hasattr(os, "getsid"):
        return False
    try:
        parent = os.getppid()
        return os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != os.getpgrp()
    except OSError:  # the parent has gone, or is not ours to ask
        return False
