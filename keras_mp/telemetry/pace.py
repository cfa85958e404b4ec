"""How fast a job runs: steps timed on the host, the telemetry's own time left out."""

from dataclasses import dataclass

# If waiting for the device took more than this share of a window, the host ran ahead: the times
# between its calls say how fast it hands out work, not how long a step takes.
AHEAD_SHARE = 0.2


@dataclass(frozen=True)
class Window:
    """A finished window. Durations in seconds.

    Attributes:
        steps: Steps in it. seconds: their time. p50, p95: of single steps; where the host runs
            ahead of the device both are the mean. compiling: as in ``records.Step``.
    """

    steps: int
    seconds: float
    p50: float | None
    p95: float | None
    compiling: float | None


class Pace:
    """Collects step times, by one clock (``time.perf_counter``); ``mark`` costs two appends.

    Each call of ``mark`` says that ``steps`` steps begin now (several with
    ``steps_per_execution``); ``close`` ends the window, and the next ``mark`` begins another. What
    lies between the two is the telemetry's own time and belongs to no window.

    Attributes:
        pending: Steps marked in this window. total: Steps marked since the beginning.
    """

    def __init__(self) -> None:
        self._marks: list[float] = []
        self._steps: list[int] = []
        self._first = True
        self.pending = 0
        self.total = 0

    def mark(self, steps: int, at: float) -> None:
        """``steps`` steps begin at the clock time ``at``."""
        self._marks.append(at)
        self._steps.append(steps)
        self.pending += steps
        self.total += steps

    def correct_last(self, steps: int) -> None:
        """The last mark covered ``steps`` steps (the short rest of an epoch)."""
        if self._steps:
            difference = steps - self._steps[-1]
            self._steps[-1] = steps
            self.pending += difference
            self.total += difference

    def delay(self, seconds: float) -> None:
        """The step marked last begins so much later: something else was done first."""
        if self._marks:
            self._marks[-1] += seconds

    @property
    def first(self) -> bool:
        """Whether this window holds a first step, which compiles and warms up."""
        return self._first

    def expect_warm(self) -> None:
        """The next window has no such step: it was compiled before."""
        self._first = False

    def close(self, done: float, waited: float = 0.0) -> Window | None:
        """End the window.

        Args:
            done: Clock time at which its last step was finished.
            waited: Seconds of it that the host waited for the device at the end.

        Returns:
            None if no step was marked.
        """
        if not self._marks:
            return None
        seconds = max(0.0, done - self._marks[0])
        steps = self.pending
        ends = [*self._marks[1:], done]
        times = sorted(
            (end - begin) / count
            for begin, end, count in zip(self._marks, ends, self._steps, strict=True)
            if count
        )
        p50: float | None = None
        p95: float | None = None
        if waited > AHEAD_SHARE * seconds and steps:
            p50 = p95 = seconds / steps
        elif times:
            p50, p95 = times[(len(times) - 1) // 2], times[int(0.95 * (len(times) - 1) + 0.5)]
        compiling = seconds if self._first else None
        self._first = False
        self._marks, self._steps, self.pending = [], [], 0
        return Window(steps, seconds, p50, p95, compiling)
