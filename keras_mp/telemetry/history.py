"""What a journal tells, and leaves open, about the loss scale that each step would have borne.

``replay`` feeds it to other settings. No backend.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from keras_mp.scaling.state import ScaleConfig, ScaleState, update
from keras_mp.telemetry import records as r
from keras_mp.telemetry.jobs import Job

_FIELDS = {f.name for f in fields(ScaleConfig)}


@dataclass(frozen=True)
class History:
    """The steps of a run, in order; arrays have an entry a step.

    Attributes:
        first_step: Number of the first step.
        clean_up_to: A scale with which the step is known to be finite; 0 where none is known.
        overflow_from: A scale with which it is known to overflow; inf where none is known, 0 where
            the loss itself was not finite.
        estimate: Where the limit between the two may lie; NaN where nothing tells.
        scales: The scale that the run itself used.
        resets: Places (from 0) at which a process started with a fresh loss scale.
        config: The run's own setting; None if it had no loss scale of ours.
        skipped: Steps that the run skipped.
        notes: What the journal could not tell, in sentences; the replay is less exact for it.
    """

    first_step: int
    clean_up_to: np.ndarray
    overflow_from: np.ndarray
    estimate: np.ndarray
    scales: np.ndarray
    resets: frozenset[int] = frozenset()
    config: ScaleConfig | None = None
    skipped: int = 0
    notes: tuple[str, ...] = ()
    _limits: dict[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)

    @property
    def steps(self) -> int:
        return len(self.clean_up_to)

    def limits(self, assume: Literal["estimate", "clean", "overflow"]) -> np.ndarray:
        """The largest scale that each step bears, what is not known taken as ``assume`` says."""
        if assume not in self._limits:
            below = np.nextafter(self.overflow_from, 0.0)
            limits = {"clean": below, "overflow": self.clean_up_to}
            guess = np.where(np.isnan(self.estimate), below, self.estimate)
            limits["estimate"] = np.clip(guess, np.minimum(self.clean_up_to, below), below)
            self._limits.update(limits)
        return self._limits[assume]

    def next_reset(self, place: int) -> int:
        """Steps from ``place`` to the next reset behind it."""
        return min((reset - place for reset in self.resets if reset > place), default=2**62)


def own_config(settings: dict[str, Any] | None) -> ScaleConfig | None:
    """The setting that a journal's ``meta.scaler`` holds; None if it is not one of ours."""
    if not settings or "min_scale" not in settings:
        return None
    try:
        return ScaleConfig(**{k: v for k, v in settings.items() if k in _FIELDS})
    except (TypeError, ValueError):
        return None


def history_of(run: Job | Iterable[r.Record], meta: r.Meta | None = None) -> History:
    """The history of a job, or of the records of one run in order.

    Args:
        meta: What the run's ``meta.json`` says, with records; a Job has its own.

    Raises:
        ValueError: Nothing was recorded, or skipped steps were counted but not told one by one (by
            an optimizer that is not keras_mp.LossScaleOptimizer).
    """
    if isinstance(run, Job):
        job = run
    else:
        job = Job("run")
        job.meta = meta
        for record in run:
            job.apply(record)
    if job.step < 1:
        raise ValueError(f"A replay needs a run with steps. Received: {job.name!r}, step=0")
    overflows = [o for o in job.overflows if o.optimizer is None and 1 <= o.step <= job.step]
    if not overflows and job.skipped:
        raise ValueError(
            "A replay needs each skipped step, which keras_mp.LossScaleOptimizer tells; this run "
            f"has totals only. Received: {job.name!r}, {job.skipped} skipped"
        )
    return _Reader(job, overflows).read()


