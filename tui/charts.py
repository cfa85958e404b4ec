"""The charts of one job: which numbers, under which title."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from keras_mp.telemetry.format import count, duration, goal, number, power_of_two, size
from tui.drawing.axis import Kind
from tui.drawing.chart import Chart, Series
from tui.drawing.downsample import Floats
from tui.look import Look
from tui.snapshot import JobView, Table
from tui.window import Span, Window

Maker = Callable[[JobView, Look, Window], Chart]
METRIC = "metric:"


def scale(job: JobView, look: Look, window: Window) -> Chart:
    skips = job.overflow_count
    note = power_of_two(job.scale) if job.scale is not None else ""
    if job.scaled and skips:
        note += f" · {count(skips)} skip{'s' if skips != 1 else ''}"
    return Chart(
        title="scale",
        note=look.say(note),
        series=[Series(positions(job, job.scales, window), job.scales["scale"], hold=True)],
        kind="log2",
        label=look.label(power_of_two),
        ticks=positions(job, job.skips, window),
        span=window.span or extent(job, window),
        cursor=window.cursor,
        x_label=look.label(x_label(window)),
        empty="no steps yet" if job.scaled else "no loss scale",
    )


def loss(job: JobView, look: Look, window: Window) -> Chart:
    # A window without a finite loss is marked; one in which none was said is only left out.
    now = number(job.loss) if job.loss is not None else ""
    return _chart(
        job, look, window, "loss", now, number, job.points, "loss", whole=job.nan_step is not None
    )


def rate(job: JobView, look: Look, window: Window) -> Chart:
    column, title = "samples_per_second", "samples/s"
    if column not in job.points and "steps_per_second" in job.points:
        column, title = "steps_per_second", "steps/s"
    now = job.samples_per_second if column == "samples_per_second" else job.steps_per_second
    return _chart(job, look, window, title, count(now), count, job.points, column, noisy=True)


def step_time(job: JobView, look: Look, window: Window) -> Chart:
    """Median of single steps, over their 95th percentile."""
    p50, p95 = job.points["step_time_p50"], job.points["step_time_p95"]
    now = ""
    if len(p50) and not np.isnan(p50[-1]):
        now = f"{duration(float(p50[-1]))} · p95 {duration(float(p95[-1]))}"
    columns = ("step_time_p50", "step_time_p95")
    chart = _chart(job, look, window, "step time", now, duration, job.points, *columns)
    median, slow = chart.series
    return replace(chart, series=[replace(slow, role="faint"), replace(median, role="line")])


def memory(job: JobView, look: Look, window: Window) -> Chart:
    column, title = "process_resident", "process memory"
    for device in ("device_peak", "device_allocated"):
        if not np.isnan(job.memories[device]).all():
            column, title = device, "device memory, peak" if "peak" in device else "device memory"
            break
    now = size(job.memory_bytes)
    return _chart(job, look, window, title, now, _fine_size, job.memories, column)


def _fine_size(value: float) -> str:
    """Bytes for an axis, on which a job's memory moves by less than the tenth of a GB."""
    return f"{value / 1e9:.3f} GB" if value >= 1e9 else size(value)


def grad_norm(job: JobView, look: Look, window: Window) -> Chart:
    last = job.points["grad_norm"]
    last = last[~np.isnan(last)]
    now = number(float(last[-1])) if len(last) else ""
    title = "gradient norm"
    return _chart(job, look, window, title, now, number, job.points, "grad_norm", noisy=True)


def metric(name: str) -> Maker:
    """The chart of one of the user's own metrics."""

    def make(job: JobView, look: Look, window: Window) -> Chart:
        values = job.points[METRIC + name]
        now = number(float(values[-1])) if len(values) else ""
        title = look.say(name)
        return _chart(job, look, window, title, now, number, job.points, METRIC + name, noisy=True)

    return make


BASIC: tuple[Maker, ...] = (scale, loss, rate, memory, step_time, grad_norm)


