"""What an optimizer can tell about its loss scale, read at leisure: a few host reads a look.

Three sorts: ``keras_mp.LossScaleOptimizer`` keeps its last steps on the device and tells each one;
Keras' own tells its scale, and its skips can be counted (a skipped step leaves ``iterations``
alone); any other optimizer has no scale. Imports no backend.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
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
    optimizer: str | None = None


@dataclass(frozen=True)
class Reading:
    """One look at an optimizer.

    Attributes:
        step: Attempted steps over the optimizer's life; None if it cannot tell.
        skips: The skipped steps since the last look, in order; complete unless ``missed``.
        missed: Steps since the last look of which nothing is known any more.
        losses: Losses of the steps since the last look where they were seen.
        spoilt: Of those, how many were not finite.
        metrics: Further values by name.
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
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def loss(self) -> float | None:
        """Mean of the finite losses; a non-finite one if all were; None if none was seen."""
        finite = [x for x in self.losses if math.isfinite(x)]
        if finite:
            return sum(finite) / len(finite)
        return self.losses[-1] if self.losses else None

    @property
    def spoilt(self) -> int:
        return sum(not math.isfinite(x) for x in self.losses)


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
    """Any other optimizer, or none: no scale but Keras' static ``loss_scale_factor``, with which
    nobody looks for overflows."""

    rows = MAX_ROWS

    def __init__(self, optimizer: Any = None):
        self._optimizer = optimizer
        self._factor = factor = getattr(optimizer, "loss_scale_factor", None)
        static = {"dynamic": False, "initial_scale": factor}
        self.settings: dict[str, Any] | None = None if factor is None else static

    def start(self, longest: int) -> int:
        return _iterations(self._optimizer)

    def read(self, counted: int) -> Reading:
        return Reading(scale=None if self._factor is None else float(self._factor))


class SeveralSources:
    """Several optimizers of one loop (a GAN's two), by name; the loop's own count is the step.

    The scale shown is the first one's; those of the others are metrics (``scale:<name>``). Skips
    and applied steps are added up. A skip is placed at the loop's step during which it happened, by
    its place among the optimizer's own steps since the last look.
    """

    def __init__(self, optimizers: Mapping[str, Any]):
        self._sources = {name: source_for(one) for name, one in optimizers.items()}
        self._done = dict.fromkeys(self._sources, 0)
        self._counted = 0
        self.rows = min(source.rows for source in self._sources.values())
        self.settings: dict[str, Any] | None = next(
            (s.settings for s in self._sources.values() if s.settings), None
        )

    def start(self, longest: int) -> int:
        self._done = {name: source.start(longest) for name, source in self._sources.items()}
        self.rows = min(source.rows for source in self._sources.values())
        self._counted = next(iter(self._done.values()))
        return self._counted

    def read(self, counted: int) -> Reading:
        told = {name: source.read(counted) for name, source in self._sources.items()}
        first = next(iter(told))
        skips: list[Skip] = []
        metrics: dict[str, float] = {}
        for name, reading in told.items():
            now = reading.step if reading.step is not None else counted
            before = self._done[name]
            per_step = (counted - self._counted) / max(1, now - before)
            self._done[name] = now
            for skip in reading.skips:
                place = self._counted + math.ceil((skip.step - before) * per_step)
                own = None if name == first else name
                skips.append(replace(skip, step=min(counted, max(1, place)), optimizer=own))
            if name != first and reading.scale is not None:
                metrics[f"scale:{name}"] = reading.scale
        self._counted = counted
        lead = told[first]
        return Reading(
            scale=lead.scale,
            skipped=_total(reading.skipped for reading in told.values()),
            applied=_total(reading.applied for reading in told.values()),
            good_steps=lead.good_steps,
            grad_norm=lead.grad_norm,
            skips=sorted(skips, key=lambda skip: skip.step),
            missed=sum(reading.missed for reading in told.values()),
            metrics=metrics,
        )


def _total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def source_for(optimizer: Any) -> Source:
    """The way to look at ``optimizer``: one, several by name, or None for none."""
    if isinstance(optimizer, Mapping):
        return SeveralSources(optimizer) if optimizer else PlainSource()
    if hasattr(optimizer, "recent_steps") and hasattr(optimizer, "watch"):
        return RingSource(optimizer)
    if hasattr(optimizer, "dynamic_growth_steps") and hasattr(optimizer, "inner_optimizer"):
        return StockSource(optimizer)
    return PlainSource(optimizer)


def scale_of(optimizer: Any) -> float:
    """The loss scale of the next step, one host read: ours, Keras' own, a factor; 1 without any."""
    scale = getattr(optimizer, "loss_scale", None)
    if scale is None and getattr(optimizer, "built", False):
        scale = getattr(optimizer, "dynamic_scale", None)
    for name in ("initial_scale", "loss_scale_factor"):
        scale = getattr(optimizer, name, None) if scale is None else scale
    return 1.0 if scale is None else float(_host(scale))


def longest_gap(every: int | None, steps_per_execution: int) -> int:
    """Steps that can pass between two looks: the interval, and one execution on top."""
    return (every or 1) + max(1, steps_per_execution)


def _iterations(optimizer: Any) -> int:
    iterations = getattr(optimizer, "iterations", None)
    return 0 if iterations is None else int(_host(iterations))


def _host(variable: Any) -> Any:
    from keras import ops

    return ops.convert_to_numpy(variable)
