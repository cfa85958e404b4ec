"""Replaying a run under another setting: against the recorded runs, and against a known truth."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_mp.cli import main
from keras_mp.numerics.formats import FORMATS
from keras_mp.scaling.presets import PRESETS
from keras_mp.scaling.state import ScaleConfig, ScaleState, exhausted, update
from keras_mp.telemetry import records as r
from keras_mp.telemetry.history import history_of
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.replay import what_if
from keras_mp.telemetry.runs import RunsFolder
from keras_mp.telemetry.tail import JournalFile

RECORDED = Path(__file__).parents[2] / "recorded" / "runs"
RUNS = sorted(folder.name for folder in RECORDED.iterdir() if (folder / "meta.json").exists())
SCALED = [
    name
    for name in RUNS
    if (json.loads((RECORDED / name / "meta.json").read_text()).get("scaler") or {}).get(
        "min_scale"
    )
]


def recorded(name: str, part: str = "runs") -> Job:
    folder = RunsFolder(RECORDED.parent / part / name)
    folder.poll(seconds=None)
    return folder.jobs[0]


def truth(limits: list[float], config: ScaleConfig) -> tuple[list[int], list[float]]:
    """Step by step with the reference machine: the skipped steps, and the scale of each step."""
    state, skipped, scales = ScaleState.initial(config), [], []
    for step, limit in enumerate(limits, 1):
        scales.append(state.scale)
        finite = state.scale <= limit
        used, state = state.scale, update(state, finite, config)
        if not finite:
            skipped.append(step)
            run, left = state.consecutive_skips, state.hysteresis_left
            if config.on_exhausted == "raise" and exhausted(used, run, config, left):
                break
    return skipped, [*scales, state.scale]


def journal(
    limits: list[float], config: ScaleConfig, *, numerics: bool, window: int = 7
) -> list[r.Record]:
    """What a run with these limits would have recorded under ``config``."""
    state, out = ScaleState.initial(config), [r.Start(time=0.0)]
    for step, limit in enumerate(limits, 1):
        before, finite = state.scale, state.scale <= limit
        state = update(state, finite, config)
        if not finite:
            out.append(
                r.Overflow(
                    step=step,
                    time=step,
                    scale_before=before,
                    scale_after=state.scale,
                    origin="loss" if limit == 0 else "backward",
                )
            )
        if numerics and limit:
            largest = FORMATS["float16"].max / limit
            out.append(
                r.Numerics(step=step, time=step, layer="d", tensor="gradient", largest=largest)
            )
        if step % window == 0 or step == len(limits):
            out.append(
                r.Step(
                    step=step,
                    time=step,
                    steps=window,
                    loss=1.0,
                    scale=state.scale,
                    skipped=state.skipped,
                    applied=state.applied,
                    good_steps=state.good_steps,
                )
            )
    return out


def about(config: ScaleConfig | None, policy: str = "mixed_float16") -> r.Meta:
    return r.Meta(
        run_id="run",
        name="run",
        started=0.0,
        host="here",
        pid=1,
        policy=policy,
        scaler=config.as_dict() if config else None,
    )


configs = st.builds(
    ScaleConfig,
    dynamic=st.booleans(),
    initial_scale=st.sampled_from([2.0**k for k in (-4, -2, 3, 8, 15)]),
    growth_interval=st.integers(1, 12),
    growth_factor=st.sampled_from([1.0, 2.0, 4.0]),
    hysteresis=st.integers(1, 3),
    hysteresis_refill=st.sampled_from(["growth", "finite"]),
    growth_delay=st.sampled_from(["none", "after_overflow", "always"]),
    min_scale=st.just(2.0**-4),
    max_scale=st.just(2.0**18),
    exhausted_after=st.sampled_from([1, 3, 25]),
    on_exhausted=st.sampled_from(["warn", "raise"]),
)
# Limits between powers of two, and steps whose loss is not finite (0).
limits = st.lists(
    st.one_of(st.sampled_from([0.0]), st.integers(-6, 20).map(lambda k: 1.5 * 2.0**k)),
    min_size=1,
    max_size=80,
)


@given(limits, configs)
@settings(max_examples=60, deadline=None)
def test_its_own_setting_gives_any_run_back(limits, config):
    config = replace(config, on_exhausted="warn")
    history = history_of(journal(limits, config, numerics=False), about(config))
    skipped, scales = truth(limits, config)
    outcome = what_if(history, config)
    assert list(outcome.overflows) == skipped
    assert outcome.wasted == outcome.least == outcome.most == len(skipped)
    assert outcome.final_scale == scales[-1] and outcome.estimated == outcome.unknown == 0
    assert history.scales.tolist() == scales[:-1]
    assert not history.notes


@given(limits, configs, configs)
@settings(max_examples=60, deadline=None)
def test_where_the_limits_were_measured_another_setting_is_right_too(limits, own, other):
    own = replace(own, on_exhausted="warn")
    # (A step of which nothing was measured borrows from the nearest: give each its own.)
    limits = [max(x, 2.0**-6) for x in limits]
    outcome = what_if(history_of(journal(limits, own, numerics=True), about(own)), other)
    skipped, scales = truth(limits, other)
    assert list(outcome.overflows) == skipped
    assert outcome.final_scale == scales[-1]
    assert outcome.steps == len(scales) - 1
    if outcome.stopped_at is not None:
        assert outcome.stopped_at == skipped[-1] and other.on_exhausted == "raise"
    # The scales told are those of the machine, where they change.
    path, current = dict(outcome.scales), None
    for step, scale in enumerate(scales, 1):
        current = path.get(step, current)
        assert current == scale


@pytest.mark.parametrize("name", SCALED)
def test_each_recorded_run_is_reproduced_by_its_own_setting(name):
    job = recorded(name)
    history = history_of(job)
    assert history.config is not None and not history.notes
    outcome = what_if(job, history.config)
    assert outcome.wasted == outcome.least == outcome.most == job.skipped == outcome.recorded
    assert list(outcome.overflows) == [o.step for o in job.overflows]
    assert outcome.final_scale == job.scale and outcome.steps == job.step
    # At each record the scale that it tells (after its step) is the one of the replay.
    after = dict(outcome.scales)
    current, told = None, dict(zip(job.series["step"], job.series["scale"], strict=True))
    for step in range(1, job.step + 2):
        current = after.get(step, current)
        if step - 1 in told:
            assert told[step - 1] == current
    for overflow in job.overflows:
        assert history.scales[overflow.step - 1] == overflow.scale_before


def test_the_recorded_runs_tell_settings_apart():
    """The same replay must not give back what another setting would not have done."""
    outcomes = {}
    for name in ("sawtooth", "thrashing", "exhausted"):
        job = recorded(name)
        outcomes[name] = what_if(job, ScaleConfig(dynamic=False, initial_scale=2.0**20))
        assert outcomes[name].wasted > job.skipped
    calm = what_if(recorded("sawtooth"), replace(history_of(recorded("sawtooth")).config,
                   growth_interval=2000))  # fmt: skip
    assert calm.wasted < calm.recorded == 18
    # A loss that is not finite overflows at any scale.
    for preset in ("dynamic", "flax", "apex", "torch"):
        assert what_if(recorded("nan-batches"), PRESETS[preset]).wasted == 24
    # DeepSpeed ends the run at its floor of 1.
    stopped = what_if(recorded("exhausted"), PRESETS["deepspeed"])
    assert stopped.stopped_at is not None and stopped.stopped_at < 396
    assert "would have ended with an error at step" in stopped.sentence


@pytest.mark.parametrize(("interval", "other"), [(60, "sawtooth-60"), (80, "healthy")])
def test_a_replay_foretells_what_a_real_run_with_that_setting_did(interval, other):
    """The same training with other growth intervals, run for real: skips foretold from one."""
    other = recorded(other, "verdicts")
    file = JournalFile(RECORDED / "sawtooth" / "events-0.jsonl")
    records = [x for x in file.read() if getattr(x, "step", 0) <= other.step]
    history = history_of(records, recorded("sawtooth").meta)
    outcome = what_if(history, replace(history.config, growth_interval=interval))
    assert abs(outcome.wasted - other.skipped) <= 1 and history.skipped > other.skipped
    assert outcome.least <= other.skipped <= outcome.most
    real = [o.step for o in other.overflows]
    assert all(min(abs(step - x) for x in real) <= 5 for step in outcome.overflows)


def test_what_nobody_tried_is_said_to_be_unknown():
    limits = [1.5 * 2.0**16] * 60
    own, larger = ScaleConfig(growth_interval=2000), ScaleConfig(initial_scale=2.0**20)
    blind = what_if(history_of(journal(limits, own, numerics=False), about(own)), larger)
    assert (blind.wasted, blind.least, blind.most) == (0, 0, 5) and blind.unknown == 60
    assert "nothing tells" in blind.sentence
    seen = what_if(history_of(journal(limits, own, numerics=True), about(own)), larger)
    assert seen.wasted == 4 and seen.unknown == 0 and seen.estimated


def test_gradients_that_grow_move_the_estimate():
    """One overflow at step 30; the norms say that the gradients quadruple from step 60 on."""
    config = ScaleConfig(initial_scale=2.0**12, growth_interval=10**6)
    records = [r.Start(time=0.0)]
    for step in range(1, 101):
        norm = 4.0 if step >= 60 else 1.0
        if step == 30:
            records.append(r.Overflow(step=30, time=1.0, scale_before=2.0**12,
                                      scale_after=2.0**11, origin="backward"))  # fmt: skip
        records.append(r.Step(step=step, time=1.0, loss=1.0, grad_norm=norm,
                              scale=2.0 ** (12 if step < 30 else 11),
                              skipped=int(step >= 30), applied=step - (step >= 30),
                              good_steps=step if step < 30 else step - 30))  # fmt: skip
    history = history_of(records, about(config))
    static = ScaleConfig(dynamic=False, initial_scale=2.0**11)
    assert what_if(history, static).wasted == 0  # the run itself was clean at 2**11 there
    static = ScaleConfig(dynamic=False, initial_scale=2.0**12)
    outcome = what_if(history, static)
    assert outcome.wasted == 1 + sum(step > 30 for step in range(31, 101))
    norms = history.estimate
    assert norms[10] == pytest.approx(4 * norms[90])


def test_a_resumed_run_with_a_fresh_scale_is_reproduced():
    config = ScaleConfig(growth_interval=10)
    first = journal([1.5 * 2.0**15] * 25, config, numerics=False)
    again = journal([1.5 * 2.0**15] * 25, config, numerics=False)[1:]
    shifted = [
        replace(record, step=record.step + 25)
        if not isinstance(record, r.Step)
        else replace(
            record,
            step=record.step + 25,
            skipped=record.skipped + first[-1].skipped,
            applied=record.applied + first[-1].applied,
        )
        for record in again
    ]
    history = history_of([*first, r.Start(time=1.0, step=25), *shifted], about(config))
    assert history.resets == {25} and not history.notes
    outcome = what_if(history, config)
    assert outcome.wasted == history.skipped == outcome.most and outcome.final_scale == 2.0**15


def test_a_scale_that_somebody_assigned_is_told():
    config = ScaleConfig()
    records = journal([math.inf] * 21, config, numerics=False)
    records[-1] = replace(records[-1], scale=2.0**10)
    history = history_of(records, about(config))
    assert "somebody assigned" in history.notes[0]


def test_runs_that_cannot_be_replayed_say_why():
    with pytest.raises(ValueError, match="a run with steps"):
        history_of([r.Start(time=0.0)])
    stock = [r.Step(step=10, time=1.0, loss=1.0, scale=1.0, skipped=3, applied=7)]
    with pytest.raises(ValueError, match=r"totals only\. Received: 'run', 3 skipped"):
        history_of(stock)


def test_a_float32_run_alone_says_nothing_of_float16():
    outcome = what_if(recorded("nan-loss"), ScaleConfig())
    assert outcome.unknown == outcome.steps and outcome.most > 0 == outcome.wasted


def test_the_command_replays(capsys):
    run = str(RECORDED / "sawtooth")
    assert main(["replay", run]) == 0
    assert "18 of 564 steps wasted" in capsys.readouterr().out
    assert main(["replay", run, "--preset", "deepspeed", "--set", "growth_interval=500",
                 "--set", "initial_scale=2**14", "--json"]) == 0  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    assert told["config"]["growth_interval"] == 500 and told["config"]["hysteresis"] == 2
    assert told["config"]["initial_scale"] == 2.0**14
    assert told["steps"] == 564 and told["wasted"] != told["recorded"] == 18
    assert main(["replay", run, "--scale", "1024"]) == 0
    assert "under static" in capsys.readouterr().out


def test_the_command_explains_what_is_wrong(capsys, tmp_path):
    assert main(["replay", str(tmp_path / "none")]) == 3
    assert main(["replay", str(RECORDED)]) == 3
    assert "Expected one run" in capsys.readouterr().err
    assert main(["replay", str(RECORDED), "--name", "sawtooth"]) == 0
    capsys.readouterr()
    assert main(["replay", str(RECORDED / "sawtooth"), "--preset", "nobody"]) == 2
    assert "nobody" in capsys.readouterr().err
    assert main(["replay", str(RECORDED / "sawtooth"), "--set", "growth_interval=0"]) == 2
    assert main(["replay", str(RECORDED / "sawtooth"), "--set", "window=5"]) == 2
    assert "growth_interval, " in (said := capsys.readouterr().err) and "Received: window" in said
    assert main(["replay", str(RECORDED / "float32")]) == 2
    assert "Expected --preset or --scale" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["replay", str(RECORDED / "sawtooth"), "--set", "growth_interval"])
