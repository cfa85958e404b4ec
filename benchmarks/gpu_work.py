"""The pieces of ``gpu.py`` that one backend runs, in a process of their own: rows as JSON lines.

    KERAS_BACKEND=torch python benchmarks/gpu_work.py [--dry-run] [--only PIECE] [--seconds 120]

A step is ``train_on_batch`` on a batch that lies on the device: input costs nothing, and each step
reads its loss once, in torch alone too. In each piece the most telling rows come first, and each
piece has its share of the time: what there is no time for is named. A row that fails says why; if
the device does not answer any more after that, this process ends, and whoever started it goes on
in a new one, behind the row that failed (``--skip``).
"""

import argparse
import functools
import gc
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median

BEGAN = time.monotonic()
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

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
# Piece -> its share of the time; what it leaves, the next ones have. Faults last: what breaks a
# device must not cost the rest.
SHARES = {"speed": 0.45, "native": 0.15, "profile": 0.1, "telemetry": 0.1, "checks": 0.2}
BROKEN = 3  # exit status: the device does not answer any more


def say(**row):
    print(json.dumps(row), flush=True)


def speed(size, steps, models):
    import gpu_jobs

    # One setup on every model before the next setup: whatever the time allows can be compared.
    for precision, whose in KERAS_SETUPS:
        for model in models:
            make = functools.partial(gpu_jobs.Keras, model, precision, whose, size)
            about = {"model": model, "precision": precision, "whose": whose}
            yield about, functools.partial(gpu_jobs.measured, make, steps)


def native(size, steps, models):
    import gpu_jobs

    for precision in NATIVE_SETUPS:
        for model in models:
            make = functools.partial(gpu_jobs.Native, model, precision, size)
            about = {"model": model, "precision": precision, "whose": "torch alone"}
            yield about, functools.partial(gpu_jobs.measured, make, steps)


def profile(size, steps, models):
    import gpu_jobs
    import keras

    setups = [("float16", "ours"), ("float16", "Keras"), ("float32", "Keras")]
    if keras.backend.backend() == "torch":
        setups.insert(1, ("float16", "torch alone"))
    for precision, whose in setups:
        model = "transformer"
        make = (
            functools.partial(gpu_jobs.Native, model, precision, size)
            if whose == "torch alone"
            else functools.partial(gpu_jobs.Keras, model, precision, whose, size)
        )
        about = {"model": model, "precision": precision, "whose": whose}
        yield about, functools.partial(gpu_jobs.profiled, make, steps)


def telemetry(size, steps, models):
    about = {"model": "demo", "precision": "float16", "whose": "ours"}
    yield about, functools.partial(_monitored, size, steps)


def _monitored(size, steps):
    """``fit`` with and without Monitor, by turns, on the model whose steps are shortest."""
    import gpu_jobs
    import gpu_models
    import numpy as np

    import keras_mp

    job = gpu_jobs.Keras("demo", "float16", "ours", size)
    repeats = 2 if steps < 5 else 50
    many = [np.concatenate([part] * repeats) for part in gpu_models.data("demo", size)]
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
    return {
        "ratio": median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "step_seconds": median(plain),
    }


def checks(size, steps, models):
    import gpu_checks

    for check in gpu_checks.CHECKS:
        yield (
            {"check": check.__name__.replace("_", " ")},
            functools.partial(gpu_checks.tried, check),
        )


PIECES = {
    "speed": speed,
    "native": native,
    "profile": profile,
    "telemetry": telemetry,
    "checks": checks,
}


def run(pieces, size, steps, models, *, seconds=float("inf"), skip=0, tidied=lambda: True):
    """Say the rows of the pieces.

    Args:
        pieces: Names of ``PIECES``, in order.
        size: A ``gpu_models.Size``.
        steps: A job's timed steps.
        models: Whose speed to measure.
        seconds: From the beginning of this process; a piece that has begun gets at least one row.
        skip: So many rows of the first piece are done already.
        tidied: Called after each row; False ends all with status ``BROKEN``.
    """
    shares = [SHARES[piece] for piece in pieces]
    for number, piece in enumerate(pieces):
        end = BEGAN + seconds * sum(shares[: number + 1]) / sum(shares)
        todo = list(PIECES[piece](size, steps, models))[skip:]
        skip = 0
        for done, (about, work) in enumerate(todo):
            if done and time.monotonic() > end:
                left = [", ".join(map(str, about.values())) for about, _ in todo[done:]]
                say(piece="late", of=piece, left=left)
                break
            row = {"piece": piece, **about}
            try:
                row |= work()
            except Exception as error:  # out of memory, or a kernel that is not there
                row["error"] = in_short(error)
            say(**row)
            if not tidied():
                sys.exit(BROKEN)
        say(piece="ended", of=piece)


def in_short(error):
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first[:160]}"


def tidy():
    """Free what a row held; whether the device still answers."""
    import gpu_profile
    import keras

    try:
        gc.collect()
        gpu_profile.free()
        return float(keras.ops.sum(keras.ops.ones((8,)))) == 8
    except Exception:  # after some faults of a kernel every call raises
        return False


def about():
    """What this backend is and where it computes; ``memory_bytes`` is 0 where nothing tells."""
    import keras

    from keras_mp.bench.peaks import budget
    from keras_mp.policies.detect import current_device

    backend, device = keras.backend.backend(), current_device()
    return {
        "keras": keras.version(),
        "version": sys.modules[backend].__version__,
        "device": str(device),
        "on_cpu": device.vendor == "CPU",
        "memory_bytes": 0 if device.vendor == "CPU" else budget(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--about", action="store_true", help="say what there is, and end")
    parser.add_argument("--dry-run", action="store_true", help="tiny models, two steps: on a CPU")
    parser.add_argument("--large", action="store_true", help="batches for a card of 64 GB or more")
    parser.add_argument("--only", choices=PIECES, action="append")
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--skip", type=int, default=0)
    args = parser.parse_args()
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    warnings.simplefilter("ignore")
    if args.about:
        try:
            say(piece="about", **about())
        except Exception as error:  # not installed in full, or no driver: told, not fatal
            say(piece="about", why=in_short(error))
        return
    import gpu_models
    import keras

    pieces = args.only or [p for p in PIECES if p != "native" or keras.backend.backend() == "torch"]
    size = gpu_models.SIZES["dry" if args.dry_run else "large" if args.large else "full"]
    run(
        pieces, size, 2 if args.dry_run else 20,
        args.models or gpu_models.MODELS, seconds=args.seconds, skip=args.skip, tidied=tidy,
    )  # fmt: skip


if __name__ == "__main__":
    main()
