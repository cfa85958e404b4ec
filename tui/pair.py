"""A job in mixed precision beside its float32 twin: what it gained, what it cost, and why no more.

Pure functions of two jobs. What neither journal tells is left out, not guessed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from keras_mp.telemetry.format import duration, number, share, whole
from tui.drawing.downsample import Floats
from tui.job_cells import INPUT_BOUND
from tui.snapshot import JobView, Table

# A chart has as many line colours.
MAX_COMPARED = 4
# A gain below this is none: the pace of one and the same job varies by as much.
NO_GAIN = 1.1
# Steps that differ by less than this take equally long.
EQUAL_STEPS = 0.05
# Layers of a model smaller than this are too small to fill a device, whatever the precision.
SMALL_MODEL = 1_000_000
# The end of the common steps over which losses are compared: one batch proves nothing.
TAIL = 0.1


@dataclass(frozen=True)
class Pair:
    """The comparison. None: not known.

    Attributes:
        speed_up: Samples (or steps) a second, mixed over float32.
        memory_saved: Share of float32's peak that mixed precision does without; ``memory_of`` says
            of what: "device" or "process".
        gap_at_step: Loss of mixed over that of float32, minus 1, at equal steps; ``step`` is the
            last of them. gap_at_time: the same at equal time since the start; ``time`` is it.
        reasons: Why there is no gain, in sentences; empty where there is one.
    """

    reference: JobView
    mixed: JobView
    speed_up: float | None
    memory_saved: float | None
    memory_of: str
    gap_at_step: float | None
    step: float | None
    gap_at_time: float | None
    time: float | None
    reasons: tuple[str, ...]

    def sentences(self) -> list[str]:
        out = []
        if self.speed_up is not None:
            out.append(f"{number(self.speed_up, 3)} × as fast as {self.reference.name}")
        if self.memory_saved is not None:
            word = "less" if self.memory_saved >= 0 else "more"
            out.append(f"{share(abs(self.memory_saved))} {word} {self.memory_of} memory")
        if self.gap_at_step is not None and self.step is not None:
            out.append(f"loss {_gap(self.gap_at_step)} at step {whole(round(self.step))}")
        if self.gap_at_time is not None and self.time is not None:
            out.append(f"{_gap(self.gap_at_time)} after {duration(self.time)}")
        return [" · ".join(out) or "nothing to compare yet", *self.reasons]


def compare(first: JobView, second: JobView) -> Pair:
    """The pair of two jobs; the one in float32 is the reference, else the first."""
    reference, mixed = (second, first) if second.policy == "float32" else (first, second)
    speed_up = _ratio(_pace(mixed), _pace(reference))
    saved, of = _memory(reference, mixed)
    gap_step, step = _loss_gap(reference, mixed, "step")
    gap_time, time = _loss_gap(reference, mixed, "time")
    reasons = tuple(_reasons(reference, mixed, speed_up)) if speed_up is not None else ()
    return Pair(reference, mixed, speed_up, saved, of, gap_step, step, gap_time, time, reasons)


def twin(job: JobView, jobs: Iterable[JobView]) -> JobView | None:
    """The same model in the other precision: as large, trained alike, and of a similar name."""
    others = [j for j in jobs if j.key != job.key and _same_model(job, j)]
    wanted = [j for j in others if (j.policy == "float32") != (job.policy == "float32")]
    return max(wanted, key=lambda other: _likeness(job, other), default=None)


def _likeness(a: JobView, b: JobView) -> tuple[bool, bool, bool, float]:
    metas = (a.meta, b.meta)
    optimizers = {meta.optimizer for meta in metas if meta is not None}
    failed = b.end is not None and b.end.status == "failed"
    alike = SequenceMatcher(None, a.name, b.name).ratio()
    return a.planned_steps == b.planned_steps, len(optimizers) == 1, not failed, alike


def _same_model(a: JobView, b: JobView) -> bool:
    return a.meta is not None and b.meta is not None and a.meta.parameters == b.meta.parameters


def _gap(gap: float) -> str:
    if abs(gap) < 0.005:
        return "equal"
    return f"{share(abs(gap))} {'higher' if gap > 0 else 'lower'}"


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _median(values: Floats) -> float | None:
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else None


def _pace(job: JobView) -> float | None:
    pace = _median(job.points["samples_per_second"])
    return pace if pace is not None else _median(job.points["steps_per_second"])


def _memory(reference: JobView, mixed: JobView) -> tuple[float | None, str]:
    for column, of in (("device_peak", "device"), ("process_resident", "process")):
        peaks = [_peak(job.memories, column) for job in (reference, mixed)]
        if None not in peaks and peaks[0]:
            return 1 - (peaks[1] or 0.0) / peaks[0], of
    return None, ""


def _peak(table: Table, column: str) -> float | None:
    values = table[column]
    values = values[np.isfinite(values)]
    return float(values.max()) if len(values) else None


def _loss_gap(reference: JobView, mixed: JobView, by: str) -> tuple[float | None, float | None]:
    """Relative loss gap over the last tenth of what both have done, and where that ends."""
    lines = []
    for job in (reference, mixed):
        x, y = job.points[by], job.points["loss"]
        good = np.isfinite(y)
        if good.sum() < 2:
            return None, None
        begun = (job.started or 0.0) if by == "time" else 0.0
        lines.append((x[good] - begun, y[good]))
    start = max(x[0] for x, _ in lines)
    stop = min(x[-1] for x, _ in lines)
    if stop <= start:
        return None, None
    at = np.linspace(stop - TAIL * (stop - start), stop, 32)
    means = [float(np.interp(at, x, y).mean()) for x, y in lines]
    return (means[1] / means[0] - 1 if means[0] else None), float(stop)


def _reasons(reference: JobView, mixed: JobView, speed_up: float) -> Iterable[str]:
    """Why there is no gain: who waits for data first, then the device, then the model."""
    if speed_up >= NO_GAIN:
        return
    yield from _input_bound(reference, mixed)
    yield from _emulated(mixed)
    parameters = mixed.meta.parameters if mixed.meta else None
    if parameters is not None and parameters < SMALL_MODEL and not _on_cpu(mixed):
        yield (
            f"The model is small ({whole(parameters)} parameters): its layers do not fill the "
            "device. Larger batches help more than precision."
        )


def _input_bound(reference: JobView, mixed: JobView) -> Iterable[str]:
    waits = _median(mixed.points["input_share"])
    if waits is not None:
        if waits >= INPUT_BOUND:
            yield (
                f"{mixed.name} waits {share(waits)} of its time for batches: the input pipeline "
                "sets the pace. Prefetch, or train on one cached batch to see the difference."
            )
        return
    times = [_median(job.points["step_time_p50"]) for job in (reference, mixed)]
    if times[0] and times[1] and abs(times[1] / times[0] - 1) < EQUAL_STEPS and not _on_cpu(mixed):
        yield (
            "Steps take equally long in both precisions: something else sets the pace, most often "
            "the input pipeline. Train on one cached batch to see the difference."
        )


def _on_cpu(job: JobView) -> bool:
    device = (job.meta.device or "cpu") if job.meta else "cpu"
    return "cpu" in device.lower()


def _emulated(mixed: JobView) -> Iterable[str]:
    dtype = (mixed.policy or "").removeprefix("mixed_")
    if _on_cpu(mixed):
        if dtype == "float16":
            yield (
                "No gain: float16 on a CPU is emulated. It rounds as it should, for checking "
                "values; speed comes with a GPU, or with mixed_bfloat16 on a CPU that has it."
            )
        else:
            yield "No gain: this CPU may have no fast bfloat16; most of the gain needs a GPU."
        return
    from keras_mp.policies.cards import find_card  # reads a table: only where it is asked

    card = find_card((mixed.meta.device or "") if mixed.meta else "")
    if card is None or "float32" not in card.tflops:
        return
    fast = card.tflops.get(dtype)
    if fast is None or fast < NO_GAIN * card.tflops["float32"]:
        others = [
            n
            for n in ("float16", "bfloat16")
            if card.tflops.get(n, 0) > 1.5 * card.tflops["float32"]
        ]
        instead = f" mixed_{others[0]} is fast there." if others else ""
        yield f"No gain: {card.device.name} has no fast {dtype}; it is emulated.{instead}"
