"""Verdicts on jobs whose scale the reference state machine moved, and on planned silences."""

import math
from dataclasses import replace

import pytest

from keras_mp.scaling.state import ScaleConfig
from keras_mp.telemetry import health
from keras_mp.telemetry import records as r
from keras_mp.telemetry.health import exit_status, stall_limit, verdict
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.scale_health import scale_verdict

CONFIG = ScaleConfig()


def living(pid, started, host):
    return True


def gone(pid, started, host):
    return False


def now_of(job, silence=0.5):
    return job.last_time + silence


# The scale.


def test_one_skip_a_growth_interval_is_healthy_and_says_when_it_grows(simulation):
    job = simulation.simulated(CONFIG, 5000, (4204).__eq__)
    v = verdict(job, now_of(job), alive=living)
    assert (v.scale_state, v.severity, v.exit_status) == ("healthy", "ok", 0)
    assert v.sentence == (
        "healthy: one skip in the last 2,000 steps, as dynamic scaling expects"
        " · grows in 1,204 steps"
    )
    assert v.advice == ""


def test_countdown_is_that_of_the_state_machine(simulation):
    job = simulation.simulated(ScaleConfig(growth_interval=50), 90, lambda step: False, window=1)
    assert scale_verdict(job).sentence.endswith("grows in 10 steps")
    job = simulation.simulated(ScaleConfig(growth_interval=50), 99, lambda step: False, window=1)
    assert scale_verdict(job).sentence.endswith("grows in 1 step")


def test_no_skip_is_healthy(simulation):
    job = simulation.simulated(CONFIG, 564, lambda step: False)
    assert scale_verdict(job).sentence.startswith("healthy: no skip in the last 564 steps")


def test_at_the_largest_scale_there_is_no_countdown(simulation):
    job = simulation.simulated(ScaleConfig(initial_scale=2.0**24), 300, lambda step: False)
    assert scale_verdict(job).sentence.endswith("at its largest, 2²⁴")


def test_first_skips_are_the_search_for_the_scale(simulation):
    job = simulation.simulated(CONFIG, 12, lambda step: step in (1, 2, 5))
    v = scale_verdict(job)
    assert (v.state, v.severity) == ("calibrating", "ok")
    assert "3 skips in the first 12 steps" in v.sentence and "normal" in v.sentence
    later = simulation.simulated(CONFIG, 500, lambda step: step in (1, 2, 5))
    assert scale_verdict(later).state == "healthy"
    assert scale_verdict(later).sentence.startswith("healthy: no skip")


@pytest.mark.parametrize(("skips", "state"), [(1, "healthy"), (2, "healthy"), (3, "thrashing")])
def test_halved_again_before_it_could_grow_is_thrashing(simulation, skips, state):
    bad = {2000 + 500 * i for i in range(skips)}
    job = simulation.simulated(CONFIG, 3500, bad.__contains__, layer="block4/conv2")
    v = scale_verdict(job)
    assert v.state == state
    if state == "thrashing":
        assert "3 skips in the last 2,000 steps" in v.sentence and v.severity == "warning"
        assert "3 of the last 3 overflows were in block4/conv2" in v.advice


def test_a_run_of_skips_is_collapsing(simulation):
    job = simulation.simulated(CONFIG, 1010, lambda step: step > 1000)
    v = verdict(job, now_of(job), alive=living)
    assert (v.scale_state, v.severity, v.exit_status) == ("collapsing", "error", 2)
    assert "the last 10 steps were all skipped, scale down to 2⁵" in v.sentence
    over = simulation.simulated(CONFIG, 1011, lambda step: 1000 < step <= 1010)
    assert scale_verdict(over).state == "thrashing"


def test_a_loss_that_is_not_finite_is_no_matter_of_the_scale(simulation):
    job = simulation.simulated(CONFIG, 1010, lambda step: step > 1000, origin="loss")
    assert "The loss itself was not finite" in scale_verdict(job).advice


