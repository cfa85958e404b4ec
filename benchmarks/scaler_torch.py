"""What loss scaling costs on torch: counted exactly, and timed against Keras and torch's own.

    KERAS_BACKEND=torch python benchmarks/scaler_torch.py [--json FILE] [--seconds S]

``apply`` alone, for Adam, AdamW and SGD with momentum, on a model of 291 small variables and on one
of 8 big ones. Counted a step: operators (all that run below autograd, views too), host reads (one
number read from the device) and scalars copied to the device. Timed: process CPU time, the variants
taking turns within one run so that a busy machine slows all alike; the table shows the median of
each variant's ratio to the plain Keras optimizer, turn by turn.

``tensors`` hands over gradients of the caller's, which must keep their values; ``.grad`` the
variables' own, as Keras' train step does, which may be unscaled in place.
"""

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import keras
import numpy as np
import torch

import keras_mp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from helpers.operators import count

MODELS = {"291 small": (291, 64), "8 big": (8, 2**20)}
RULES = {
    "Adam": (
        lambda: keras.optimizers.Adam(1e-3),
        lambda p, **kw: torch.optim.Adam(p, 1e-3, **kw),
    ),
    "AdamW": (
        lambda: keras.optimizers.AdamW(1e-3),
        lambda p, **kw: torch.optim.AdamW(p, 1e-3, **kw),
    ),
    "SGD": (
        lambda: keras.optimizers.SGD(0.01, momentum=0.9),
        lambda p, **kw: torch.optim.SGD(p, 0.01, momentum=0.9, **kw),
    ),
}


class KerasVariant:
    """A Keras optimizer on variables of its own."""

    def __init__(self, optimizer, shape, watch=False):
        number, size = shape
        rng = np.random.default_rng(0)
        if watch:  # everything: attribution, norm, ring, and a bound model with BatchNorm
            model = keras.Sequential([keras.Input((4,))])
            for _ in range(20):
                model.add(keras.layers.BatchNormalization())
            optimizer.watch(256)
            optimizer.bind(model)
        self.optimizer = optimizer
        self.variables = [
            keras.Variable(rng.normal(size=size).astype("float32")) for _ in range(number)
        ]
        optimizer.build(self.variables)
        self.parameters = [v.value for v in self.variables]
        self.scale = getattr(optimizer, "config", None) is not None

    def set_gradients(self, tensors, own):
        for parameter, tensor in zip(self.parameters, tensors, strict=True):
            if own and parameter.grad is not None:
                parameter.grad.copy_(tensor)
            elif own:
                parameter.grad = tensor.clone()
        self.gradients = [p.grad for p in self.parameters] if own else tensors
        if self.scale:
            self.optimizer.scale_loss(torch.ones(()))

    def step(self):
        self.optimizer.apply(self.gradients, self.variables)


class TorchVariant:
    """A torch optimizer, with or without GradScaler: ``unscale_`` and ``step`` and ``update``."""

    def __init__(self, make, shape, scaler):
        number, size = shape
        self.parameters = [torch.nn.Parameter(torch.randn(size)) for _ in range(number)]
        self.optimizer = make(self.parameters)
        self.scaler = torch.amp.GradScaler("cpu") if scaler else None
        if scaler:
            self.scaler.scale(torch.ones(()))

    def set_gradients(self, tensors, own):
        for parameter, tensor in zip(self.parameters, tensors, strict=True):
            if parameter.grad is None:
                parameter.grad = tensor.clone()
            else:
                parameter.grad.copy_(tensor)

    def step(self):
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()


def variants(rule, shape):
    keras_rule, torch_rule = RULES[rule]

    def ours(**kwargs):
        return keras_mp.LossScaleOptimizer(keras_rule(), **kwargs)

    return {
        "plain Keras": KerasVariant(keras_rule(), shape),
        "stock wrapper": KerasVariant(keras.optimizers.LossScaleOptimizer(keras_rule()), shape),
        "this": KerasVariant(ours(attribution=False), shape),
        "this, everything": KerasVariant(ours(), shape, watch=True),
        "torch foreach": TorchVariant(lambda p: torch_rule(p, foreach=True), shape, False),
        "torch foreach + GradScaler": TorchVariant(
            lambda p: torch_rule(p, foreach=True), shape, True
        ),
        "torch fused": TorchVariant(lambda p: torch_rule(p, fused=True), shape, False),
        "torch fused + GradScaler": TorchVariant(lambda p: torch_rule(p, fused=True), shape, True),
    }


def measure(rule, model, own, seconds):
    """Rows of the table for one optimizer, model and kind of gradients."""
    shape = MODELS[model]
    runs = variants(rule, shape)
    tensors = [torch.randn(shape[1]) for _ in range(shape[0])]
    times = {name: [] for name in runs}
    counts = {}
    end = time.monotonic() + seconds
    turns = 0
    with torch.no_grad():
        while turns < 8 or time.monotonic() < end:
            # Another order each turn: whoever follows the stock wrapper finds the cache empty.
            order = list(runs)
            order = order[turns % len(order) :] + order[: turns % len(order)]
            for name in order:
                run = runs[name]
                run.set_gradients(tensors, own)
                if turns == 5:
                    counts[name] = count(run.step)
                    continue
                start = time.process_time()
                run.step()
                times[name].append(time.process_time() - start)
            turns += 1
    base = times["plain Keras"][3:]
    rows = []
    for name in runs:
        ratios = [a / b for a, b in zip(times[name][3:], base, strict=True)]
        rows.append(
            {
                "optimizer": rule,
                "model": model,
                "gradients": ".grad" if own else "tensors",
                "variant": name,
                "operators": counts[name].operators,
                "host_reads": counts[name].reads,
                "scalars_copied": counts[name].scalar_copies,
                "ratio": statistics.median(ratios),
                "ms": statistics.median(times[name][3:]) * 1e3,
                "turns": len(ratios),
            }
        )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--seconds", type=float, default=6, help="a table (default 6)")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = []
    print(f"torch {torch.__version__}, keras {keras.__version__}, CPU, 1 thread; GPU: not run")
    for rule in RULES:
        for model in MODELS:
            for own in (False, True):
                table = measure(rule, model, own, arguments.seconds)
                rows += table
                kind = table[0]["gradients"]
                print(f"\n{rule}, {model} variables, {kind}: operators · reads · scalars, CPU time")
                for row in table:
                    cost = f"{row['operators']} · {row['host_reads']} · {row['scalars_copied']}"
                    print(f"  {row['variant']:<28}{cost:>16}{row['ratio']:>8.2f}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
