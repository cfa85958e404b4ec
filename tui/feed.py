"""The one thread that reads. It posts snapshots and touches nothing else."""

import threading
from collections.abc import Callable

from tui.reader import Reader
from tui.snapshot import Snapshot

# The first rows are there at once; the others follow a moment later.
FIRST_LOOK = 0.03
# How long the first frame waits for them: a disk may hang.
FIRST_WAIT = 0.25
# The history may wait this long for the first frame: Python does one thing at a time.
FIRST_FRAME = 1.0


class Feed:
    """Looks at the journals ``fps`` times a second and hands each snapshot to ``post``.

    Args:
        post: Called in the feed's thread; must be safe there (``post_message`` is).
    """

    def __init__(self, reader: Reader, post: Callable[[Snapshot], object], fps: float):
        self._reader, self._post, self._pause = reader, post, 1.0 / fps
        self._first: Snapshot | None = None
        self._looked, self._shown, self._stop = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run, name="keras-mp feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def first(self) -> Snapshot | None:
        """The first snapshot; None where it takes too long."""
        return self._first if self._looked.wait(FIRST_WAIT) else None

    def go_on(self) -> None:
        """The first frame is there: read on."""
        self._shown.set()

    def stop(self) -> None:
        """Ask the thread to end, and wait for the look it may be in."""
        self._stop.set()
        self._shown.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
        self._reader.close()

    def _run(self) -> None:
        self._first = self._reader.look(FIRST_LOOK)
        self._looked.set()
        self._shown.wait(FIRST_FRAME)
        while not self._stop.is_set():
            self._post(self._reader.look())
            # A long history is read in slices without a pause between them.
            self._stop.wait(0.0 if self._reader.behind else self._pause)
