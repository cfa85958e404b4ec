"""A progress bar on one line of a terminal; nothing where there is no terminal."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

BAR = 24


class ProgressBar:
    """Call it with (what is done now, 0 to 1); ``close`` clears the line.

    Args:
        stream: Where to draw. Defaults to standard error, so that output can be redirected.
        clock: For the time that is left.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._began = clock()
        self._drawn = False

    def __call__(self, stage: str, done: float) -> None:
        if not self._stream.isatty():
            return
        full = int(BAR * done)
        left = ""
        if 0.05 < done < 1:
            seconds = (self._clock() - self._began) * (1 - done) / done
            left = f"  about {seconds:.0f} s left"
        line = f"[{'#' * full}{'.' * (BAR - full)}] {done:4.0%}  {stage}{left}"
        width = shutil.get_terminal_size((80, 24)).columns - 1
        self._stream.write("\r" + line[:width].ljust(width))
        self._stream.flush()
        self._drawn = True

    def close(self) -> None:
        """Clear the line, so that what comes next begins on an empty one."""
        if self._drawn:
            width = shutil.get_terminal_size((80, 24)).columns - 1
            self._stream.write("\r" + " " * width + "\r")
            self._stream.flush()
            self._drawn = False
