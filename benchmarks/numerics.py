"""What Monitor(numerics=True) costs at its default schedule, and what one look costs.

    KERAS_BACKEND=torch python benchmarks/numerics.py
    KERAS_BACKEND=tensorflow python benchmarks/numerics.py --json numerics.json

Trainings with and without numerics take turns (with Monitor in both); the table has the share of
the training's time that the looks took, as the schedule counted it, and the ratio of the wall times
of the interleaved runs, which also holds what the rest of the machine did. "a look" is in steps of
the training: the model's own pass and the float32 one, outside any graph, every tensor counted.
"""

import argparse
import json
import os
import tempfile
import time

os.environ.setdefault("KERAS_BACKEND", "torch")
for variable in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402  (after the threads are pinned)

# (units, layers, batch, policy)
MODELS = {
    "small MLP, bfloat16": (64, 4, 32, "mixed_bfloat16"),
    "MLP, bfloat16": (512, 4, 128, "mixed_bfloat16"),
    "MLP, float16": (256, 4, 64, "mixed_float16"),
}


def make(units, layers, batch, policy):
    """A compiled model, and a function that trains it for so many steps."""
    import keras

    import keras_mp

    keras.config.set_dtype_policy(policy)
    model = keras.Sequential(
        [keras.Input((units,)), *(keras.layers.Dense(units, "relu") for _ in range(layers))]
    )
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(1e-3), initial_scale=2.0**8)
    model.compile(optimizer=optimizer, loss="mse", auto_scale_loss=False)
    x = np.random.default_rng(0).normal(size=(batch, units)).astype("float32")

    def train(steps, monitor):
        many = np.broadcast_to(x, (steps, *x.shape)).reshape(-1, units)
        began = time.perf_counter()
        model.fit(many, many, batch_size=batch, verbose=0, shuffle=False, callbacks=[monitor])
        return time.perf_counter() - began

    return train


def cost(name, pairs, seconds, runs):
    import keras_mp

    train = make(*MODELS[name])
    off = keras_mp.Monitor(runs, name=f"{name} off")
    train(20, off)
    step = train(100, off) / 100
    steps = max(50, int(seconds / step))
    shares, ratios, looks, look_seconds = [], [], 0, []
    on = keras_mp.Monitor(runs, name=f"{name} on", numerics=True)
    for pair in range(pairs):
        took = {}
        for monitor in (off, on) if pair % 2 else (on, off):
            before = (
                0 if monitor is off or monitor._inside is None else monitor._inside.schedule.looks
            )
            took[monitor is on] = train(steps, monitor)
            if monitor is on:
                schedule = monitor._inside.schedule
                shares.append(schedule.spent / (took[True] - schedule.spent))
                done = schedule.looks - before
                looks += done
                if done:
                    look_seconds.append(schedule.spent / done)
        ratios.append(took[True] / took[False])
    return {
        "model": name,
        "step_seconds": step,
        "steps": steps,
        "pairs": pairs,
        "looks": looks,
        "look_in_steps": float(np.median(look_seconds) / step) if look_seconds else None,
        "largest_share": float(max(shares)),
        "median_share": float(np.median(shares)),
        "wall_ratio": float(np.median(ratios)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each training")
    parser.add_argument("--only", choices=[*MODELS], help="one of the models")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as runs:
        names = [args.only] if args.only else [*MODELS]
        rows = [cost(name, args.pairs, args.seconds, runs) for name in names]
    backend = os.environ["KERAS_BACKEND"]
    print(f"{backend}: numerics at the default schedule, {args.pairs} interleaved pairs each")
    head = ("model", "step", "looks", "a look", "share", "most", "wall")
    print("{:<22} {:>9} {:>6} {:>10} {:>7} {:>7} {:>6}".format(*head))
    for row in rows:
        look = "–" if row["look_in_steps"] is None else f"{row['look_in_steps']:.0f} steps"
        print(
            f"{row['model']:<22} {row['step_seconds'] * 1e3:>6.1f} ms {row['looks']:>6} {look:>10} "
            f"{row['median_share']:>7.1%} {row['largest_share']:>7.1%} {row['wall_ratio']:>6.2f}"
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"backend": backend, "numerics": rows}, file, indent=1)


if __name__ == "__main__":
    main()
