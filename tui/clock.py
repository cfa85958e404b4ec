"""What time it is. Tests set it; everything that shows an age or judges a silence asks it."""

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""
        ...


class WallClock:
    def now(self) -> float:
        return time.time()


class SetClock:
    """Stands still until it is moved."""

    def __init__(self, now: float):
        self._now = now

    def now(self) -> float:
        return self._now

    def move(self, seconds: float) -> None:
        self._now += seconds
