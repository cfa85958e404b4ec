"""What Monitor costs: a training step with and without it, and a record written.

    KERAS_BACKEND=torch python benchmarks/telemetry.py
    KERAS_BACKEND=tensorflow python benchmarks/telemetry.py --json telemetry.json
    python benchmarks/telemetry.py --long 10000000

Trainings with and without Monitor take turns, so that whatever else the machine does meets both.
Each pair gives one ratio of processor times (wall times beside them); the table has the median and
the quartiles. Beside it stands what can be measured without such noise: the processor time that
the training's thread spends inside Monitor's hooks, as a share of the training's: that of the steps
(the looks at the device included, the first after a fit's first step), and apart from it what a fit
of one epoch costs once. What remembering the steps costs on the device is the optimizer's part; it
is switched on in both.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")
for variable in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402  (after the threads are pinned)

# Units of three Dense layers, chosen for steps of about 1, 5 and 50 ms on one core; the table says
# what they really took.
SIZES = {"1 ms": (32, 8), "5 ms": (600, 64), "50 ms": (1600, 256)}


# A real run with skipped steps, whose lines a long journal is made of.
LIKE = Path(__file__).parents[1] / "tests/recorded/runs/sawtooth"


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
    """Processor seconds that the training's thread spends in the hooks of a callback.

    Attributes:
        steps: In the hook of each step, the looks at the device included.
        once: In those of the fit and its epoch.
    """

    HOOKS = ("on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_test_begin",
             "on_epoch_end", "on_train_end")  # fmt: skip

    def __init__(self, callback):
        self.steps = self.once = 0.0
        for name in self.HOOKS:
            setattr(callback, name, self._timed(name, getattr(callback, name)))

    def _timed(self, name, hook):
        def timed(*args, **kwargs):
            began = time.thread_time()
            try:
                return hook(*args, **kwargs)
            finally:
                spent = time.thread_time() - began
                if name == "on_train_batch_begin":
                    self.steps += spent
                else:
                    self.once += spent

        return timed


def step_cost(label, pairs, seconds, runs):
    """Ratios of the time with Monitor to the time without, over interleaved pairs."""
    import keras_mp

    train = make(*SIZES[label])
    train(20, [])
    monitor = keras_mp.Monitor(runs, name=f"bench {label}")
    train(20, [monitor])  # compiled and warm, with and without
    steps = max(20, int(20 * seconds / train(20, [])[0]))
    ratios, plain, shares, once = [], [], [], []
    timed = Timed(monitor)
    for pair in range(pairs):
        order = ([], [monitor]) if pair % 2 else ([monitor], [])
        timed.steps = timed.once = 0.0
        took = {bool(callbacks): train(steps, callbacks) for callbacks in order}
        shares.append(timed.steps / took[True][1])
        once.append(timed.once)
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
        "once_seconds": quartiles(once),
    }


def record_cost(count, runs):
    """Bytes and microseconds of a record, written (wall clock) and read (processor time)."""
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
    began = time.process_time()
    read = len(JournalFile(path).read()) - 1
    reading = (time.process_time() - began) / read
    return {
        "bytes": os.path.getsize(path) / (count + 1),
        "write_us_p50": float(np.percentile(took, 50)) * 1e6,
        "write_us_p99": float(np.percentile(took, 99)) * 1e6,
        "read_us": reading * 1e6,
    }


def write_long(folder, records, like):
    """A journal of so many records: the lines of the real run ``like``, with their steps counted on
    as a job of weeks would."""
    lines = [json.loads(line) for line in (Path(like) / "events-0.jsonl").read_bytes().splitlines()]
    lines = [x for x in lines if x["kind"] in ("step", "overflow", "memory")]
    last = max(x["step"] for x in lines)
    began, span = lines[0]["time"], lines[-1]["time"] - lines[0]["time"] + 1.0
    rest = []
    for x in lines:
        tail = json.dumps({k: v for k, v in x.items() if k not in ("kind", "step", "time")})
        head = f'{{"kind": "{x["kind"]}", "step": %d, "time": %.6f, ' + tail[1:].replace("%", "%%")
        rest.append((x["step"], x["time"] - began, head.replace(", }", "}") + "\n"))
    folder = Path(folder)
    folder.mkdir(parents=True)
    (folder / "meta.json").write_bytes((Path(like) / "meta.json").read_bytes())
    written = turn = 0
    with open(folder / "events-0.jsonl", "wb", buffering=1 << 22) as file:
        file.write(b'{"kind": "start", "schema": 1, "time": %.6f}\n' % began)
        while written < records:
            part = rest[: records - written]
            offset, since = turn * last, began + turn * span
            file.write("".join(t % (offset + s, since + d) for s, d, t in part).encode())
            written += len(part)
            turn += 1
    return turn


def long_journal(records, runs, like):
    """Seconds until a long journal's latest state is seen, and until its history is."""
    from keras_mp.telemetry.runs import RunsFolder

    place = Path(runs) / "long"
    write_long(place / "job", records, like)
    with open(place / "job/events-0.jsonl", "rb") as file:
        file.seek(-2000, os.SEEK_END)
        last = file.read().splitlines()[-1]
    began, worked = time.perf_counter(), time.process_time()
    folder = RunsFolder(place)
    folder.poll(0.2)
    first = time.perf_counter() - began, time.process_time() - worked
    (job,) = folder.jobs
    assert job.step == json.loads(last)["step"], "the latest state is not the last record's"
    polls = 1
    while folder.loading:
        folder.poll(0.2)
        polls += 1
    (job,) = folder.jobs
    return {
        "records": job.records,
        "bytes": os.path.getsize(place / "job/events-0.jsonl"),
        "latest_seconds": first[0],
        "latest_processor_seconds": first[1],
        "history_seconds": time.perf_counter() - began,
        "history_processor_seconds": time.process_time() - worked,
        "polls": polls,
        "points_kept": len(job.series),
        "resident_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def tell_long(row):
    print(
        f"{row['records']:,} records, {row['bytes'] / 1e9:.2f} GB: latest state in "
        f"{row['latest_seconds']:.2f} s ({row['latest_processor_seconds']:.2f} s of processor), "
        f"whole history in {row['history_seconds']:.0f} s "
        f"({row['history_processor_seconds']:.0f} s of processor) over {row['polls']:,} polls; "
        f"{row['points_kept']:,} points kept, {row['resident_peak_bytes'] / 1e6:.0f} MB resident"
    )


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one training")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    parser.add_argument(
        "--long", type=int, metavar="RECORDS", help="read a journal of so many records instead"
    )
    args = parser.parse_args(argv)
    if args.long:
        with tempfile.TemporaryDirectory() as runs:
            row = long_journal(args.long, runs, LIKE)
        tell_long(row)
        if args.json:
            Path(args.json).write_text(json.dumps(row, indent=1))
        return 0
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
    print(
        "   step   measured  Monitor's share  and a fit  processor time with / without  wall time"
    )
    for row in results["steps"]:
        work, wall = ("{1:.4f} ({0:.4f} .. {2:.4f})".format(*row[k])
                      for k in ("processor_ratio", "wall_ratio"))  # fmt: skip
        own = f"{row['own_share'][1] * 100:.2f} %"
        once = f"{row['once_seconds'][1] * 1e3:.1f} ms"
        print(
            f"{row['step']:>7}  {row['step_seconds'] * 1e3:6.2f} ms  {own:>15}  {once:>9}  {work}"
            f"  {wall}"
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
