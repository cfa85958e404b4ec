"""Short, interleaved trials of a user's model: float32 against mixed precision.

The result is a ``Trial`` (``keras_mp.bench.results``); ``trial.to_json()`` is what ``keras-mp bench
--json`` prints and what ``keras-mp estimate --from-trial`` reads. Its schema, format 1:

```
{"kind": "keras-mp trial", "format": 1,
 "model": "digits.keras",            // what was given
 "backend": "torch", "versions": {"keras": "3.15.1", "torch": "2.13.0"},
 "device": "NVIDIA H100 ...", "threads": 1 or null, "parameters": 324960,
 "batch_size": 256, "steps": 20, "rounds": 5,
 "data": "scenes.npz" or "synthetic", "notes": ["..."],
 "variants": [                       // float32 first; then those that were asked for
   {"name": "float32",               // float32 | mixed_bfloat16 | mixed_float16 | planned
    "policy": "float32",             // of "planned": the policy that its plan was made for
    "samples_per_s": [4100.0, ...],  // one figure a round
    "rate": {"median": 4100.0, "low": 4080.0, "high": 4150.0},        // quartiles
    "speedup": null                  // of the others: ratios to float32 in the same round,
                                     // {"median": 2.1, "low": 2.0, "high": 2.2}
    "losses": [0.031, ...],          // a step each, same batches, same weights to begin with
    "split": {"input": 0.001, "compute": 0.05, "optimizer": 0.004, "other": 0.002},  // seconds a
                                     // step; or null
    "memory": {"what": "allocator peak" | "parameters + slots + saved bytes",
               "points": [[64, 1200000], [128, 2100000], [256, 3900000]],   // batch, bytes
               "fixed": 300000.0, "slope": 14062.5, "slopes": [14062.5, 14062.5],
               "largest_batch": 4096 or null, "budget": 68719476736, "headroom": 0.1} or null,
    "memory_unknown": null or "why there is no memory",
    "skipped": 0, "support": "fast" | "slow" | "emulated" | "none" | "unknown",
    "support_why": "...", "float32_layers": ["head"], "error": null or "..."}],
 "advice": {"switch_to": "planned", "held_back": [["input-bound", "..."]], "paragraph": "..."}}
```

A reader ignores keys that it does not know. A variant that failed has its ``error`` and no
``rate``. Numbers that are not finite are the strings "nan", "inf" and "-inf".
"""

import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import median, quantiles
from typing import Any

from keras_mp.bench.advice import advise
from keras_mp.bench.arguments import VARIANTS, check_sizes, checked_variants, whole
from keras_mp.bench.capacity import HEADROOM, fit_line, sizes_for
from keras_mp.bench.handover import handed_over
from keras_mp.bench.processes import WorkerFailed, WorkerProcess
from keras_mp.bench.results import Split, Spread, Trial, Variant

FEWEST_STEPS, MOST_STEPS = 5, 500  # a turn
Progress = Callable[[str, float], None]


def trial(
    model: Any,
    data: Any = None,
    *,
    variants: Sequence[str] = VARIANTS,
    policy: str | None = None,
    batch_size: int = 32,
    rounds: int = 5,
    seconds: float = 2.0,
    loss_steps: int = 20,
    memory: int | None = None,
    headroom: float = HEADROOM,
    seed: int = 0,
    progress: Progress | None = None,
) -> Trial:
    """Train a model for a short while in several precisions, by turns, and compare.

    Each variant has a process of its own, with fresh weights from the same seed and a fresh
    optimizer; they train in turns, so that whatever else the machine does meets all of them. On a
    GPU they share its memory.

    Args:
        model: A ``.keras`` file; ``package.module:function`` or a function at the top of a module
            that makes the model; or a model, which is saved for the other processes to read.
        data: A ``.npz`` file, ``package.module:function`` that returns (x, y) or what ``fit``
            takes, or a pair of arrays. Defaults to made-up numbers of the model's shapes.
        variants: Of "float32", "mixed_bfloat16", "mixed_float16", "planned" (``keras_mp.plan``).
        policy: What "planned" plans for. Defaults to what is recommended here, or
            "mixed_bfloat16" where that is float32.
        batch_size: Samples a batch, where the data does not decide it.
        rounds: Turns a variant.
        seconds: About how long a turn takes.
        loss_steps: Steps whose losses are compared.
        memory: Bytes to find the largest batch for. Defaults to what the device has.
        headroom: The share of it to leave free.
        seed: Of the weights.
        progress: Called with (what is done now, 0 to 1).

    Returns:
        The ``Trial``; a variant that failed has its ``error``.

    Raises:
        ValueError: An argument is out of range, or the model or the data cannot be had.
    """
    names = checked_variants(variants)
    batch_size = whole("batch_size", batch_size, 1)
    rounds, loss_steps = whole("rounds", rounds, 1), whole("loss_steps", loss_steps, 1)
    seed = whole("seed", seed, 0)
    check_sizes(seconds, headroom, memory)
    tell = progress or (lambda stage, done: None)
    with ExitStack() as stack:
        spec, data_spec, classes, label = handed_over(model, data, stack)
        running = [_Running(name, stack) for name in names]
        total = len(running) * (3 + rounds)
        done = 0

        def step(stage: str) -> None:
            nonlocal done
            tell(stage, done / total)
            done += 1

        request = {
            "spec": spec,
            "data": data_spec,
            "policy": policy,
            "batch": batch_size,
            "seed": seed,
            "classes": classes,
        }
        for each in running:  # loading a backend takes seconds: all at once
            each.start(request)
        for each in running:
            step(f"{each.name}: building")
            each.take_over()
        if all(each.error for each in running):
            raise ValueError(running[0].error)
        for each in running:
            step(f"{each.name}: first {loss_steps} steps")
            each.warm_up(loss_steps)
        for number in range(rounds):
            # Another first one each round: who follows whom must not decide.
            turn = number % len(running)
            for each in running[turn:] + running[:turn]:
                step(f"{each.name}: round {number + 1} of {rounds}")
                each.turn(seconds)
        for each in running:
            step(f"{each.name}: memory, parts of a step")
            each.measure_rest(sizes_for(each.batch or batch_size), memory, headroom)
        tell("done", 1.0)
        return _result(running, label, rounds, batch_size)


