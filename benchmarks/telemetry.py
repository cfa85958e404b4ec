"""What Monitor costs: a training step with and without it, and a record written.

    KERAS_BACKEND=torch python benchmarks/telemetry.py
    KERAS_BACKEND=tensorflow python benchmarks/telemetry.py --json telemetry.json

Trainings with and without Monitor take turns, so that whatever else the machine does meets both.
Each pair gives one ratio of processor times (wall times beside them); the table has the median and
the quartiles. Beside it stands what can be measured without such noise: the processor time spent
inside Monitor's own hooks, as a share of the training's. (What remembering the steps costs on the
device is the optimizer's part; it is switched on in both.)
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

# Units of three Dense layers, chosen for steps of about 1, 5 and 50 ms on one core; the table says
# what they really took.
SIZES = {"1 ms": (32, 8), "5 ms": (600, 64), "50 ms": (1600, 256)}


def make(units, batch):
    """A compiled model, and a function that trains it for so many steps."""
    import keras

    import keras_mp

    model = keras.Sequential(
        [keras.Input((units,)), *(keras.layers.Dense(units, "tanh") for _ in range(3))]
    )
    optimizer = keras_mp.LossScaleOptimizer("sgd", initial_scale=2.0**8)
    model.compile(optimizer=optimizer, loss="mse", auto_scale_loss=False)
    x = np.random.default_rng(0).normal(size=(batch, units)).astype("float32")

    def train(steps, callbacks):
        many = np.broadcast_to(x, (steps, *x.shape)).reshape(-1, units)
        wall, work = time.perf_counter(), time.process_time()
        model.fit(many, many, batch_size=batch, verbose=0, shuffle=False, callbacks=callbacks)
        return time.perf_counter() - wall, time.process_time() - work

    return train


def quartiles(values):
    return [float(q) for q in np.percentile(values, [25, 50, 75])]


class Timed:
    """Processor seconds spent in the hooks of a callback."""

    HOOKS = ("on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_test_begin",
             "on_epoch_end", "on_train_end")  # fmt: skip

    def __init__(self, callback):
        self.seconds = 0.0
        for name in self.HOOKS:
            setattr(callback, name, self._timed(getattr(callback, name)))

    def _timed(self, hook):
        def timed(*args, **kwargs):
            began = time.process_time()
            try:
                return hook(*args, **kwargs)
            finally:
                self.seconds += time.process_time() - began

        return timed


def step_cost(label, pairs, seconds, runs):
    """Ratios of the time with Monitor to the time without, over interleaved pairs."""
    import keras_mp

    train = make(*SIZES[label])
    train(20, [])
    monitor = keras_mp.Monitor(runs, name=f"bench {label}")
    train(20, [monitor])  # compiled and warm, with and without
    steps = max(20, int(20 * seconds / train(20, [])[0]))
    ratios, plain, shares = [], [], []
    timed = Timed(monitor)
    for pair in range(pairs):
        order = ([], [monitor]) if pair % 2 else ([monitor], [])
        timed.seconds = 0.0
        took = {bool(callbacks): train(steps, callbacks) for callbacks in order}
        shares.append(timed.seconds / took[True][1])
        ratios.append([w / o for w, o in zip(took[True], took[False], strict=True)])
        plain.append(took[False][0] / steps)
    wall, work = np.array(ratios).T
    return {
        "step": label,
        "step_seconds": float(np.median(plain)),
        "steps": steps,
        "pairs": pairs,
        "processor_ratio": quartiles(work),
        "wall_ratio": quartiles(wall),
        "own_share": quartiles(shares),
    }


def record_cost(count, runs):
    """Bytes and microseconds of a record, written and read."""
    from keras_mp.telemetry.journal import JournalWriter
    from keras_mp.telemetry.records import Meta, Step
    from keras_mp.telemetry.tail import JournalFile

    writer = JournalWriter(os.path.join(runs, "records"))
    writer.start(Meta(run_id="records", name="records", started=0.0, host="", pid=0))
    record = Step(step=1, time=time.time(), epoch=1, loss=0.5, metrics={"mae": 0.25}, samples=256,
                  seconds=0.25, step_time_p50=0.002, step_time_p95=0.003, scale=2.0**15,
                  skipped=1, applied=999, good_steps=12, grad_norm=1.5)  # fmt: skip
    took = []
    for _ in range(count):
        began = time.perf_counter()
        writer.write(record)
        took.append(time.perf_counter() - began)
    path = os.path.join(runs, "records", "events-0.jsonl")
    began = time.perf_counter()
    read = len(JournalFile(path).read()) - 1
    reading = (time.perf_counter() - began) / read
    return {
        "bytes": os.path.getsize(path) / (count + 1),
        "write_us_p50": float(np.percentile(took, 50)) * 1e6,
        "write_us_p99": float(np.percentile(took, 99)) * 1e6,
        "read_us": reading * 1e6,
    }


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one training")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as runs:
        results = {
            "backend": os.environ["KERAS_BACKEND"],
            "record": record_cost(args.records, runs),
            "steps": [step_cost(label, args.pairs, args.seconds, runs) for label in SIZES],
        }
    record = results["record"]
    print(f"{results['backend']}: Monitor(every='auto') with scale, loss, norm and throughput")
    print(f"a record: {record['bytes']:.0f} bytes, written in {record['write_us_p50']:.1f} us "
          f"(p99 {record['write_us_p99']:.1f}), read in {record['read_us']:.1f} us")  # fmt: skip
    print("   step   measured   Monitor's share   processor time with / without   wall time")
    for row in results["steps"]:
        work, wall = ("{1:.4f} ({0:.4f} .. {2:.4f})".format(*row[k])
                      for k in ("processor_ratio", "wall_ratio"))  # fmt: skip
        own = f"{row['own_share'][1] * 100:.2f} %"
        print(
            f"{row['step']:>7}  {row['step_seconds'] * 1e3:6.2f} ms   {own:>15}   {work}   {wall}"
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
