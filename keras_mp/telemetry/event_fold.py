"""From another program's TensorBoard scalars to the records of a job.

Event files hold curves with names that their writer chose; a job has steps with a loss. So one
curve leads: the training loss, found by its name (without one, the first curve). Each of its points
is a step; the other curves are metrics, told with the step during which they came. What names
itself as the loss scale, skipped steps, the gradient norm or samples a second is taken as that.
"""

import math
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras_mp.telemetry.event_proto import Event
from keras_mp.telemetry.records import Memory, Record, Start, Step

# A job of so many curves shows the first ones.
MAX_CURVES = 300
MAX_AHEAD = 4096
WORST = 9

_WORDS = re.compile(r"[A-Za-z][a-z]*|[A-Z]+")
_HELD_OUT = {"val", "valid", "validation", "eval", "evaluation", "test", "dev", "holdout"}
_KNOWN = {
    "loss_scale": "scale",
    "lossscale": "scale",
    "skipped_steps": "skipped",
    "grad_norm": "grad_norm",
    "gradient_norm": "grad_norm",
    "samples_per_second": "rate",
    "train_samples_per_second": "rate",
    "epoch": "epoch",
    "step_time_p50": "step_time_p50",
    "step_time_p95": "step_time_p95",
}
_MEMORY = ("device_allocated", "device_peak", "device_reserved", "process_resident")


def loss_rank(tag: str) -> int:
    """How much a curve's name says that it is the training loss: 0 most, 9 not at all."""
    words = [w.lower() for w in _WORDS.findall(tag)]
    if "loss" not in words or "scale" in words or "scaler" in words:
        return WORST
    if _HELD_OUT & set(words):
        return 6
    if words == ["loss"]:
        return 0
    rest = set(words) - {"loss"}
    if rest <= {"train", "training", "total", "step", "batch"}:
        return 1
    if rest <= {"train", "training", "total", "epoch"}:
        return 3  # a point an epoch: rather the one of each batch, if there is one
    return 2 if rest <= {"mean", "avg", "average", "running", "smooth", "lm", "ce", "g"} else 4


@dataclass(frozen=True)
class Said:
    """An event, what its file's tags are called within the job, and who wrote the file."""

    prefix: str
    event: Event
    pid: int | None = None


@dataclass
class _Open:
    """The step that is being told; more curves may still name it."""

    step: int
    time: float
    steps: int
    seconds: float | None
    values: dict[str, float]
    lead: float
    told: bool = False


class EventFold:
    """Turns events, in the order of their time, into records.

    Attributes:
        lead: Tag of the curve whose points are the steps; None before there is one.
        tags: The curves seen.
    """

    def __init__(self) -> None:
        self.lead: str | None = None
        self.tags: dict[str, None] = {}
        self._open: _Open | None = None
        # Points of other curves at steps that the lead has not reached.
        self._ahead: dict[str, deque[tuple[int, float]]] = {}
        self._told = False
        self._writers: set[int | None] = set()

    def better_lead(self, said: Sequence[Said]) -> bool:
        """Learn the names in ``said``.

        Returns:
            Whether another curve leads now than the one whose steps were told so far: the caller
            then begins again.
        """
        before = self.lead
        for one in said:
            for tag in one.event.values:
                name = one.prefix + tag
                if name in self.tags or len(self.tags) >= MAX_CURVES:
                    continue
                self.tags[name] = None
                if self.lead is None or self._rank(name) < self._rank(self.lead):
                    self.lead = name
        return self._told and self.lead != before

    def restart(self) -> None:
        """Begin again with the same lead."""
        self._open, self._told = None, False
        self._ahead = {}
        self._writers = set()

    def records(self, said: Sequence[Said]) -> list[Record]:
        """The records of ``said``; the last step may come again, with more, at the next call."""
        out: list[Record] = []
        for one in said:
            event = one.event
            if not one.prefix and (event.restart or one.pid not in self._writers):
                out += self._begin(one)
            memory: dict[str, Any] = {}
            for tag, value in event.values.items():
                name = one.prefix + tag
                if name == self.lead:
                    out += self._lead(event, value)
                elif tag.startswith("memory/") and tag[7:] in _MEMORY:
                    if math.isfinite(value):
                        memory[tag[7:]] = int(value)
                elif name in self.tags:
                    self._other(name, event.step, value)
            if memory:
                out.append(Memory(step=event.step, time=event.time, **memory))
        return out + self._tell()

    @staticmethod
    def _rank(name: str) -> int:
        rank = loss_rank(name)
        return rank if rank < WORST else WORST + (_known(name) is not None)

    def _begin(self, one: Said) -> list[Record]:
        """A writer that was not there before, or one that says that it begins again."""
        told = self._tell()
        done = self._open.step if self._open is not None else 0
        if one.event.restart:
            done = max(0, one.event.step - 1)
        self._open = None
        self._writers.add(one.pid)
        return [*told, Start(time=one.event.time, step=done, pid=one.pid)]

    def _lead(self, event: Event, value: float) -> list[Record]:
        now = self._open
        if now is not None and now.step == event.step:
            now.lead, now.time, now.told = value, event.time, False
            return []
        told = self._tell()
        follows = now is not None and event.step > now.step
        steps = event.step - now.step if now is not None and follows else 1
        seconds = event.time - now.time if now is not None and follows else 0.0
        ready: dict[str, float] = {}
        for name, points in self._ahead.items():
            while points and points[0][0] <= event.step:
                ready[name] = points.popleft()[1]
        self._open = _Open(
            event.step, event.time, steps, seconds if seconds > 0 else None, ready, value
        )
        return told

    def _other(self, name: str, step: int, value: float) -> None:
        now = self._open
        if now is None or step > now.step:
            self._ahead.setdefault(name, deque(maxlen=MAX_AHEAD)).append((step, value))
        else:
            now.values[name] = value
            now.told = False

    def _tell(self) -> list[Record]:
        now = self._open
        if now is None or now.told:
            return []
        now.told = self._told = True
        known: dict[str, float] = {}
        metrics: dict[str, float] = {}
        for name, value in now.values.items():
            kind = _known(name)
            if kind is not None and math.isfinite(value) and value >= 0:
                known[kind] = value
            else:
                metrics[name] = value
        lead = self.lead or ""
        is_loss = loss_rank(lead) < WORST
        if not is_loss:
            metrics[lead] = now.lead
        rate = known.get("rate")
        return [
            Step(
                step=now.step,
                time=now.time,
                epoch=_whole(known.get("epoch")),
                steps=now.steps,
                loss=now.lead if is_loss else None,
                metrics=metrics,
                samples=round(rate * now.seconds) if rate is not None and now.seconds else None,
                seconds=now.seconds,
                step_time_p50=known.get("step_time_p50"),
                step_time_p95=known.get("step_time_p95"),
                scale=known.get("scale"),
                skipped=_whole(known.get("skipped")),
                grad_norm=known.get("grad_norm"),
            )
        ]


def _known(name: str) -> str | None:
    last = name.rsplit("/", 1)[-1].lower().replace("-", "_").replace(" ", "_")
    return _KNOWN.get(last)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