class _Running:
    """A variant while the trial lasts: its process, and what it has found."""

    def __init__(self, name: str, stack: ExitStack):
        self.name = name
        self._stack = stack
        self._process: WorkerProcess | None = None
        self.error: str | None = None
        self.about: dict[str, Any] = {}
        self.pace = 0.0  # seconds a step, about
        self.steps = 0  # of its last turn
        self.rates: list[float] = []
        self.found = Variant(name, name)

    @property
    def batch(self) -> int:
        return int(self.about.get("batch", 0))

    def _ask(self, do: str, **arguments: Any) -> Any:
        return self._try(lambda process: process.ask(do, **arguments))

    def _try(self, call: Callable[[WorkerProcess], Any]) -> Any:
        """The answer; None after a failure, which is kept as the variant's error."""
        if self.error is not None or self._process is None:
            return None
        try:
            return call(self._process)
        except WorkerFailed as error:
            self.error = str(error)
            self._process.end()  # what it holds is free for the others
            return None

    def start(self, request: dict[str, Any]) -> None:
        self._process = self._stack.enter_context(WorkerProcess(self.name))
        self._process.send("build", variant=self.name, **request)

    def take_over(self) -> None:
        """Wait until the model is built."""
        self.about = self._try(lambda process: process.answer()) or {}

    def warm_up(self, loss_steps: int) -> None:
        losses = self._ask("losses", steps=loss_steps)
        if losses == []:
            self.about["notes"].append("train_step returns no 'loss': losses are not compared")
        self._ask("turn", steps=2)  # compiled and warm
        answer = self._ask("turn", steps=3)
        if answer:
            self.pace = answer["seconds"] / answer["steps"]
        self.found = replace(self.found, losses=losses or [])

    def turn(self, seconds: float) -> None:
        answer = self._ask("turn", steps=_steps(seconds, self.pace))
        self.rates.append(answer["samples"] / answer["seconds"] if answer else math.nan)
        self.steps = answer["steps"] if answer else 0

    def measure_rest(
        self, sizes: tuple[int, int, int], memory: int | None, headroom: float
    ) -> None:
        """Memory, skipped steps, the split; none of them is worth losing the figures so far."""
        if self.error is not None or self._process is None:
            return
        budget = memory if memory is not None else int(self.about["budget"])
        measured = unknown = None
        try:
            answer = self._process.ask("memory", sizes=list(sizes))
            unknown = answer.get("unknown")
            if unknown is None:
                measured = fit_line(answer["what"], answer["points"], budget, headroom)
        except WorkerFailed as error:
            unknown = str(error)
        split, skipped = None, 0
        try:
            skipped = self._process.ask("skipped")
            step = median(self.batch / rate for rate in self.rates)
            split = Split(**self._process.ask("split", step_seconds=step))
        except WorkerFailed:
            pass  # shown as unknown
        self.found = replace(
            self.found, memory=measured, memory_unknown=unknown, split=split, skipped=skipped
        )

    def variant(self, base: "_Running | None") -> Variant:
        """What was found; compared with float32 round by round."""
        if self.error is not None:
            return Variant(self.name, self.about.get("policy", self.name), error=self.error)
        speedup = None
        if base is not None and base is not self and base.error is None:
            ratios = [mine / its for mine, its in zip(self.rates, base.rates, strict=True)]
            speedup = spread(ratios)
        return replace(
            self.found,
            policy=self.about["policy"],
            samples_per_s=self.rates,
            rate=spread(self.rates),
            speedup=speedup,
            support=self.about["support"],
            support_why=self.about["support_why"],
            float32_layers=self.about["float32_layers"],
        )


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles; of a single value, that value three times."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return Spread(middle, low, high)


def _steps(seconds: float, pace: float) -> int:
    wanted = math.ceil(seconds / pace) if pace > 0 else FEWEST_STEPS
    return max(FEWEST_STEPS, min(MOST_STEPS, wanted))


def _result(running: list[_Running], label: str, rounds: int, batch_size: int) -> Trial:
    base = next((each for each in running if each.name == "float32"), None)
    variants = [each.variant(base) for each in running]
    about = next(each.about for each in running if each.about)
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return Trial(
        model=label,
        backend=about["backend"],
        versions=about["versions"],
        device=about["device"],
        threads=int(threads) if threads.isdecimal() else None,
        parameters=about["parameters"],
        batch_size=about.get("batch", batch_size),
        steps=next((each.steps for each in running if each.steps), 0),
        rounds=rounds,
        data=about["data"],
        notes=list(dict.fromkeys(note for each in running for note in each.about.get("notes", ()))),
        variants=variants,
        advice=advise(variants, about["batch"], about["off_tiles"], about["on_cpu"]),
    )
