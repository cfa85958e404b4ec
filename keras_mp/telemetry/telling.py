"""From a look at a job to the records that tell of it: pure functions of what was seen."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_mp.telemetry import device
from keras_mp.telemetry.pace import AHEAD_SHARE, Window
from keras_mp.telemetry.records import Memory, Overflow, Step
from keras_mp.telemetry.sources import Reading, Skip


@dataclass(frozen=True)
class Numbers:
    """What the training loop itself knows of a window, on the host."""

    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    samples: int | None = None
    tokens: int | None = None
    input_wait: float | None = None
    scale: float | None = None
    skipped: int | None = None


def overflow_records(
    skips: Sequence[Skip], before: int, steps: int, began: float, now: float, epoch: int | None
) -> Iterator[Overflow]:
    """A record of each skipped step.

    Args:
        before: The last step before the window. steps: How many it has.
        began, now: Wall clock of its ends; a skip's own time lies in between, by its place.
    """
    for skip in skips:
        share = min(1.0, max(0.0, (skip.step - before) / steps))
        yield Overflow(
            step=skip.step,
            time=began + share * (now - began),
            epoch=epoch,
            scale_before=skip.scale_before,
            scale_after=skip.scale_after,
            variables=skip.variables,
            layer=skip.layer,
            origin=skip.origin,
            optimizer=skip.optimizer,
        )


def step_record(
    step: int,
    steps: int,
    now: float,
    epoch: int | None,
    window: Window | None,
    reading: Reading,
    told: Numbers,
    waited: float,
) -> Step:
    """The record of a window of ``steps`` steps that ends with ``step``; ``waited`` seconds of it
    the host waited for the device at the end."""
    paced = window if window and not window.compiling else None
    return Step(
        step=step,
        time=now,
        epoch=epoch,
        steps=steps,
        loss=_loss(told.loss, reading.loss),
        metrics={**told.metrics, **reading.metrics},
        samples=told.samples,
        tokens=told.tokens,
        seconds=window.seconds if window else None,
        input_wait=_exposed(told.input_wait, window, waited),
        compiling=window.compiling if window else None,
        step_time_p50=paced.p50 if paced else None,
        step_time_p95=paced.p95 if paced else None,
        scale=_first(reading.scale, told.scale),
        skipped=_first(reading.skipped, told.skipped),
        applied=reading.applied,
        good_steps=reading.good_steps,
        grad_norm=reading.grad_norm,
    )


def memory_record(step: int, backend: str | None) -> Memory:
    """What the device's allocator and the process hold now."""
    held = device.memory(backend)
    return Memory(
        step=step,
        time=time.time(),
        device_allocated=held.allocated,
        device_peak=held.peak,
        device_reserved=held.reserved,
        device_total=held.total,
        process_resident=device.resident(),
    )


def _loss(told: float | None, seen: float | None) -> float | None:
    """The loop's own mean, unless one bad step has spoilt it and single losses are known."""
    if told is not None and (math.isfinite(told) or seen is None):
        return told
    return seen if seen is not None else told


def _exposed(waited: float | None, window: Window | None, device: float) -> float | None:
    """Seconds of the wait for input that cost time.

    Where the host had to wait for the device in the end, the device had work all along: as much of
    the wait for input was hidden behind it.
    """
    if waited is None or window is None:
        return None
    hidden = device if device > AHEAD_SHARE * window.seconds else 0.0
    return min(window.seconds, max(0.0, waited - hidden))


def _first(*values: Any) -> Any:
    return next((v for v in values if v is not None), None)
