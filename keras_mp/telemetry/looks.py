"""When to look at the device: by the clock, by what a look costs, and before it forgets."""

import time

# every="auto": at most four looks a second (the dashboard paints no faster), and so seldom that
# they cost a third of a percent of the training, which leaves the rest of 1 % to the hook at each
# step and to what is done once an epoch.
MIN_INTERVAL, MAX_INTERVAL = 0.25, 10.0
COST_FACTOR = 300.0
# A look costs the processor time that it takes. While the host only waits for the device, the
# device works: that is training; what it costs is the gap until the host has handed out work again,
# taken as a tenth of the wait. On a CPU the host is the device: a wait is time that others took, as
# they would have taken it from the training.
WAIT_COST, WAIT_COST_ON_CPU = 0.1, 1.0


class Looks:
    """Plans the looks of one job.

    Args:
        every: Steps between two looks; None decides by what a look costs.
    """

    def __init__(self, every: int | None):
        self._every = every
        self._most, self._wait_cost = 1, WAIT_COST
        self._next, self._steps = 0.0, 1
        self._began = self._worked = 0.0

    def begin(self, rows: int, longest: int, on_cpu: bool, compiled: bool) -> None:
        """A training begins.

        Args:
            rows: Steps that the device remembers.
            longest: Steps that pass between two chances to look.
            compiled: Whether its first step is already compiled, and needs no look of its own.
        """
        self._most = max(1, min(self._every or rows, rows - longest + 1))
        self._wait_cost = WAIT_COST_ON_CPU if on_cpu else WAIT_COST
        self._next, self._steps = 0.0, 1
        if compiled:
            self._plan(time.perf_counter(), 0.0)

    def due(self, now: float, pending: int) -> bool:
        """Whether to look, ``pending`` steps after the last look. Asked at each step."""
        if pending >= self._steps:
            return pending > 0
        return self._every is None and now >= self._next and pending > 0

    def start(self) -> float:
        """A look begins; returns the time (``time.perf_counter``)."""
        self._began, self._worked = time.perf_counter(), time.thread_time()
        return self._began

    def done(self) -> None:
        """It is over, and what it took decides when the next one comes."""
        now = time.perf_counter()
        work = time.thread_time() - self._worked
        self._plan(now, work + self._wait_cost * max(0.0, now - self._began - work))

    def _plan(self, now: float, cost: float) -> None:
        self._next = now + min(MAX_INTERVAL, max(MIN_INTERVAL, COST_FACTOR * cost))
        self._steps = self._most
