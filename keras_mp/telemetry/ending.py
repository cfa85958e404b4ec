"""How a run ends when nobody says so: the program stops, fails, or leaves its training behind."""

import atexit
import os
import sys
import time
import weakref
from collections.abc import Callable

from keras_mp.telemetry.exchange import EventSink
from keras_mp.telemetry.journal import JournalWriter
from keras_mp.telemetry.records import End, Status

_exiting = False


def _note_exit() -> None:
    global _exiting
    _exiting = True


class Ending:
    """The last words of a run, also when nobody says that it has ended."""

    def __init__(self, writer: JournalWriter, sink: EventSink | None = None):
        self.writer = writer
        self.sink = sink
        self.running = False
        self._pid = os.getpid()

    @property
    def is_ours(self) -> bool:
        """A forked child has nothing to say about its parent's job."""
        return os.getpid() == self._pid

    def finish(self) -> None:
        """The owner is no more, or the interpreter ends.

        An exception that nobody caught is in ``sys.last_value`` by then. A killed process runs none
        of this: its journal has no end, and health.py sees that the process is gone.
        """
        if not self.is_ours:
            return
        if self.running:
            error = getattr(sys, "last_value", None) if _exiting else None
            if error is None:
                self.write("stopped", "training was left before its end")
            elif isinstance(error, KeyboardInterrupt):
                self.write("stopped", "interrupted")
            else:
                self.write("failed", describe_error(error))
        self.writer.close()
        if self.sink is not None:
            self.sink.close()

    def write(self, status: Status, reason: str | None) -> None:
        self.running = False
        step = self.writer.last_step
        self.writer.write(End(step=step, time=time.time(), status=status, reason=reason))
        self.writer.flush()


def end_with(owner: object, finish: Callable[[], None]) -> None:
    """``finish()`` when ``owner`` goes or the interpreter ends."""
    weakref.finalize(owner, finish)
    # Exit hooks run last in, first out: the one that notes the exit comes after finalize's own, and
    # so runs before it.
    atexit.unregister(_note_exit)
    atexit.register(_note_exit)


def describe_error(error: BaseException) -> str:
    """``ValueError: first line of the message``."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