def test_skipping_at_the_smallest_scale_is_exhausted(simulation):
    job = simulation.simulated(CONFIG, 200, lambda step: step > 120)
    v = scale_verdict(job)
    assert job.scale == 2.0**-14 and (v.state, v.severity) == ("exhausted", "error")
    assert "2⁻¹⁴" in v.sentence and "40 %" in v.sentence
    recovered = simulation.simulated(CONFIG, 201, lambda step: 120 < step <= 200)
    assert scale_verdict(recovered).state != "exhausted"


def test_a_scale_of_zero_is_exhausted(simulation):
    """Keras' own optimizer halves without a floor until the scale is 0."""
    job = Job("job")
    job.meta = simulation.meta()
    job.apply(r.Step(step=200, time=1.0, scale=0.0, skipped=180, applied=20))
    v = scale_verdict(job)
    assert v.state == "exhausted" and "cannot recover" in v.sentence


@pytest.mark.parametrize(("bad", "severity"), [(0, "ok"), (1, "ok"), (5, "warning"), (50, "error")])
def test_static_scale(simulation, bad, severity):
    config = ScaleConfig(dynamic=False, initial_scale=8.0)
    job = simulation.simulated(config, 200, lambda step: step <= bad)
    v = scale_verdict(job)
    assert (v.state, v.severity) == ("static", severity)
    assert "static scale 2³" in v.sentence
    assert bool(v.advice) == (severity != "ok")


def test_stock_keras_is_judged_by_its_totals(simulation):
    job = Job("job")
    job.meta = simulation.meta(scaler={"dynamic": True, "growth_interval": 2000})
    for step in range(10, 210, 10):  # nothing is applied after step 150
        applied = min(step, 150)
        job.apply(r.Step(step=step, steps=10, time=float(step), loss=1.0, scale=2.0**10,
                         applied=applied, skipped=step - applied))  # fmt: skip
    v = scale_verdict(job)
    assert v.state == "collapsing" and "the last 50 steps" in v.sentence


def test_no_scale_is_no_matter_except_in_float16(simulation):
    def plain(policy):
        job = Job("job")
        job.meta = simulation.meta(policy=policy)
        job.apply(r.Step(step=5, time=1.0, loss=1.0))
        return scale_verdict(job)

    assert (plain("float32").state, plain("float32").severity) == ("n/a", "ok")
    assert plain("mixed_bfloat16").severity == "ok"
    assert plain("mixed_float16").severity == "warning"
    assert "small gradients become zero" in plain("mixed_float16").sentence
    assert "LossScaleOptimizer" in plain("mixed_float16").advice


def test_overflows_that_the_hysteresis_bears_are_no_thrashing(simulation):
    """DeepSpeed's rule: two overflows a backoff. The same steps without it are."""
    bad = {2000, 2001, 2600, 2601}
    borne = ScaleConfig(hysteresis=2, hysteresis_refill="finite")
    assert scale_verdict(simulation.simulated(borne, 3500, bad.__contains__)).state == "healthy"
    assert scale_verdict(simulation.simulated(CONFIG, 3500, bad.__contains__)).state == "thrashing"


def test_a_search_from_far_above_is_no_collapse_until_the_scale_is_below_one(simulation):
    config = ScaleConfig(initial_scale=2.0**32, max_scale=2.0**32)
    v = scale_verdict(simulation.simulated(config, 22, lambda step: True, window=1))
    assert (v.state, v.severity) == ("calibrating", "ok")
    v = scale_verdict(simulation.simulated(config, 34, lambda step: True, window=1))
    assert (v.state, v.severity) == ("collapsing", "error")
    # Later in the job the same run is a collapse at any scale.
    late = simulation.simulated(config, 622, lambda step: step > 600, window=1)
    assert scale_verdict(late).state == "collapsing"


