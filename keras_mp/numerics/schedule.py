"""When a training looks into its own numbers: seldom enough that it costs next to nothing.

A look is a forward and backward pass or two outside the training, so it is expensive; its price is
known after the first. By the clock, the next one waits until all of them together, that one
included, cost no more than ``BUDGET`` of the time trained.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_mp.numerics.formats import get_format

# The promise is 5 %: a look that turns out dearer than the one before must not break it.
BUDGET = 0.04
# Two looks are never closer than this: numbers change slowly, and journals should stay small.
MIN_SECONDS = 5.0
# ... nor than this share of the time trained: some 250 looks in a day, however long it gets.
GROWING = 0.02
# What the first look may cost before anything was measured, in steps and at least in seconds: seen
# were up to 10 steps on torch and 125 on TensorFlow, which runs it without its graph; jax compiles
# it. (benchmarks/numerics.py)
FIRST_STEPS = {"torch": 12.0, "tensorflow": 150.0, "jax": 500.0}
FIRST_SECONDS = {"torch": 0.05, "tensorflow": 0.3, "jax": 5.0}


@dataclass(frozen=True)
class Options:
    """What ``Monitor(numerics=...)`` may say.

    Attributes:
        every: Steps between two looks, or "auto": by their cost.
        format: Through whose eyes the shares are told.
    """

    every: int | str = "auto"
    format: str = "float16"

    def __post_init__(self) -> None:
        every = self.every
        number = isinstance(every, int) and not isinstance(every, bool) and every >= 1
        if every != "auto" and not number:
            raise ValueError(
                '`every` must be "auto" or a number of steps from 1 on. Received: '
                f"numerics={{'every': {every!r}}}"
            )
        object.__setattr__(self, "format", get_format(self.format).name)


def options_of(numerics: Any) -> Options | None:
    """The options that ``Monitor(numerics=...)`` means; None for off.

    Raises:
        ValueError: It is neither a bool nor a dict of known options.
    """
    if isinstance(numerics, Options):
        return numerics
    if numerics is None or isinstance(numerics, bool):
        return Options() if numerics else None
    known = ("every", "format")
    if not isinstance(numerics, Mapping) or not set(numerics) <= set(known):
        raise ValueError(
            f"`numerics` must be True, False or a dict with some of {list(known)}. "
            f"Received: numerics={numerics!r}"
        )
    return Options(**numerics)


class Schedule:
    """Says when to look; told the time and the steps, it asks nobody.

    Args:
        options: What the user wants. backend: For the first look's likely price.
    """

    def __init__(self, options: Options, backend: str):
        self._options = options
        self._likely = FIRST_STEPS.get(backend, 150.0), FIRST_SECONDS.get(backend, 0.3)
        self._began: float | None = None
        self._first_step = 0
        self._looked_at: int | None = None
        self._next = 0.0
        self.spent = 0.0
        self.looks = 0
        self._last_cost: float | None = None

    def due(self, now: float, step: int) -> bool:
        """Whether to look before the step after ``step``, which begins at ``now``.

        The first steps, which compile, are left out.
        """
        if self._began is None:
            self._began, self._first_step = now, step
            return False
        every = self._options.every
        if isinstance(every, int):
            return self._looked_at is None or step - self._looked_at >= every
        done = step - self._first_step
        if done < 1 or now < self._next:
            return False
        trained = now - self._began - self.spent
        cost = self._last_cost
        if cost is None:
            steps, seconds = self._likely
            cost = max(steps * trained / done, seconds)
        return self.spent + cost <= BUDGET * trained

    def looked(self, now: float, step: int, seconds: float) -> None:
        """A look before the step after ``step`` has ended at ``now`` and took ``seconds``."""
        self._looked_at = step
        # The first look of a process is the dearest (compiling, warming up): what it took is paid
        # back before the next, but does not foretell that one's price.
        self._last_cost = seconds if self.looks else min(seconds, 0.5 * seconds + 0.1)
        self.looks += 1
        self.spent += seconds
        trained = now - (self._began if self._began is not None else now) - self.spent
        self._next = now + max(MIN_SECONDS, GROWING * trained)

    def begin(self, step: int) -> None:
        """A training begins (again); what was learnt of the price stays."""
        self._began, self._first_step, self._next = None, step, 0.0
        self._looked_at = None
        self.spent = 0.0
