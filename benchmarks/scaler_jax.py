"""What loss scaling costs on jax: this wrapper and Keras' own against the plain optimizer.

    KERAS_BACKEND=jax python benchmarks/scaler_jax.py [--json FILE] [--seconds S]

``apply`` alone (``stateless_apply`` under jit) and a whole train step of an MLP; the variants take
turns within one run, so that a busy machine slows all of them alike. ``select`` and ``cond`` are
the two ways to skip a step: compute the update and throw it away, or branch. Times are process CPU
time; the table shows the median of each variant's ratio to the plain optimizer, round by round.
"""

import argparse
import json
import os
import statistics
import sys
import time

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import jax
import jax.numpy as jnp
import keras
import numpy as np

import keras_mp
from keras_mp.scaling.kernels import jax as jax_kernel

MODELS = {
    "8 big": [(1024, 1024)] * 8,
    "60 small": [(64, 64), (64,)] * 30,
    "290 small": [(32, 32), (32,)] * 145,
}


def select(finite, step, skip):
    """Skip by selection, in place of ``jax_ops.choose``."""
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), step(), skip())


def variants():
    """Name -> (optimizer, how it skips)."""
    return {
        "plain": lambda: keras.optimizers.Adam(),
        "stock": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
        "ours": lambda: keras_mp.LossScaleOptimizer(keras.optimizers.Adam()),
        "ours, select": lambda: keras_mp.LossScaleOptimizer(keras.optimizers.Adam()),
        "ours, no attribution": lambda: keras_mp.LossScaleOptimizer(
            keras.optimizers.Adam(), attribution=False
        ),
        "ours, ring": lambda: watched(keras_mp.LossScaleOptimizer(keras.optimizers.Adam())),
    }


def watched(optimizer):
    optimizer.watch(256)
    return optimizer


class Apply:
    """One variant's jitted ``stateless_apply`` on variables of its own."""

    def __init__(self, name, make, shapes):
        rng = np.random.default_rng(0)
        variables = [keras.Variable(rng.normal(size=s).astype("float32")) for s in shapes]
        optimizer = make()
        optimizer.build(variables)
        scale = 1.0 if name == "plain" else 2.0**15
        self.grads = [jnp.asarray(rng.normal(size=s).astype("float32") * scale) for s in shapes]
        # Copies: the step takes over (donates) the arrays that it is given, as Keras' trainer does.
        self.weights = [jnp.array(v.value, copy=True) for v in variables]
        self.own = [jnp.array(v.value, copy=True) for v in optimizer.variables]
        self.step = jax.jit(optimizer.stateless_apply, donate_argnums=(0, 2))
        choose = jax_kernel.choose
        if name == "ours, select":
            jax_kernel.choose = select
        try:
            self.run()  # compiles
        finally:
            jax_kernel.choose = choose

    def run(self):
        self.weights, self.own = self.step(self.own, self.grads, self.weights)
        jax.block_until_ready(self.weights)


class TrainStep:
    """One variant's train step of an MLP, as ``fit`` runs it."""

    def __init__(self, name, make, _):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(1024, activation="relu") for _ in range(3)]
        model = keras.Sequential([keras.Input((1024,)), *layers, keras.layers.Dense(10)])
        model.compile(optimizer=make(), loss="mse")
        rng = np.random.default_rng(0)
        self.model = model
        self.data = rng.normal(size=(64, 1024)).astype("float32"), np.zeros((64, 10), "float32")
        choose = jax_kernel.choose
        if name == "ours, select":
            jax_kernel.choose = select
        try:
            self.run()
        finally:
            jax_kernel.choose = choose

    def run(self):
        self.model.train_on_batch(*self.data)


def seconds(run, repeats):
    start = time.process_time()
    for _ in range(repeats):
        run()
    return (time.process_time() - start) / repeats


def compare(kind, shapes, budget):
    """Name -> (median ratio to plain, seconds a step)."""
    runners = {name: kind(name, make, shapes) for name, make in variants().items()}
    once = seconds(runners["plain"].run, 3)
    repeats = max(1, int(0.05 / once))
    rounds = max(5, int(budget / (repeats * once * len(runners))))
    times = {name: [] for name in runners}
    for _ in range(rounds):
        for name, runner in runners.items():
            times[name].append(seconds(runner.run, repeats))
    return {
        name: {
            "ratio": statistics.median(
                one / plain for one, plain in zip(own, times["plain"], strict=True)
            ),
            "seconds": statistics.median(own),
            "rounds": rounds,
        }
        for name, own in times.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write the figures here too")
    parser.add_argument("--seconds", type=float, default=20.0, help="per table row; default 20")
    arguments = parser.parse_args()
    if keras.backend.backend() != "jax":
        sys.exit("This benchmark is about jax: set KERAS_BACKEND=jax.")
    rows = {f"apply, {name}": (Apply, shapes) for name, shapes in MODELS.items()}
    rows["train_on_batch, MLP 4x1024"] = (TrainStep, None)
    names = list(variants())
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}; CPU time, plain Adam = 1.00\n")
    print(f"{'':28}" + "".join(f"{name:>22}" for name in names))
    figures = {}
    for row, (kind, shapes) in rows.items():
        figures[row] = compare(kind, shapes, arguments.seconds)
        print(f"{row:28}" + "".join(f"{figures[row][name]['ratio']:22.2f}" for name in names))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(figures, file, indent=2)


if __name__ == "__main__":
    main()