def test_a_job_that_starts_again_with_a_fresh_scale_searches_again(simulation):
    first = simulation.records_of(CONFIG, 1000, lambda step: False)
    again = [
        replace(record, step=record.step + 1000)
        for record in simulation.records_of(CONFIG, 20, lambda step: step <= 12, window=1)[1:]
    ]
    start = r.Start(time=first[-1].time + 1, step=1000)
    fresh = simulation.job_of([*first, start, *again], simulation.meta(CONFIG))
    v = scale_verdict(fresh)
    assert v.state == "calibrating" and "12 skips in the first 20 steps" in v.sentence
    # Without a start there it is no search.
    same = simulation.job_of([*first, *again], simulation.meta(CONFIG))
    assert scale_verdict(same).state == "thrashing"


def test_a_late_burst_of_skips_counts_however_long_the_job_went_well(simulation):
    config = ScaleConfig(dynamic=False, initial_scale=8.0)
    job = simulation.simulated(config, 20_000, lambda step: step > 19_800, window=50)
    assert job.skipped_share == 0.01  # of the whole
    v = scale_verdict(job)
    assert (v.state, v.severity) == ("static", "error") and "20 % of the steps" in v.sentence


def test_one_skip_at_the_floor_is_not_exhausted(simulation):
    config = ScaleConfig(min_scale=2.0**15)
    assert scale_verdict(simulation.simulated(config, 500, (500).__eq__)).state == "healthy"
    job = simulation.simulated(config, 500, lambda step: step > 497)
    assert scale_verdict(job).state == "exhausted"
    sooner = ScaleConfig(min_scale=2.0**15, exhausted_after=1)
    assert scale_verdict(simulation.simulated(sooner, 500, (500).__eq__)).state == "exhausted"


def test_what_the_hysteresis_bears_at_the_floor_is_not_exhausted(simulation):
    """As DeepSpeed, whose jobs may start at their floor."""
    config = ScaleConfig(
        min_scale=2.0**15, exhausted_after=1, hysteresis=2, on_exhausted="continue"
    )
    assert scale_verdict(simulation.simulated(config, 500, (500).__eq__)).state != "exhausted"
    job = simulation.simulated(config, 500, lambda step: step > 498)
    assert scale_verdict(job).state == "exhausted"


# The job.


@pytest.fixture
def job(simulation):
    return simulation.simulated(CONFIG, 500, lambda step: False)  # a step each 0.1 s, told each 1 s


def test_running_then_stalled_by_its_own_pace(job):
    assert stall_limit(job) == health.STALL_SECONDS
    assert verdict(job, now_of(job, 9.9), alive=living).state == "running"
    v = verdict(job, now_of(job, 10.1), alive=living)
    assert (v.state, v.severity) == ("stalled", "error")
    assert "silent for 10 s; its own pace allows 10 s" in v.sentence


def test_slow_steps_have_a_longer_silence(simulation):
    job = simulation.simulated(CONFIG, 100, lambda s: False, window=1, step_seconds=30.0)
    assert stall_limit(job) == pytest.approx(8 * 30)
    assert verdict(job, now_of(job, 200), alive=living).state == "running"
    assert verdict(job, now_of(job, 241), alive=living).state == "stalled"


def test_rare_records_have_a_longer_silence(simulation):
    job = simulation.simulated(CONFIG, 1000, lambda s: False, window=100, step_seconds=0.2)
    assert stall_limit(job) == pytest.approx(3 * 20)  # a record each 20 s


def test_gone_process_is_dead_and_a_finished_one_is_not(job):
    assert verdict(job, now_of(job, 1.0), alive=gone).state == "running"  # its end may be coming
    v = verdict(job, now_of(job, 3.0), alive=gone)
    assert (v.state, v.exit_status) == ("dead", 2)
    assert "process 4321 is gone since step 500" in v.sentence
    job.apply(r.End(step=500, time=job.last_time, status="done"))
    assert verdict(job, now_of(job, 1e6), alive=gone).state == "done"


