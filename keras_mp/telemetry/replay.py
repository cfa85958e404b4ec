"""What another setting of the loss scale would have made of a run that was recorded.

    from keras_mp.telemetry.replay import history_of, what_if
    from keras_mp.scaling.presets import resolve

    outcome = what_if(job, resolve("deepspeed", growth_interval=500)[1])
    print(outcome.wasted, outcome.least, outcome.most, outcome.sentence)

Each step has a limit: the largest loss scale with which its gradients are still finite. The journal
tells it only in part. A step that was clean at its scale would have been clean at a smaller one; a
step that overflowed would have overflowed at a larger one; one whose loss itself was not finite
overflows at any. What lies between is estimated, from the largest gradient that a ``numerics``
record measured, else from the nearest overflow, moved by the gradients' norms; and where there is
no estimate either, a step is taken for clean. ``least`` and ``most`` are the two extremes: all that
is not known taken for clean, and taken for an overflow. The run's own setting asks for nothing that
is not known, and gives the run back exactly.

Assumed throughout: another scale would not have changed the gradients themselves. No backend.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from keras_mp.scaling.state import ScaleConfig, ScaleState, exhausted, update
from keras_mp.telemetry import records as r
from keras_mp.telemetry.history import History, clean_steps, history_of, until_growth
from keras_mp.telemetry.jobs import Job

Assume = Literal["estimate", "clean", "overflow"]


@dataclass(frozen=True)
class Outcome:
    """A run under another setting.

    Attributes:
        config: The setting.
        steps: Steps replayed.
        wasted: Steps skipped, by the best estimate.
        least, most: The same if everything that is not known was clean, or overflowed.
        overflows: The skipped steps' numbers (best estimate).
        scales: (step, scale) for the first step and for each one that used another scale than the
            step before it; the last entry is the scale after the last step.
        final_scale: The scale after the last step.
        estimated: Steps with a larger scale than the run tried, decided by an estimate.
        unknown: Such steps without any estimate, taken for clean.
        stopped_at: The step at which ``on_exhausted="raise"`` would have ended the run; what comes
            after it is not counted.
        recorded: Steps that the run itself skipped.
    """

    config: ScaleConfig
    steps: int
    wasted: int
    least: int
    most: int
    overflows: tuple[int, ...] = ()
    scales: tuple[tuple[int, float], ...] = ()
    final_scale: float = math.nan
    estimated: int = 0
    unknown: int = 0
    stopped_at: int | None = None
    recorded: int = 0

    @property
    def share(self) -> float:
        """Of the steps, how many are wasted; 0 to 1."""
        return self.wasted / self.steps if self.steps else 0.0

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        text = f"{self.wasted:,} of {self.steps:,} steps wasted"
        if self.least != self.most:
            text += f" ({self.least:,} to {self.most:,}, by what is not known)"
        if self.recorded != self.wasted:
            more = self.wasted - self.recorded
            text += f", {abs(more):,} {'more' if more > 0 else 'fewer'} than the run itself"
        if self.stopped_at is not None:
            text += f"; it would have ended with an error at step {self.stopped_at:,}"
        elif self.unknown:
            text += (
                f"; in {self.unknown:,} steps the scale is larger than any that the run tried, and "
                "nothing tells what they would have done"
            )
        return text


def what_if(run: "Job | History | Iterable[r.Record]", config: ScaleConfig) -> Outcome:
    """Replay a run's overflows under another setting.

    Args:
        run: A Job, its History, or the run's records in order.
        config: The setting to try; ``run``'s own gives the run back.

    Raises:
        ValueError: The run does not say which steps were skipped (see ``history_of``).
    """
    history = run if isinstance(run, History) else history_of(run)
    best = _play(history, config, "estimate")
    low = _play(history, config, "clean")
    high = _play(history, config, "overflow")
    return Outcome(
        config=config,
        steps=best.steps,
        wasted=len(best.overflows),
        least=min(len(low.overflows), len(best.overflows)),
        most=max(len(high.overflows), len(best.overflows)),
        overflows=tuple(best.overflows),
        scales=tuple(best.scales),
        final_scale=best.state.scale,
        estimated=best.estimated,
        unknown=best.unknown,
        stopped_at=best.stopped_at,
        recorded=history.skipped,
    )


@dataclass
class _Play:
    """One pass over the steps."""

    state: ScaleState
    steps: int = 0
    overflows: list[int] = field(default_factory=list)
    scales: list[tuple[int, float]] = field(default_factory=list)
    estimated: int = 0
    unknown: int = 0
    stopped_at: int | None = None

    def note(self, step: int, scale: float) -> None:
        if not self.scales or self.scales[-1][1] != scale:
            self.scales.append((step, scale))


def _play(history: History, config: ScaleConfig, assume: Assume) -> _Play:
    limit = history.limits(assume)
    known_clean, tried = history.clean_up_to, history.overflow_from
    play = _Play(ScaleState.initial(config))
    first, total = history.first_step, history.steps
    place = 0
    while place < total:
        if place in history.resets:
            play.state = replace(
                ScaleState.initial(config), skipped=play.state.skipped, applied=play.state.applied
            )
        state = play.state
        play.note(first + place, state.scale)
        # Clean steps up to the next overflow, growth or reset are one stretch.
        stretch = min(until_growth(state, config), history.next_reset(place), total - place)
        bad = limit[place : place + stretch] < state.scale
        clean = int(np.argmax(bad)) if bad.any() else stretch
        window = slice(place, place + min(clean + 1, stretch))
        gap = (known_clean[window] < state.scale) & (state.scale < tried[window])
        estimated = ~np.isnan(history.estimate[window])
        play.estimated += int((gap & estimated).sum())
        play.unknown += int((gap & ~estimated).sum())
        if clean:
            play.state = clean_steps(state, clean, config)
            place += clean
            play.steps += clean
        if clean < stretch:
            used = play.state.scale
            play.state = after = update(play.state, False, config)
            play.overflows.append(first + place)
            place += 1
            play.steps += 1
            lost = exhausted(used, after.consecutive_skips, config, after.hysteresis_left)
            if lost and config.on_exhausted == "raise":
                play.stopped_at = first + place - 1
                break
    play.note(first + place, play.state.scale)
    return play
