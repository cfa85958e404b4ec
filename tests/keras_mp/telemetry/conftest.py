"""Records of a job whose overflows are planned, made by the reference state machine of the scale.

The scale, the counters and the skips of each window are what ``keras_mp.scaling.state.update``
says they are: the tests of the fold and of the verdicts compare with it.
"""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from keras_mp.scaling.state import ScaleConfig, ScaleState, update
from keras_mp.telemetry import records as r
from keras_mp.telemetry.jobs import Job

STARTED = 1_000_000.0


def meta(config: ScaleConfig | None = None, **values) -> r.Meta:
    defaults = {
        "run_id": "job",
        "name": "job",
        "started": STARTED,
        "host": "here",
        "pid": 4321,
        "policy": "mixed_float16",
        "scaler": config.as_dict() if config else None,
    }
    return r.Meta(**{**defaults, **values})


def records_of(
    config: ScaleConfig,
    steps: int,
    overflow: Callable[[int], bool],
    window: int = 10,
    step_seconds: float = 0.1,
    layer: str | None = "dense",
    origin: r.Origin = "backward",
) -> list[r.Record]:
    """The records of ``steps`` steps (from 1) of which those with ``overflow(step)`` overflow."""
    state = ScaleState.initial(config)
    out: list[r.Record] = [r.Start(time=STARTED)]
    for step in range(1, steps + 1):
        before, finite = state.scale, not overflow(step)
        state = update(state, finite, config)
        now = STARTED + step * step_seconds
        if not finite:
            out.append(
                r.Overflow(
                    step=step,
                    time=now,
                    scale_before=before,
                    scale_after=state.scale,
                    layer=layer,
                    origin=origin,
                )
            )
        if step % window == 0 or step == steps:
            out.append(
                r.Step(
                    step=step,
                    time=now,
                    steps=(step - 1) % window + 1,
                    loss=1.0 / step,
                    samples=32 * ((step - 1) % window + 1),
                    seconds=step_seconds * ((step - 1) % window + 1),
                    step_time_p50=step_seconds,
                    step_time_p95=step_seconds,
                    scale=state.scale,
                    skipped=state.skipped,
                    applied=state.applied,
                    good_steps=state.good_steps,
                )
            )
    return out


def job_of(records: list[r.Record], about: r.Meta | None = None) -> Job:
    job = Job("job")
    job.meta = about
    for record in records:
        job.apply(record)
    return job


def simulated(config: ScaleConfig, steps: int, overflow: Callable[[int], bool], **kwargs) -> Job:
    """The fold of ``records_of`` with its meta."""
    return job_of(records_of(config, steps, overflow, **kwargs), meta(config))


@pytest.fixture(scope="session")
def simulation() -> SimpleNamespace:
    """The functions of this module, for test modules."""
    return SimpleNamespace(
        meta=meta, records_of=records_of, job_of=job_of, simulated=simulated, started=STARTED
    )
