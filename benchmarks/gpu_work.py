"""The pieces of ``gpu.py`` that one backend runs, in a process of their own: rows as JSON lines.

    KERAS_BACKEND=torch python benchmarks/gpu_work.py [--dry-run] [--only PIECE]

A step is ``train_on_batch`` on a batch that lies on the device: input costs nothing, and each step
reads its loss once, in torch alone too. The most telling configurations come first: whoever started
this may end it when its time is up.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import gpu_models  # noqa: E402 - found by the line above
import gpu_profile  # noqa: E402

PIECES = ("checks", "speed", "native", "profile", "telemetry")
# (precision, whose): the order in which they are worth having.
KERAS_SETUPS = (
    ("float32", "Keras"),
    ("bfloat16", "ours"),
    ("float16", "ours"),
    ("float16", "Keras"),
    ("tf32", "Keras"),
    ("bfloat16", "Keras"),
)
NATIVE_SETUPS = ("float32", "bfloat16", "float16", "tf32")


def say(**row):
    print(json.dumps(row), flush=True)


class Keras:
    """A Keras model in a precision, stock or ours, with one batch on the device."""

    def __init__(self, model, precision, whose, size):
        import keras

        import keras_mp

        self.samples = 0
        keras_mp.allow_tf32(precision == "tf32")
        policy = "float32" if precision == "tf32" else precision
        policy = policy if policy == "float32" else f"mixed_{policy}"
        # Ours: the plan on a float32 model. Keras': its global policy, its loss scale in float16.
        keras_mp.set_policy("float32" if whose == "ours" else policy)
        keras.utils.set_random_seed(0)
        self.model, loss = gpu_models.keras_model(model, size)
        optimizer = keras.optimizers.AdamW(1e-4)
        if whose == "ours":
            keras_mp.plan(self.model, policy).apply(self.model)
            optimizer = keras_mp.LossScaleOptimizer(optimizer)
        # "auto": Keras puts its own loss scale around the optimizer where its policy is float16.
        self.model.compile(optimizer, loss, auto_scale_loss=whose == "Keras")
        if whose == "ours":
            optimizer.bind(self.model)
        x, y = gpu_models.data(model, size)
        self.samples = len(x)
        self._x, self._y = keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(y)
        self.parameters = self.model.count_params()

    def step(self):
        # Returns Python numbers: the step is done when they are there.
        return float(self.model.train_on_batch(self._x, self._y, return_dict=True)["loss"])


class Native:
    """The same model in torch alone: autocast, GradScaler, fused AdamW."""

    def __init__(self, model, precision, size):
        import torch

        self._torch = torch
        device = "cuda" if torch.cuda.is_available() else "cpu"
        tf32 = precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        torch.manual_seed(0)
        module, self._loss = gpu_models.torch_model(model, size)
        self._module = module.to(device)
        self._optimizer = torch.optim.AdamW(self._module.parameters(), 1e-4, fused=True)
        self._scaler = torch.amp.GradScaler(device, enabled=precision == "float16")
        half = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(precision)
        self._cast = lambda: torch.autocast(device, half, enabled=half is not None)
        x, y = gpu_models.data(model, size)
        self.samples = len(x)
        if x.ndim == 4:
            x = x.transpose(0, 3, 1, 2).copy()
        self._x, self._y = torch.from_numpy(x).to(device), torch.from_numpy(y.copy()).to(device)
        self.parameters = sum(p.numel() for p in self._module.parameters())

    def step(self):
        self._optimizer.zero_grad(set_to_none=True)
        with self._cast():
            loss = self._loss(self._module(self._x), self._y)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return loss.item()


def timed(job, steps):
    """Median and quartiles of a step's seconds, after three that warm up."""
    for _ in range(3):
        job.step()
    took = []
    for _ in range(steps):
        began = time.perf_counter()
        job.step()
        took.append(time.perf_counter() - began)
    low, _, high = quantiles(took, n=4) if steps > 1 else (took[0],) * 3
    return {"seconds": median(took), "low": low, "high": high}


