"""What loss scaling costs on tensorflow: the plain optimizer, Keras' wrapper and this one.

    python benchmarks/scaler_tensorflow.py [--rounds 40] [--json FILE]

Prints a table of ratios to the plain Keras optimizer and writes all figures as JSON. The variants
of a case take turns in one process, on one thread; a figure is the median of the CPU times (a
process's own time: a busy machine disturbs it less than the clock). Gradients are finite: this is
the cost of the steps that train.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"
for _name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ[_name] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras  # noqa: E402 - the environment must be set before anything is imported
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import keras_mp  # noqa: E402

BIG = [(1024, 1024)] * 8
# The variables of an 18-layer transformer of width 64, and a few more: 290.
BLOCK = [*[(64, 64), (64,)] * 4, (64, 128), (128,), (128, 64), (64,), *[(64,)] * 4]
SMALL = (BLOCK * 19)[:290]

STOCK, BARE, ALL = "stock wrapper", "this", "this, with everything"
VARIANTS = ("plain", STOCK, BARE, ALL)
TARGETS = {
    ("graph apply, 290 variables", BARE): 0.80,
    ("graph apply, 8 big", BARE): 0.85,
    ("XLA fit, big", BARE): 1.08,
    ("XLA fit, big", ALL): 1.15,
}


def wrapped(variant: str, inner: keras.Optimizer) -> keras.Optimizer:
    if variant == "plain":
        return inner
    if variant == STOCK:
        return keras.optimizers.LossScaleOptimizer(inner)
    optimizer = keras_mp.LossScaleOptimizer(inner)
    if variant == ALL:
        optimizer.watch(256)
    return optimizer


def apply_case(shapes: list[tuple[int, ...]], jit: bool) -> dict[str, Callable[[], object]]:
    """One ``apply`` of Adam on given gradients, as one tf.function a variant."""
    rng = np.random.default_rng(0)
    gradients = [tf.constant(rng.normal(size=s).astype("float32") * 1024) for s in shapes]

    def make(variant: str) -> Callable[[], object]:
        variables = [keras.Variable(rng.normal(size=s).astype("float32")) for s in shapes]
        optimizer = wrapped(variant, keras.optimizers.Adam(1e-3))
        optimizer.build(variables)

        @tf.function(jit_compile=jit, autograph=False)
        def step(*gradients: tf.Tensor) -> None:
            optimizer.scale_loss(tf.ones(()))
            optimizer.apply(list(gradients), variables)

        # The concrete function: what a train step inlines, without the Python around a call.
        traced: list[Callable[..., object]] = []

        def run() -> object:
            if not traced:
                specs = [tf.TensorSpec(g.shape, g.dtype) for g in gradients]
                traced.append(step.get_concrete_function(*specs))
            return traced[0](*gradients)

        return run

    return {variant: make(variant) for variant in VARIANTS}


def fit_case(jit: bool, batch: int = 256, steps: int = 4) -> dict[str, Callable[[], object]]:
    """``fit`` for a few steps of a wide MLP with BatchNormalization, in float32, whose arithmetic
    is the fastest on a CPU and so hides the least."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch * steps, 1024)).astype("float32")
    y = rng.normal(size=(batch * steps, 16)).astype("float32")

    def make(variant: str) -> Callable[[], object]:
        keras.utils.set_random_seed(0)
        wide = keras.layers.Dense
        norm = keras.layers.BatchNormalization
        model = keras.Sequential([keras.Input((1024,))])
        for _ in range(4):
            model.add(wide(1024, activation="relu"))
            model.add(norm())
        model.add(wide(16))
        optimizer = wrapped(variant, keras.optimizers.Adam(1e-4))
        model.compile(optimizer=optimizer, loss="mse", jit_compile=jit)
        if variant == ALL:
            optimizer.bind(model)
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch, drop_remainder=True).cache()
        return lambda: model.fit(data, verbose=0)

    return {variant: make(variant) for variant in VARIANTS}


def measure(case: dict[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """{variant: {first: CPU seconds of the first call, median, ratio}}."""
    first = {}
    for variant, run in case.items():
        start = time.process_time()
        run()
        first[variant] = time.process_time() - start
        run()
    seconds: dict[str, list[float]] = {variant: [] for variant in case}
    for _ in range(rounds):
        for variant, run in case.items():
            start = time.process_time()
            run()
            seconds[variant].append(time.process_time() - start)
    medians = {variant: statistics.median(times) for variant, times in seconds.items()}
    return {
        variant: {"first": first[variant], "median": m, "ratio": m / medians["plain"]}
        for variant, m in medians.items()
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="times each variant runs")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    cases = {
        "graph apply, 290 variables": lambda: apply_case(SMALL, jit=False),
        "graph apply, 8 big": lambda: apply_case(BIG, jit=False),
        "XLA apply, 8 big": lambda: apply_case(BIG, jit=True),
        "graph fit, big": lambda: fit_case(jit=False),
        "XLA fit, big": lambda: fit_case(jit=True),
    }
    print("Adam, median CPU time as a ratio to the plain Keras optimizer; (first call, CPU s)")
    print(f"{'':30}" + "".join(f"{variant:>25}" for variant in VARIANTS))
    results = {}
    for name, make in cases.items():
        results[name] = measure(make(), options.rounds)
        cells = []
        for variant in VARIANTS:
            figures = results[name][variant]
            target = TARGETS.get((name, variant))
            mark = "" if target is None else " ok" if figures["ratio"] <= target else " MISS"
            goal = "" if target is None else f" <= {target:.2f}{mark}"
            cells.append(f"{figures['ratio']:.2f} ({figures['first']:.1f}){goal}")
        print(f"{name:30}" + "".join(f"{cell:>25}" for cell in cells), flush=True)
    about = {
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        "rounds": options.rounds,
        "threads": 1,
        "unit": "CPU seconds",
    }
    if options.json:
        options.json.write_text(json.dumps({"about": about, "cases": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