def test_a_clock_that_was_set_back_does_not_keep_the_dead_alive(job):
    assert verdict(job, now_of(job, -3600.0), alive=gone).state == "dead"
    assert verdict(job, now_of(job, -3600.0), alive=living).state == "running"
    assert verdict(job, now_of(job, -1.0), alive=gone).state == "running"  # its end may be coming


def test_process_that_cannot_be_asked_is_judged_by_silence(job):
    def unknown(pid, started, host):
        return None

    assert verdict(job, now_of(job, 3.0), alive=unknown).state == "running"
    assert verdict(job, now_of(job, 30.0), alive=unknown).state == "stalled"


def test_ends(job):
    job.apply(r.End(step=500, time=job.last_time, status="failed", reason="ValueError: boom"))
    v = verdict(job, now_of(job), alive=gone)
    assert (v.state, v.exit_status) == ("failed", 2)
    assert v.sentence == "failed at step 500: ValueError: boom"
    job.apply(r.End(step=500, time=job.last_time, status="stopped", reason="interrupted"))
    assert verdict(job, now_of(job), alive=gone).exit_status == 1


def test_before_the_first_step_it_is_starting_for_a_while(simulation):
    job = simulation.job_of([r.Start(time=100.0)], simulation.meta(CONFIG))
    assert verdict(job, 400.0, alive=living).state == "starting"
    assert verdict(job, 1100.0, alive=living).state == "stalled"
    assert verdict(job, 400.0, alive=gone).state == "dead"


def test_slow_is_against_its_own_median(simulation):
    job = simulation.simulated(CONFIG, 400, lambda s: False)
    for i in range(1, 6):
        job.apply(
            r.Step(step=400 + 10 * i, steps=10, time=job.last_time + 3, seconds=3.0, scale=1.0)
        )
    v = verdict(job, now_of(job), alive=living)
    assert v.state == "slow" and "3.0 × as long" in v.findings[0]


def test_clock_that_jumps_back_stalls_nothing(job):
    assert verdict(job, job.last_time - 1e6, alive=living).state == "running"


def test_nan_now_was_and_acknowledged(job):
    job.apply(r.Step(step=510, steps=10, time=job.last_time, loss=math.nan, scale=1.0, skipped=0))
    v = verdict(job, now_of(job), alive=living)
    assert (v.nan, v.severity) == ("now", "error") and "nan since step 510" in v.sentence
    job.apply(r.Step(step=520, steps=10, time=job.last_time, loss=0.5, scale=1.0, skipped=0))
    v = verdict(job, now_of(job), alive=living)
    assert (v.nan, v.severity) == ("was", "warning")
    assert verdict(job, now_of(job), alive=living, acknowledged=510).nan == "no"
    assert verdict(job, now_of(job), alive=living, acknowledged=99).nan == "was"


def test_problems_are_findings(job):
    job.problems = ["meta.json is damaged"]
    v = verdict(job, now_of(job), alive=living)
    assert v.severity == "warning" and "meta.json is damaged" in v.findings


def test_exit_status_is_the_worst_and_three_for_nothing(job, simulation):
    well = verdict(job, now_of(job), alive=living)
    ill = verdict(job, now_of(job, 100), alive=living)
    nothing = verdict(Job("x"), 1.0, alive=living)
    assert nothing.state == "unreadable"
    assert exit_status([well]) == 0
    assert exit_status([well, ill]) == 2
    assert exit_status([well, nothing]) == 0
    assert exit_status([nothing]) == exit_status([]) == 3


@pytest.mark.parametrize(("waited", "said"), [(0.6, True), (0.1, False), (None, False)])
def test_a_job_that_waits_for_its_input_is_told_and_no_warning(waited, said):
    job = Job("a")
    for step in range(1, 8):
        job.apply(r.Step(step=step, time=float(step), seconds=1.0, input_wait=waited))
    found = verdict(job, 8.0)
    assert any("waits for its batches 60 % of the time" in f for f in found.findings) is said
    assert found.severity == "ok" and found.exit_status == 0
