"""How a job is configured, in rows of name and value."""

from collections import Counter
from collections.abc import Iterator, Sequence

from keras_mp.telemetry.format import count, number, power_of_two, share, size, whole
from tui.drawing.roles import Row
from tui.drawing.text import fit
from tui.snapshot import JobView
from tui.widgets.job_lines import JobLines

NAME_WIDTH = 12


class Facts(JobLines):
    def rows(self, width: int, height: int) -> Sequence[Row]:
        if self._job is None:
            return []
        say = self._look.say
        pairs = [(name, value) for name, value in facts(self._job) if value]
        return [[(fit(name, NAME_WIDTH), "muted"), (say(value), "text")] for name, value in pairs]


def facts(job: JobView) -> Iterator[tuple[str, str]]:
    """(name, value) of everything known; an empty value where it is not."""
    meta = job.meta
    yield "useful", _useful(job)
    yield "skipped", _skipped(job)
    yield "overflows", _overflows(job)
    yield "input", f"waits {share(job.input_share)} of the time" if job.input_share else ""
    yield "tokens", f"{count(job.tokens_per_second)}/s" if job.tokens_per_second else ""
    left, total = job.room
    yield "memory", f"{size(left)} left of {size(total)}" if left is not None else ""
    if job.results:
        yield "result", ", ".join(f"{k} {number(v)}" for k, v in job.results.items())
    if meta is None:
        return
    many = f" · {whole(meta.parameters)} parameters" if meta.parameters else ""
    yield "model", f"{meta.model}{many}" if meta.model else ""
    yield "optimizer", meta.optimizer or ""
    yield "loss scale", _scaler(meta.scaler)
    yield "host", f"{meta.host} · pid {meta.pid}" + (f" · {meta.device}" if meta.device else "")
    yield "versions", " · ".join(f"{k} {v}" for k, v in meta.versions.items())
    yield "command", " ".join(meta.argv)
    yield "journal", job.folder


def _scaler(scaler: dict | None) -> str:
    if not scaler:
        return ""
    start = power_of_two(scaler.get("initial_scale"))
    if scaler.get("dynamic") is False:
        return f"static {start}"
    parts = [f"dynamic from {start}"]
    if scaler.get("growth_interval"):
        parts.append(f"grows every {whole(int(scaler['growth_interval']))} clean steps")
    limits = (scaler.get("min_scale"), scaler.get("max_scale"))
    if None not in limits:
        parts.append(f"within {power_of_two(limits[0])} … {power_of_two(limits[1])}")
    return " · ".join(parts)


def _skipped(job: JobView) -> str:
    if job.skipped_share is None:
        return ""
    recent = job.skips["step"]
    lately = int((recent > job.step - 100).sum()) if len(recent) else 0
    total = share(job.skipped_share)
    return f"{total} of all steps, {lately} of the last {whole(min(100, job.step))}"


def _overflows(job: JobView) -> str:
    """Which layer, how often, since when: of those that are kept."""
    layers = Counter(o.layer or (o.variables[0] if o.variables else "") for o in job.overflows)
    layers.pop("", None)
    if not layers:
        return ""
    name, times = layers.most_common(1)[0]
    first = next(o.step for o in job.overflows if name in (o.layer, *o.variables[:1]))
    rest = len(layers) - 1
    more = f" · {rest} other{'s' if rest > 1 else ''}" if rest else ""
    return f"{name} {count(times)}× since step {whole(first)}{more}"


def _useful(job: JobView) -> str:
    if job.useful_steps_per_second is None:
        return ""
    return f"{number(job.useful_steps_per_second, 3)} steps/s (skipped ones left out)"