def overlay(
    jobs: Sequence[JobView],
    look: Look,
    window: Window,
    title: str,
    column: str,
    label: Callable[[float], str],
    noisy: bool = False,
) -> Chart:
    """One column of several jobs, a line each, from their starts."""
    series = [_known(positions(job, job.points, window), job.points[column]) for job in jobs]
    if noisy and window.trend:
        series = [replace(s, noisy=True) for s in series]
    return _overlay(look, window, title, series, label)


def overlay_memory(jobs: Sequence[JobView], look: Look, window: Window) -> Chart:
    """Device memory where every job has some, else that of the processes."""
    column, title = "process_resident", "process memory"
    if jobs and all(not np.isnan(job.memories["device_peak"]).all() for job in jobs):
        column, title = "device_peak", "device memory, peak"
    series = [_known(positions(job, job.memories, window), job.memories[column]) for job in jobs]
    return _overlay(look, window, title, series, _fine_size)


def _known(x: Floats, y: Floats) -> Series:
    known = ~np.isnan(y)
    return Series(x[known], y[known])


def _overlay(
    look: Look,
    window: Window,
    title: str,
    series: Sequence[Series],
    label: Callable[[float], str],
) -> Chart:
    kinds: dict[bool | None, Kind | None] = {None: None, True: "log10", False: "linear"}
    return Chart(
        title=title,
        series=series,
        kind=kinds[window.log],
        label=look.label(label),
        span=window.span,
        cursor=window.cursor,
        x_label=look.label(x_label(window)),
        empty="not measured",
    )


def makers(job: JobView | None) -> Sequence[Maker]:
    """All charts that the job has numbers for."""
    if job is None:
        return BASIC
    names = sorted(n.removeprefix(METRIC) for n in job.points.columns if n.startswith(METRIC))
    return (*BASIC, *(metric(name) for name in names))


def extent(job: JobView, window: Window) -> Span | None:
    """From the first to the last position of the job; None while there are no two."""
    ends = [x for x in (positions(job, t, window) for t in (job.points, job.scales)) if len(x)]
    if not ends:
        return None
    start, stop = min(float(x[0]) for x in ends), max(float(x[-1]) for x in ends)
    return (start, stop) if stop > start else None


def extent_of_all(jobs: Sequence[JobView], window: Window) -> Span | None:
    """From the first to the last position of all of the jobs."""
    ends = [span for job in jobs if (span := extent(job, window)) is not None]
    return (min(e[0] for e in ends), max(e[1] for e in ends)) if ends else None


def positions(job: JobView, table: Table, window: Window) -> Floats:
    """Where the points stand on the base line."""
    if window.by == "step":
        return table["step"]
    return table["time"] - (job.started or 0.0)


def x_label(window: Window) -> Callable[[float], str]:
    if window.by == "time":
        return lambda seconds: duration(max(seconds, 0.0))
    return lambda step: goal(round(step))


def _chart(
    job: JobView,
    look: Look,
    window: Window,
    title: str,
    now: str,
    label: Callable[[float], str],
    table: Table,
    *columns: str,
    noisy: bool = False,
    whole: bool = False,
) -> Chart:
    x = positions(job, table, window)
    series = []
    for column in columns:
        y = table[column]
        known = ~np.isnan(y)
        if whole or known.all():
            series.append(Series(x, y, noisy=noisy and window.trend))
        else:
            series.append(Series(x[known], y[known], noisy=noisy and window.trend))
    kinds: dict[bool | None, Kind | None] = {None: None, True: "log10", False: "linear"}
    return Chart(
        title=title,
        note=look.say(now),
        series=series,
        kind=kinds[window.log],
        label=look.label(label),
        span=window.span or extent(job, window),
        cursor=window.cursor,
        x_label=look.label(x_label(window)),
        empty="no steps yet" if not len(job.points) else "not measured",
    )
