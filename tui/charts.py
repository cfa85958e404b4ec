"""The charts of one job: which numbers, under which title."""

from collections.abc import Callable

import numpy as np

from keras_mp.telemetry.format import count, duration, goal, number, power_of_two, size
from tui.drawing.chart import Chart, Series
from tui.drawing.downsample import Floats
from tui.look import Look
from tui.snapshot import JobView, Table


def known(table: Table, column: str, noisy: bool = False) -> Series:
    """The points at which ``column`` was measured."""
    step, values = table["step"], table[column]
    measured = ~np.isnan(values)
    if measured.all():
        return Series(step, values, noisy=noisy)
    return Series(step[measured], values[measured], noisy=noisy)


def scale(job: JobView, look: Look) -> Chart:
    skips = job.overflow_count
    note = f"{power_of_two(job.scale)}" if job.scale is not None else ""
    if job.scaled and skips:
        note += f" · {count(skips)} skip{'s' if skips != 1 else ''}"
    return Chart(
        title="scale",
        note=look.say(note),
        series=[Series(job.scales["step"], job.scales["scale"], hold=True)],
        kind="log2",
        label=look.label(power_of_two),
        ticks=job.skips,
        x_label=look.label(step_label),
        empty="no steps yet" if job.scaled else "no loss scale",
    )


def loss(job: JobView, look: Look) -> Chart:
    # A window without a finite loss is marked; one in which none was said is only left out.
    whole = Series(job.points["step"], job.points["loss"])
    return Chart(
        title="loss",
        note=look.say(number(job.loss)) if job.loss is not None else "",
        series=[whole if job.nan_step is not None else known(job.points, "loss")],
        label=look.label(number),
        x_label=look.label(step_label),
        empty="no steps yet" if not len(job.points) else "no loss said",
    )


def rate(job: JobView, look: Look) -> Chart:
    column, title = "samples_per_second", "samples/s"
    if column not in job.points and "steps_per_second" in job.points:
        column, title = "steps_per_second", "steps/s"
    now = job.samples_per_second if column == "samples_per_second" else job.steps_per_second
    return _plain(job, look, job.points, column, title, count(now), count)


def step_time(job: JobView, look: Look) -> Chart:
    """Median and 95th percentile of single steps, the slower one beneath."""
    p50, p95 = known(job.points, "step_time_p50"), known(job.points, "step_time_p95")
    note = ""
    if len(p50.y) and len(p95.y):
        note = f"{duration(float(p50.y[-1]))} · p95 {duration(float(p95.y[-1]))}"
    return Chart(
        title="step time",
        note=look.say(note),
        series=[Series(p95.x, p95.y), p50] if len(p95.y) else [p50],
        label=look.label(duration),
        x_label=look.label(step_label),
        empty="not measured",
    )


def memory(job: JobView, look: Look) -> Chart:
    column, title = "process_resident", "process memory"
    for device in ("device_peak", "device_allocated"):
        if _any(job.memories[device]):
            column, title = device, "device memory, peak" if "peak" in device else "device memory"
            break
    return _plain(job, look, job.memories, column, title, size(job.memory_bytes), size, False)


def grad_norm(job: JobView, look: Look) -> Chart:
    last = job.points["grad_norm"]
    last = last[~np.isnan(last)]
    now = number(float(last[-1])) if len(last) else ""
    return _plain(job, look, job.points, "grad_norm", "gradient norm", now, number)


def _plain(
    job: JobView,
    look: Look,
    table: Table,
    column: str,
    title: str,
    now: str,
    label: Callable[[float], str],
    noisy: bool = True,
) -> Chart:
    return Chart(
        title=title,
        note=look.say(now) if len(table) else "",
        series=[known(table, column, noisy)],
        label=look.label(label),
        x_label=look.label(step_label),
        empty="no steps yet" if not len(job.points) else "not measured",
    )


def _any(values: Floats) -> bool:
    return bool(len(values)) and not bool(np.isnan(values).all())


def step_label(step: float) -> str:
    return goal(round(step))
