"""What an optimizer can tell about its loss scale, read at leisure: a few host reads a look.

Three sorts: ``keras_mp.LossScaleOptimizer`` keeps its last steps on the device and tells each one;
Keras' own tells its scale, and its skips can be counted (a skipped step leaves ``iterations``
alone); any other optimizer has no scale. Imports no backend.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

from keras_mp.telemetry.records import Origin

# The ring is at most about this many numbers (4 MB), so that a look at it stays cheap.
RING_NUMBERS = 1 << 20
MIN_ROWS, MAX_ROWS = 64, 512


@dataclass(frozen=True)
class Skip:
    """One skipped step, as ``records.Overflow`` tells it."""

    step: int
    scale_before: float | None
    scale_after: float | None
    variables: list[str]
    layer: str | None
    origin: Origin


@dataclass(frozen=True)
class Reading:
    """One look at an optimizer.

    Attributes:
        step: Attempted steps over the optimizer's life; None if it cannot tell.
        skips: The skipped steps since the last look, in order; complete unless ``missed``.
        missed: Steps since the last look of which nothing is known any more.
        losses: Losses of the steps since the last look where they were seen.
    """

    step: int | None = None
    scale: float | None = None
    skipped: int | None = None
    applied: int | None = None
    good_steps: int | None = None
    grad_norm: float | None = None
    skips: list[Skip] = field(default_factory=list)
    missed: int = 0
    losses: list[float] = field(default_factory=list)

    @property
    def loss(self) -> float | None:
        """Mean of the finite losses; a non-finite one if all were; None if none was seen."""
        finite = [x for x in self.losses if math.isfinite(x)]
        if finite:
            return sum(finite) / len(finite)
        return self.losses[-1] if self.losses else None


class Source(Protocol):
    """What Monitor and Run ask of an optimizer."""

    settings: dict[str, Any] | None
    rows: int

    def start(self, longest: int) -> int:
        """Begin to watch; ``longest`` steps may pass between two looks. Returns steps done."""
        ...

    def read(self, counted: int) -> Reading:
        """Look. ``counted``: steps done by the caller's count, for optimizers that do not count."""
        ...


class RingSource:
    """``keras_mp.LossScaleOptimizer``: each step, exactly.

    Attributes:
        rows: Steps that the device remembers; the caller looks before that many have passed.
    """

    def __init__(self, optimizer: Any):
        self._optimizer = optimizer
        self._since = 0
        self._skipped = 0
        self.rows = MAX_ROWS
        self.settings: dict[str, Any] | None = {
            **optimizer.config.as_dict(),
            "preset": optimizer.preset,
        }

    def start(self, longest: int) -> int:
        variables = len(self._optimizer.variable_paths) if self._optimizer.built else 0
        affordable = max(MIN_ROWS, min(MAX_ROWS, RING_NUMBERS // (8 + variables)))
        self.rows = max(affordable, 2 * longest)
        self._optimizer.watch(self.rows)
        self._skipped = self._optimizer.skipped_steps
        self._since = self._skipped + self._optimizer.applied_steps
        return self._since

    def read(self, counted: int) -> Reading:
        optimizer = self._optimizer
        rows = optimizer.recent_steps(self._since)
        if not rows:
            return self._counters()
        missed = max(0, rows[0].step - 1 - self._since)
        bad = [row for row in rows if not row.finite]
        norms = [row.grad_norm for row in rows if row.grad_norm is not None]
        last = rows[-1]
        self._since = last.step
        self._skipped = optimizer.skipped_steps if missed else self._skipped + len(bad)
        return Reading(
            step=last.step,
            scale=last.next_scale,
            skipped=self._skipped,
            applied=last.step - self._skipped,
            good_steps=last.good_steps,
            grad_norm=norms[-1] if norms else None,
            skips=[self._skip(row) for row in bad],
            missed=missed,
            losses=[row.loss for row in rows if row.loss is not None],
        )

    def _skip(self, row: Any) -> Skip:
        found = self._optimizer.describe(row)
        return Skip(
            row.step, row.scale, row.next_scale, list(found.variables), found.layer, found.origin
        )

    def _counters(self) -> Reading:
        """Where the backend keeps no ring (or nothing happened): totals only."""
        optimizer = self._optimizer
        skipped, applied = optimizer.skipped_steps, optimizer.applied_steps
        missed = max(0, skipped - self._skipped)
        self._skipped, self._since = skipped, skipped + applied
        return Reading(
            step=self._since,
            scale=optimizer.loss_scale,
            skipped=skipped,
            applied=applied,
            missed=missed,
        )


class StockSource:
    """``keras.optimizers.LossScaleOptimizer``: the scale, and skips as steps that did not count."""

    rows = MAX_ROWS

    def __init__(self, optimizer: Any):
        self._optimizer = optimizer
        self._start = 0
        self.settings: dict[str, Any] | None = {
            "preset": "keras.optimizers.LossScaleOptimizer",
            "dynamic": True,
            "initial_scale": float(optimizer.initial_scale),
            "growth_interval": int(optimizer.dynamic_growth_steps),
            "growth_factor": 2.0,
            "backoff_factor": 0.5,
        }

    def start(self, longest: int) -> int:
        self._start = _iterations(self._optimizer)
        return self._start

    def read(self, counted: int) -> Reading:
        if not self._optimizer.built:
            return Reading()
        applied = _iterations(self._optimizer)
        return Reading(
            scale=float(_host(self._optimizer.dynamic_scale)),
            skipped=max(0, counted - applied),
            applied=applied,
            good_steps=int(_host(self._optimizer.step_counter)),
        )


class PlainSource:
    """Any other optimizer, or none: no scale."""

    rows = MAX_ROWS
    settings: dict[str, Any] | None = None

    def __init__(self, optimizer: Any = None):
        self._optimizer = optimizer

    def start(self, longest: int) -> int:
        return _iterations(self._optimizer)

    def read(self, counted: int) -> Reading:
        return Reading()


def source_for(optimizer: Any) -> Source:
    """The way to look at ``optimizer`` (None for no optimizer)."""
    if hasattr(optimizer, "recent_steps") and hasattr(optimizer, "watch"):
        return RingSource(optimizer)
    if hasattr(optimizer, "dynamic_growth_steps") and hasattr(optimizer, "inner_optimizer"):
        return StockSource(optimizer)
    return PlainSource(optimizer)


def optimizer_name(optimizer: Any) -> str | None:
    """Class name, of the inner optimizer where there is a wrapper."""
    if optimizer is None:
        return None
    return type(getattr(optimizer, "inner_optimizer", optimizer)).__name__


def longest_gap(every: int | None, steps_per_execution: int) -> int:
    """Steps that can pass between two looks: the interval, and one execution on top."""
    return (every or 1) + max(1, steps_per_execution)


def _iterations(optimizer: Any) -> int:
    iterations = getattr(optimizer, "iterations", None)
    return 0 if iterations is None else int(_host(iterations))


def _host(variable: Any) -> Any:
    from keras import ops

    return ops.convert_to_numpy(variable)
