"""Write the journals that the dashboard's tests and pictures read, by training real jobs.

    make record                              # all of them, about two minutes
    python tests/recorded/record.py NAME ... # some

Each job trains the digit heat-map task of ``examples/digit_heatmap.py``, some of them made sick on
purpose. Nothing in a journal is written by hand. Afterwards the name of this machine, its paths and
process numbers are replaced, so that a new recording differs by what was measured alone.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
TASK = HERE.parents[1] / "examples" / "digit_heatmap.py"
BATCH = 256
NAN = float("nan")
# Outputs of a batch: with this weight, mean squared error is the sum of squared errors.
OUTPUTS = 256 * 12 * 12 * 10
# Gradients of this weight overflow float16 (largest number 65504) at any scale down to 2^-3.
HUGE = 1e15


def task():
    """The task's module."""
    spec = importlib.util.spec_from_file_location("digit_heatmap", TASK)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(TASK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(
    runs: str,
    name: str,
    policy: str,
    steps: int,
    *,
    weight: Callable[[int], float] = lambda step: 1.0,
    spoil: Callable[[int], float] = lambda step: 1.0,
    kill_at: int | None = None,
    first: int = 0,
    every: int | str = 5,
    pause: Callable[[int], float] = lambda step: 0.0,
    numerics: bool | dict = False,
    build: Callable | None = None,
    **scaling,
) -> None:
    """Train the digit task for ``steps`` steps, in epochs of 47.

    Args:
        weight: Step (from 1) -> what the batch's loss, and so its gradients, are multiplied by.
        spoil: Step -> what the batch's inputs are multiplied by.
        kill_at: The process kills itself (-9) after this step.
        first: Steps that were done before, for a job that is started again.
        pause: Step -> seconds that its batch takes to come.
        build: ``(keras, task) -> model``, instead of the task's own net.
        scaling: For ``LossScaleOptimizer``; without any, the optimizer does not scale.
    """
    import keras_mp

    keras_mp.set_policy(policy)
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    digits = task()
    rng = np.random.default_rng(0)
    (images, classes), _ = digits.load_digits(rng)
    x, y, _, _ = digits.make_scenes(images, classes, 47 * BATCH, rng)

    def batches() -> Iterator[tuple]:
        for step in range(first + 1, first + steps + 1):
            rows = slice((step - 1) % 47 * BATCH, ((step - 1) % 47 + 1) * BATCH)
            weights = np.full(BATCH, weight(step), "float32")
            time.sleep(pause(step))
            yield x[rows] * np.float32(spoil(step)), y[rows], weights

    def after(batch: int, logs: dict) -> None:
        after.steps += 1
        if after.steps == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    after.steps = 0
    model = build(keras, digits) if build else digits.build_model(keras)
    optimizer = keras.optimizers.Adam(2e-3)
    if scaling:
        optimizer = keras_mp.LossScaleOptimizer(optimizer, **scaling)
    model.compile(optimizer=optimizer, loss="mse", auto_scale_loss=False)
    model.fit(
        batches(),
        epochs=-(-(first + steps) // 47),
        initial_epoch=first // 47,
        steps_per_epoch=min(47, steps),
        callbacks=[
            keras_mp.Monitor(runs, name=name, every=every, numerics=numerics),
            keras.callbacks.LambdaCallback(on_train_batch_end=after),
        ],
        verbose=0,
    )


def demo(runs: str, name: str, policy: str, scale: str, epochs: int = 12) -> None:
    """The task's own program, as ``keras-mp demo`` runs it."""
    arguments = ["--runs", runs, "--name", name, "--policy", policy, "--scale", scale]
    task().main([*arguments, "--epochs", str(epochs)])


def fail(runs: str, name: str) -> None:
    """A training loop of its own that ends with an exception."""
    import keras
    import numpy as np

    import keras_mp

    digits = task()
    rng = np.random.default_rng(0)
    (images, classes), _ = digits.load_digits(rng)
    x, y, _, _ = digits.make_scenes(images, classes, 2 * BATCH, rng)
    model = digits.build_model(keras)
    model.compile(optimizer=keras.optimizers.Adam(2e-3), loss="mse")
    with keras_mp.Run(runs, name=name, model=model, planned_steps=400, every=5) as run:
        for step in range(400):
            # The 121st batch has one scene too many for its targets, as real data sometimes has.
            size = BATCH + (step == 120)
            loss = model.train_on_batch(x[:size], y[:BATCH])
            run.step(loss=float(loss), samples=BATCH)


def resume(runs: str, name: str) -> None:
    """Stopped by kill -9 in its third epoch, and started again from the end of the second."""
    step = [sys.executable, __file__, "--child", runs]
    subprocess.run([*step, "resumed:first"], check=False)
    subprocess.run([*step, "resumed:second"], check=True)


def hungry_model(keras, digits):
    """The task's net, its inputs blown up until a layer's values leave float16."""
    net = digits.build_model(keras)
    layers = [keras.layers.Rescaling(3e5, name="blown_up"), keras.layers.Rescaling(1 / 3e5)]
    return keras.Sequential([keras.Input((digits.CANVAS**2,)), *layers, *net.layers])


def dead_model(keras, digits):
    """The task's net with hidden units that are never active: zeros that no scale can help."""
    net = digits.build_model(keras)
    dead = keras.layers.Dense(
        160, "relu", bias_initializer=keras.initializers.Constant(-1e3), name="dead"
    )
    both = keras.Input((digits.CANVAS**2,))
    hidden = keras.Model(both, keras.layers.Concatenate()([net.layers[0](both), dead(both)]))
    rest = [keras.layers.Dense(160, "relu", name="after"), *net.layers[2:]]
    return keras.Sequential([hidden, *rest])


# name -> how to make it. The names are folders of the recording.
JOBS: dict[str, Callable[[str, str], None]] = {
    "float32": lambda r, n: demo(r, n, "float32", "none"),
    "float16-unscaled": lambda r, n: demo(r, n, "mixed_float16", "none"),
    "float16-scaled": lambda r, n: demo(r, n, "mixed_float16", "dynamic"),
    "数字-bfloat16": lambda r, n: demo(r, n, "mixed_bfloat16", "none", epochs=4),
    # Grows until it overflows, again and again, as dynamic scaling is meant to.
    "sawtooth": lambda r, n: train(
        r,
        n,
        "mixed_float16",
        47 * 12,
        weight=lambda step: OUTPUTS,
        scale="dynamic",
        growth_interval=30,
    ),
    # Gradients that grow all the time: the scale is halved again before it can grow.
    "thrashing": lambda r, n: train(
        r,
        n,
        "mixed_float16",
        47 * 12,
        weight=lambda step: OUTPUTS * 10 ** (max(0, step - 100) / 80),
        scale="dynamic",
        growth_interval=100,
        kill_at=400,
    ),
    # Every batch overflows from step 121 on.
    "collapsing": lambda r, n: train(
        r,
        n,
        "mixed_float16",
        47 * 6,
        weight=lambda step: HUGE if step > 120 else 1.0,
        scale="dynamic",
        kill_at=132,
    ),
    "exhausted": lambda r, n: train(
        r,
        n,
        "mixed_float16",
        47 * 12,
        weight=lambda step: HUGE if step > 320 else 1.0,
        scale="dynamic",
        min_scale=2.0**-3,
        on_exhausted="continue",
        kill_at=400,
    ),
    "static-too-large": lambda r, n: train(
        r,
        n,
        "mixed_float16",
        47 * 2,
        weight=lambda step: OUTPUTS if step % 8 == 0 else 1.0,
        scale=2.0**16,
    ),
    # One batch holds a NaN, and float32 has nobody who skips it.
    "nan-loss": lambda r, n: train(
        r,
        n,
        "float32",
        47 * 12,
        spoil=lambda step: NAN if step == 140 else 1.0,
        kill_at=400,
    ),
    # Some in mixed precision: the steps are skipped, and the loss is finite again.
    "nan-batches": lambda r, n: train(
        r,
        n,
        "mixed_float16",
        47 * 3,
        spoil=lambda step: NAN if 76 <= step < 100 else 1.0,
        scale="dynamic",
        initial_scale=2.0**18,
        every=10,
    ),
    "killed": lambda r, n: train(r, n, "mixed_float16", 47 * 12, scale="dynamic", kill_at=220),
    "failed": fail,
    "resumed": resume,
    "resumed:first": lambda r, n: train(
        r, "resumed", "mixed_float16", 47 * 6, scale="dynamic", kill_at=120
    ),
    "resumed:second": lambda r, n: train(
        r, "resumed", "mixed_float16", 47 * 4, scale="dynamic", first=94
    ),
}
# More runs, for the verdicts and the numbers; the dashboard's pictures show those above alone.
VERDICTS: dict[str, Callable[[str, str], None]] = {
    # A batch that takes 25 seconds to come: silent, and then well again.
    "stalled": lambda r, n: train(
        r, n, "float32", 141, pause=lambda step: 25.0 if step == 95 else 0.0
    ),
    # Batches that come slowly after step 190.
    "slow": lambda r, n: train(
        r, n, "float32", 235, pause=lambda step: 1.0 if step > 190 else 0.0
    ),
    # Overflows about once a growth interval: as it should be.
    "healthy": lambda r, n: train(
        r,
        n,
        "mixed_float16",
        47 * 4,
        weight=lambda step: OUTPUTS,
        scale="dynamic",
        growth_interval=80,
        numerics={"every": 40},
    ),
    # As the beginning of "sawtooth" with twice the interval: what a replay of that must foretell.
    "sawtooth-60": lambda r, n: train(
        r,
        n,
        "mixed_float16",
        47 * 4,
        weight=lambda step: OUTPUTS,
        scale="dynamic",
        growth_interval=60,
    ),
    # Begins at 2**24 and seeks its scale from there.
    "searching": lambda r, n: train(
        r, n, "mixed_float16", 47, weight=lambda step: OUTPUTS, scale="dynamic",
        initial_scale=2.0**24, numerics={"every": 20},
    ),
    # Small gradients under a scale that grows from too low: what underflow takes, and gives back.
    "underflow": lambda r, n: train(
        r, n, "mixed_float16", 47 * 6, scale="dynamic", initial_scale=2.0**4, growth_interval=24,
        numerics={"every": 8},
    ),
    "unscaled": lambda r, n: train(r, n, "mixed_float16", 47 * 4, numerics={"every": 60}),
    "static-8": lambda r, n: train(
        r, n, "mixed_float16", 47 * 4, scale=8.0, numerics={"every": 60}
    ),
    "static-2-15": lambda r, n: train(
        r, n, "mixed_float16", 47 * 4, scale=2.0**15, numerics={"every": 60}
    ),
    "activations": lambda r, n: train(
        r, n, "mixed_float16", 47, scale="dynamic", numerics={"every": 20}, build=hungry_model,
    ),
    "dead-units": lambda r, n: train(
        r, n, "mixed_float16", 47 * 2, scale=2.0**15, numerics={"every": 40}, build=dead_model,
    ),
}  # fmt: skip
NAMES = [name for name in JOBS if ":" not in name] + list(VERDICTS)
# These train side by side, so that there is a moment at which all of them run.
TOGETHER = {
    *("float32", "float16-unscaled", "float16-scaled"),
    *("sawtooth", "thrashing", "exhausted", "nan-loss"),
}


def neutral(folder: Path, number: int) -> None:
    """Replace what belongs to this machine: its name, its process numbers, its paths."""
    pid = 1000 + number
    meta_path = folder / "meta.json"
    meta = json.loads(meta_path.read_text())
    meta |= {"host": "host", "pid": pid, "argv": [Path(a).name for a in meta.get("argv", [])]}
    meta.pop("process_started", None)
    meta_path.write_text(json.dumps(meta, indent=1, ensure_ascii=False) + "\n")
    for path in sorted(folder.glob("events-*.jsonl")):
        lines = []
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record["kind"] == "start":
                record["pid"] = pid
            lines.append(json.dumps(record, ensure_ascii=False, separators=(",", ":")))
        path.write_text("\n".join(lines) + "\n")


def start(runs: str, name: str) -> subprocess.Popen:
    environment = os.environ | {"KERAS_BACKEND": os.environ.get("KERAS_BACKEND", "torch")}
    environment |= {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--child", runs, name]
    with open(Path(runs) / f"{name}.log", "w") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def wait_for(started: dict[str, subprocess.Popen]) -> None:
    for child in started.values():
        child.wait()


def keep(folder: Path, number: int) -> None:
    """Put one run's journal into the recording, unless it failed and was not meant to."""
    journal = folder / "events-0.jsonl"
    ended = json.loads(journal.read_text().splitlines()[-1]) if journal.exists() else {}
    if not ended or (ended.get("status") == "failed" and folder.name != "failed"):
        log = folder.with_name(f"{folder.name}.log").read_text()
        sys.exit(f"{folder.name} was not meant to fail: {ended or log}")
    neutral(folder, number)
    target = HERE / ("verdicts" if folder.name in VERDICTS else "runs") / folder.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns(".*"))


def record(names: list[str]) -> None:
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        sys.exit(f"No such job. Expected some of {', '.join(NAMES)}. Received: {unknown}")
    with tempfile.TemporaryDirectory() as runs:
        started: dict[str, subprocess.Popen] = {}
        for name in sorted(names, key=lambda n: n not in TOGETHER):
            print(f"{name} …", flush=True)
            if name not in TOGETHER:
                wait_for(started)
            started[name] = start(runs, name)
        wait_for(started)
        for name in names:
            keep(Path(runs) / name, NAMES.index(name))
    kept = [p for part in ("runs", "verdicts") for p in (HERE / part).rglob("*") if p.is_file()]
    size = sum(path.stat().st_size for path in kept)
    print(f"{len(names)} journals, {size / 1000:.0f} kB in all")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        (JOBS | VERDICTS)[sys.argv[3]](sys.argv[2], sys.argv[3])
    else:
        record(sys.argv[1:] or NAMES)
