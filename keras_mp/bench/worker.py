"""One variant of a trial, in a process of its own: ``python -m keras_mp.bench.worker``.

A request is a JSON line on standard input, its answer a JSON line on standard output:
``{"do": "build", ...}`` first, then ``losses``, ``turn``, ``memory`` and ``split`` as often as
wanted; the end of the input ends it. An answer is ``{"ok": ...}`` or ``{"error": "..."}``. What
libraries print goes to standard error.
"""

import json
import os
import re
import sys
import traceback
import warnings
from typing import Any

from keras_mp._backend import translate


class Worker:
    """Holds the model of one variant between the requests."""

    def __init__(self) -> None:
        self.model: Any = None
        self.batches: Any = None
        self.seed = 0
        self.step_seconds = 0.0

    def build(
        self,
        *,
        spec: str,
        data: str | None,
        variant: str,
        policy: str | None,
        batch: int,
        seed: int,
        classes: list[str],
    ) -> dict[str, Any]:
        """Make the model and its data; returns what is known before anything ran."""
        import keras

        import keras_mp
        from keras_mp.bench import workload
        from keras_mp.bench.batches import load_batches
        from keras_mp.bench.handover import named
        from keras_mp.bench.peaks import budget

        warnings.simplefilter("ignore", keras_mp.EmulatedPrecisionWarning)
        asked = variant if variant != "planned" else policy or workload.half_policy()
        first = variant if variant != "planned" else "float32"  # until its plan
        self.seed = seed
        if data is not None and not data.endswith(".npz"):
            named(data)  # its module may import, and so register, classes that a file names
        self.model = workload.build(spec, first, seed, classes)
        self.batches = load_batches(data, self.model, batch)
        if not self.model.built:
            x, _ = self.batches.sized(2)
            self.model(keras.tree.map_structure(keras.ops.convert_to_tensor, x))
        workload.put_policy(self.model, first)
        notes = [*workload.compile_for(self.model, self.batches), *workload.tf32_note()]
        kept: list[str] = []
        if variant == "planned":
            calibrate = None if data is None else self._some_inputs()
            planned = keras_mp.plan(self.model, asked, calibrate)
            planned.apply(self.model)
            kept = [row.path for row in planned if row.path and row.policy == "float32"]
        workload.fresh_optimizer(self.model)
        return {
            "policy": asked,
            "batch": self.batches.batch,
            "data": self.batches.what,
            "budget": budget(),
            "notes": notes,
            "float32_layers": kept,
            **about(self.model, asked),
        }

    def _some_inputs(self) -> Any:
        """To calibrate a plan with, which takes a tuple as (x, y)."""
        x, _ = self.batches.sized(min(self.batches.batch, 64))
        return list(x) if isinstance(x, tuple) else x

    def losses(self, *, steps: int) -> list[float]:
        import keras

        from keras_mp.bench.timing import losses_of

        # What came before may have drawn numbers: data that is shuffled comes in one order now.
        keras.utils.set_random_seed(self.seed)
        return losses_of(self.model, self.batches, steps)

    def turn(self, *, steps: int) -> dict[str, Any]:
        """Seconds and samples of so many steps of ``fit``."""
        from keras_mp.bench.timing import fit_steps

        seconds, done = fit_steps(self.model, self.batches, steps)
        self.step_seconds = seconds / done
        return {"seconds": seconds, "steps": done, "samples": done * self.batches.batch}

    def memory(self, *, sizes: list[int]) -> dict[str, Any]:
        """What a step takes at each batch size, and what was measured."""
        from keras_mp.bench.peaks import UnknownMemory, step_bytes

        points, what = [], ""
        for size in sorted(sizes):
            try:
                what, found = step_bytes(self.model, self.batches, size)
            except UnknownMemory as error:
                return {"unknown": str(error)}
            points.append([size, found])
        return {"what": what, "points": points}

    def split(self, *, step_seconds: float) -> dict[str, float]:
        """The parts of a step. Changes the weights a little: the last thing to ask."""
        from dataclasses import asdict

        from keras_mp.bench.timing import split

        return asdict(split(self.model, self.batches, step_seconds))

    def skipped(self) -> int:
        """Steps that the loss scale skipped."""
        return int(getattr(self.model.optimizer, "skipped_steps", 0))


def about(model: Any, policy: str) -> dict[str, Any]:
    """What the model and the machine are, in JSON's terms."""
    import keras

    from keras_mp.policies.detect import current_device
    from keras_mp.policies.hardware import precisions
    from keras_mp.policies.structure import structure_of
    from keras_mp.policies.work import work_of

    device = current_device()
    compute = keras.DTypePolicy(policy).compute_dtype
    support = precisions(device)[compute]
    backend = keras.backend.backend()
    versions = {"keras": keras.version()}
    versions[backend] = sys.modules[backend].__version__
    return {
        "backend": backend,
        "versions": versions,
        "device": str(device),
        "on_cpu": device.vendor == "CPU",
        "parameters": model.count_params(),
        "support": support.support,
        "support_why": support.why,
        "off_tiles": [
            [place.path, name, width]
            for place in structure_of(model, ends=False).places
            for name, width in work_of(place).widths
            if width % 8
        ],
    }


def in_words(error: Exception) -> str:
    """The line of an error that says what happened; with where, if Keras says so first."""
    text = re.sub(r"\x1b\[[\d;]*m", "", str(error))  # Keras prints parts in bold
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if lines[0] == "Graph execution error:":  # TensorFlow's: what happened follows a stack
        stack = [n for n, line in enumerate(lines) if line.startswith(("Detected at", "File "))]
        told = [n for n in lines[1 + max(stack, default=0) :] if "root error(s)" not in n]
        return told[0] if told else lines[0]
    only_where = lines[0].endswith(".call().") and len(lines) > 1
    return " ".join(lines[: 1 + only_where])


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever is printed from here on is no answer
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        do = getattr(worker, request.pop("do"))
        try:
            answer = {"ok": do(**request)}
        except Exception as error:  # the user's model or data: told to the parent, not fatal here
            traceback.print_exc()
            if isinstance(error, ModuleNotFoundError):
                error = translate(error)
            answer = {"error": in_words(error), "kind": type(error).__name__}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