class _Reader:
    """Makes a History of a job."""

    def __init__(self, job: Job, overflows: list[r.Overflow]):
        self.job = job
        self.config = own_config(job.meta.scaler if job.meta else None)
        self.overflows = overflows
        self.notes: list[str] = []
        first = 1
        if job.overflow_count > len(job.overflows):
            first = int(overflows[0].step)
            self.notes.append(f"the skipped steps before step {first:,} are not kept")
        self.first = first
        self.steps = job.step - first + 1
        self.bad = np.array([o.step - first for o in overflows], dtype=np.int64)
        self.resets: set[int] = set()

    def read(self) -> History:
        scales = self._scales()
        clean = scales.copy()
        over = np.full(self.steps, np.inf)
        for place, overflow in zip(self.bad, self.overflows, strict=True):
            over[place] = 0.0 if overflow.origin == "loss" else scales[place]
            clean[place] = 0.0
        counted = self.job.skipped
        if self.first == 1 and counted is not None and counted != len(self.overflows):
            self.notes.append(
                f"{len(self.overflows):,} of {counted:,} skipped steps are told one by one"
            )
        return History(
            first_step=self.first,
            clean_up_to=clean,
            overflow_from=over,
            estimate=self._estimate(scales),
            scales=scales,
            resets=frozenset(self.resets),
            config=self.config,
            skipped=len(self.overflows),
            notes=tuple(self.notes),
        )

    # The scale that each step used.

    def _scales(self) -> np.ndarray:
        job = self.job
        if self.config is None:
            return self._told_scales()
        scales = np.empty(self.steps)
        marks = np.column_stack([job.series[c] for c in ("step", "scale", "good_steps")])
        marks = marks[(marks[:, 0] >= self.first) & np.isfinite(marks[:, 1])]
        starts = sorted({s - self.first + 1 for s in job.starts if self.first <= s < job.step})
        state = ScaleState.initial(self.config)
        place, mended = 0, 0
        for step, scale, good in marks:
            end = int(step) - self.first + 1
            if end <= place:
                continue
            begun = [s for s in starts if place <= s < end]
            after = self._walk(state, place, end, scales)
            if begun and not _agrees(after, scale, good):
                # A process that began with a fresh scale; or one that restored another.
                until = self._walk(state, place, begun[-1], scales)
                fresh = replace(ScaleState.initial(self.config), applied=until.applied)
                after = self._walk(fresh, begun[-1], end, scales)
                if _agrees(after, scale, good):
                    self.resets.add(begun[-1])
            if not _agrees(after, scale, good):
                mended += 1
                after = replace(after, scale=scale, good_steps=int(good if good == good else 0))
                told = [o.scale_before for o in self.overflows if o.step == step]
                scales[end - 1] = told[0] if told and told[0] else scale
            state, place = after, end
        self._walk(state, place, self.steps, scales)
        for where, overflow in zip(self.bad, self.overflows, strict=True):
            if overflow.scale_before is not None and overflow.scale_before != scales[where]:
                mended += 1
                scales[where] = overflow.scale_before
        if mended:
            self.notes.append(
                f"at {mended:,} places the scale is not what the run's setting explains (somebody "
                "assigned it, or gradients were accumulated)"
            )
        return scales

    def _walk(self, state: ScaleState, begin: int, end: int, scales: np.ndarray) -> ScaleState:
        """From one place to another, writing the scales used on the way."""
        config, place = self.config, begin
        if config is None:
            raise ValueError("`config` is needed to walk. Received: config=None")
        at = int(np.searchsorted(self.bad, begin))
        while place < end:
            stop = int(self.bad[at]) if at < len(self.bad) and self.bad[at] < end else end
            while place < stop:
                count = min(until_growth(state, config), stop - place)
                scales[place : place + count] = state.scale
                state, place = clean_steps(state, count, config), place + count
            if place < end:
                scales[place] = state.scale
                state = update(state, False, config)
                place, at = place + 1, at + 1
        return state

    def _told_scales(self) -> np.ndarray:
        """Without a setting: as the windows say, held from one to the next; 1 without a scale."""
        step, scale = self.job.series["step"], self.job.series["scale"]
        known = np.isfinite(scale)
        if not known.any():
            half = self.job.policy in ("mixed_float16", "float16")
            # Gradients that never were in float16 say nothing about what it bears.
            return np.full(self.steps, 1.0 if half else 0.0)
        at = np.searchsorted(step[known], np.arange(self.steps) + self.first, side="left")
        return scale[known][np.minimum(at, known.sum() - 1)]

    # Where the limit may lie.

    def _estimate(self, scales: np.ndarray) -> np.ndarray:
        # Where both are known, what was measured is closer than what was met.
        points = sorted((dict(self._met(scales)) | dict(self._measured())).items())
        estimate = np.full(self.steps, np.nan)
        if not points:
            return estimate
        places = np.array([p for p, _ in points], dtype=np.float64)
        limits = np.array([x for _, x in points])
        here = np.arange(self.steps, dtype=np.float64)
        right = np.clip(np.searchsorted(places, here), 0, len(places) - 1)
        left = np.maximum(right - 1, 0)
        nearest = np.where(here - places[left] <= places[right] - here, left, right)
        norms = self._norms()
        at = np.clip(places.astype(np.int64), 0, self.steps - 1)
        return limits[nearest] * (norms[at][nearest] / norms)

    def _measured(self) -> list[tuple[int, float]]:
        """(place, limit) by the largest gradient of a numerics record."""
        series = self.job.limits
        return [
            (int(step) - self.first, float(limit))
            for step, limit in zip(series["step"], series["limit"], strict=True)
            if self.first <= step <= self.job.step
        ]

    def _met(self, scales: np.ndarray) -> list[tuple[int, float]]:
        """(place, limit) by the runs of skips: between the last bad scale and the one after."""
        points, begin = [], 0
        causes = [o.origin for o in self.overflows]
        for i in range(len(self.bad)):
            if i + 1 < len(self.bad) and self.bad[i + 1] == self.bad[i] + 1:
                continue
            run, begin = self.bad[begin : i + 1], i + 1
            # (Where the loss itself was not finite, no scale was the reason.)
            if causes[i] == "loss":
                continue
            last = int(run[-1])
            after = scales[last + 1] if last + 1 < self.steps else 0.0
            smallest = float(scales[run].min())
            limit = smallest * 0.5 if not 0 < after < smallest else float(after)
            points += [(int(place), (limit * smallest) ** 0.5) for place in run]
        return points

    def _norms(self) -> np.ndarray:
        """The gradients' norm at each step, interpolated; 1 throughout where none is known."""
        step, norm = self.job.series["step"], self.job.series["grad_norm"]
        known = np.isfinite(norm) & (norm > 0)
        if not known.any():
            return np.ones(self.steps)
        here = np.arange(self.steps) + self.first
        return np.exp(np.interp(here, step[known], np.log(norm[known])))


def _agrees(state: ScaleState, scale: float, good_steps: float) -> bool:
    return state.scale == scale and (good_steps != good_steps or state.good_steps == good_steps)


def until_growth(state: ScaleState, config: ScaleConfig) -> int:
    """Clean steps during which the scale stays as it is, the one that changes it included."""
    if not config.dynamic:
        return 2**62
    return max(1, config.growth_interval - state.good_steps)


def clean_steps(state: ScaleState, steps: int, config: ScaleConfig) -> ScaleState:
    """``steps`` clean updates in one go; the last of them alone may change the scale."""
    if steps > 1:
        left = config.hysteresis if config.hysteresis_refill == "finite" else state.hysteresis_left
        state = replace(
            state,
            good_steps=state.good_steps + (steps - 1 if config.dynamic else 0),
            applied=state.applied + steps - 1,
            consecutive_skips=0,
            hysteresis_left=left if config.dynamic else state.hysteresis_left,
        )
    return update(state, True, config)