def measure(piece, model, precision, whose, make, steps):
    """One row: samples a second and the peak of memory; or why there is none."""
    row = {"piece": piece, "model": model, "precision": precision, "whose": whose}
    job = None
    try:
        memory = gpu_profile.Peak()
        job = make()
        step = timed(job, steps)
        row |= {
            "parameters": job.parameters,
            "batch": job.samples,
            "samples_per_s": job.samples / step["seconds"],
            "step_seconds": step,
            "peak_bytes": memory.read(),
        }
    except Exception as error:  # out of memory, or a kernel that is not there
        row["error"] = _in_short(error)
    say(**row)
    del job
    gc.collect()
    gpu_profile.free()


def _in_short(error):
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first[:160]}"


def speed(size, steps, models):
    # One setup on every model before the next setup: whatever the time allows can be compared.
    for precision, whose in KERAS_SETUPS:
        for model in models:
            measure(
                "speed", model, precision, whose,
                lambda m=model, p=precision, w=whose: Keras(m, p, w, size), steps,
            )  # fmt: skip


def native(size, steps, models):
    for precision in NATIVE_SETUPS:
        for model in models:
            measure(
                "native", model, precision, "torch alone",
                lambda m=model, p=precision: Native(m, p, size), steps,
            )  # fmt: skip


def profile(size, steps, models):
    """Kernel launches and host reads of a step, from the backend's own profiler."""
    import keras

    jobs = [
        (precision, whose, lambda w=whose, p=precision: Keras("transformer", p, w, size))
        for precision, whose in (("float32", "Keras"), ("float16", "Keras"), ("float16", "ours"))
    ]
    if keras.backend.backend() == "torch":
        jobs.append(("float16", "torch alone", lambda: Native("transformer", "float16", size)))
    for precision, whose, make in jobs:
        row = {"piece": "profile", "model": "transformer", "precision": precision, "whose": whose}
        job = None
        try:
            job = make()
            for _ in range(3):
                job.step()
            row |= gpu_profile.of_steps(job.step, min(steps, 5))
        except Exception as error:
            row["error"] = _in_short(error)
        say(**row)
        del job
        gc.collect()
        gpu_profile.free()


def telemetry(size, steps, models):
    """``fit`` with and without Monitor, by turns, on the model whose steps are shortest."""
    import keras

    import keras_mp

    job = Keras("demo", "float16", "ours", size)
    x, y = gpu_models.data("demo", size)
    repeats = 2 if steps < 5 else 50
    import numpy as np

    many = np.concatenate([x] * repeats), np.concatenate([y] * repeats)
    ratios, plain = [], []
    with tempfile.TemporaryDirectory() as runs:
        monitor = keras_mp.Monitor(runs, name="gpu")
        for callbacks in ([], [monitor]):
            job.model.fit(*many, batch_size=job.samples, verbose=0, callbacks=callbacks)
        for turn in range(2 if steps < 5 else 9):
            took = {}
            for callbacks in ([], [monitor]) if turn % 2 else ([monitor], []):
                began = time.perf_counter()
                job.model.fit(
                    *many, batch_size=job.samples, epochs=2, verbose=0, callbacks=callbacks
                )
                took[bool(callbacks)] = time.perf_counter() - began
            ratios.append(took[True] / took[False])
            plain.append(took[False] / (2 * repeats))
    say(piece="telemetry", model="demo", precision="float16", whose="ours",
        ratio=median(ratios), low=min(ratios), high=max(ratios),
        step_seconds=median(plain), backend_of_keras=keras.backend.backend())  # fmt: skip


def checks(size, steps, models):
    import gpu_checks

    for name, verdict, seen in gpu_checks.run_all():
        say(piece="checks", check=name, verdict=verdict, seen=seen)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny models, two steps: on a CPU")
    parser.add_argument("--only", choices=PIECES, action="append")
    parser.add_argument("--models", nargs="+", choices=gpu_models.MODELS)
    args = parser.parse_args()
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    warnings.simplefilter("ignore")
    import keras

    from keras_mp.policies.detect import current_device

    backend = keras.backend.backend()
    version = sys.modules[backend].__version__
    say(piece="about", keras=keras.version(), version=version, device=str(current_device()))
    size = gpu_models.SIZES["dry" if args.dry_run else "full"]
    steps = 2 if args.dry_run else 20
    for piece in args.only or PIECES:
        if piece == "native" and backend != "torch":
            continue
        try:
            globals()[piece](size, steps, args.models or gpu_models.MODELS)
        except Exception as error:  # the other pieces are worth having all the same
            say(piece=piece, error=_in_short(error))
        say(piece="ended", of=piece)


if __name__ == "__main__":
    main()
