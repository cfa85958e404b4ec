"""Mixed precision on one GPU, in one command and under eight minutes: speed, memory, faults.

    python benchmarks/gpu.py                       # every backend that sees a GPU
    python benchmarks/gpu.py --backends torch jax --minutes 5
    python benchmarks/gpu.py --dry-run --json dry.json      # tiny models, on a CPU

It runs from the sources, not installed: Keras, NumPy, psutil and one backend must be importable.
ResNet-50, a transformer and the demo's net train in float32, TF32, float16 and bfloat16: stock
Keras, ours (``keras_mp.plan`` and ``LossScaleOptimizer``), and torch alone (autocast, GradScaler,
fused AdamW). Then kernel launches and host reads a step, telemetry's cost, peaks of memory, and the
faults that depend on a device's kernels.

The table comes last; JSON and table lie, by default, in ``benchmarks/results/`` under the card's
name, and are written anew after every row: however this program ends, what was measured stays.
What failed, crashed or had no time is a line of its own.
"""

import argparse
import importlib.util
import json
import signal
import sys
import time
from pathlib import Path

from gpu_run import about, pieces
from gpu_table import BACKENDS, MODELS, table
from gpu_work import PIECES

ROOT = Path(__file__).parents[1]
LARGE = 64e9  # bytes: a card that larger batches keep busy


def installed():
    return [name for name in BACKENDS if importlib.util.find_spec(name) is not None]


class Result:
    """What is there so far, and its files."""

    def __init__(self, path, dry):
        self._path, self._began = path, time.monotonic()
        self.data = {
            "device": "unknown",
            "dry_run": dry,
            "done": False,
            "seconds": 0.0,
            "about": {},
            "rows": [],
        }

    @property
    def path(self):
        if self._path is not None:
            return self._path
        card = "".join(c if c.isalnum() else "-" for c in self.data["device"]).strip("-").lower()
        return ROOT / "benchmarks" / "results" / f"gpu-{card}.json"

    def save(self):
        """Write both files; neither is ever there in part."""
        self.data["seconds"] = time.monotonic() - self._began
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for path, text in (
            (self.path, json.dumps(self.data, indent=1) + "\n"),
            (self.path.with_suffix(".md"), table(self.data)),
        ):
            part = path.with_name(path.name + ".part")
            part.write_text(text, encoding="utf-8")
            part.replace(path)

    def add(self, backend, row):
        self.data["rows"].append({"backend": backend, **row})
        self.save()
        shown = {k: v for k, v in row.items() if k not in ("parameters", "step_seconds")}
        print(f"{self.data['seconds']:6.1f} s  {backend}: {shown}", flush=True)


def measure(result, backends, end, options, dry):
    """All backends that can; the time that one does not need, the next ones have."""
    found = about(backends)
    for backend, of in found.items():
        if of.get("on_cpu") and not dry:
            found[backend] = {"why": "it sees no GPU; --dry-run tries the program on a CPU"}
    result.data["about"] = found
    able = [backend for backend, of in found.items() if "why" not in of]
    result.data["device"] = found[able[0]]["device"] if able else "no GPU"
    if max((found[backend]["memory_bytes"] for backend in able), default=0) >= LARGE and not dry:
        options = [*options, "--large"]
    for number, backend in enumerate(able):
        wanted = [piece for piece in PIECES if piece != "native" or backend == "torch"]
        seconds = (end - time.monotonic()) / (len(able) - number)
        pieces(
            backend, wanted, seconds, options, lambda row, backend=backend: result.add(backend, row)
        )
    return bool(able)


def main(argv=None):
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=None)
    parser.add_argument("--minutes", type=float, default=7.5, help="for all (default: 7.5)")
    parser.add_argument("--dry-run", action="store_true", help="tiny models: does it run at all")
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=MODELS, help="whose speed to measure"
    )
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/gpu-CARD.json")
    args = parser.parse_args(argv)
    backends = args.backends or installed()
    if not backends:
        print(f"No backend is installed. Expected one of {', '.join(BACKENDS)}", file=sys.stderr)
        return 2
    # `timeout` and job systems ask so: the processes are ended and the files say it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    result = Result(args.json, args.dry_run)
    options = [*(["--dry-run"] if args.dry_run else []), "--models", *args.models]
    able = False
    try:
        able = measure(result, backends, began + 60 * args.minutes, options, args.dry_run)
        result.data["done"] = True
    except KeyboardInterrupt:
        able = True  # the table below is what was asked for
    finally:
        result.save()
        text = result.path.with_suffix(".md").read_text(encoding="utf-8")
        print(f"\n{result.path}\n\n{text}", flush=True)
    return 0 if able else 1


if __name__ == "__main__":
    sys.exit(main())
