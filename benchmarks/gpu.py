"""Mixed precision on one GPU, in one command and under eight minutes: speed, memory, faults.

    python benchmarks/gpu.py                       # every backend that is installed
    python benchmarks/gpu.py --backends torch jax --minutes 5
    python benchmarks/gpu.py --dry-run --json dry.json      # tiny models, on a CPU

It runs from the sources, not installed: Keras, NumPy, psutil and one backend must be importable.
ResNet-50, a transformer and the demo's net train in float32, TF32, float16 and bfloat16: stock
Keras, ours (``keras_mp.plan`` and ``LossScaleOptimizer``), and torch alone (autocast, GradScaler,
fused AdamW). Then kernel launches and host reads a step, telemetry's cost, peaks of memory, and the
faults that depend on a device's kernels. The table comes last, JSON lies beside it, by default in
``benchmarks/results/`` under the card's name. What there was no time for says so.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
BACKENDS = ("torch", "jax", "tensorflow")
MODELS = ("resnet50", "transformer", "demo")
PIECES = ("checks", "speed", "native", "profile", "telemetry")


def installed():
    return [name for name in BACKENDS if importlib.util.find_spec(name) is not None]


def run_backend(backend, seconds, options, rows, save):
    """Add the rows of one backend's process, which is ended when its time is up.

    ``save`` is called after each row: what is measured stays, whatever comes next.
    """
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])
    )
    if backend != "torch":
        # A backend alone must not look for another one's GPU libraries.
        environment.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_work.py")]
    process = subprocess.Popen(
        [*command, *options],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    alarm = threading.Timer(seconds, process.kill)
    alarm.start()
    mine = []
    began = time.monotonic()
    try:
        for line in process.stdout:
            try:
                row = json.loads(line)
            except ValueError:
                continue  # a library that prints where it should not
            mine.append({"backend": backend, **row})
            rows.append(mine[-1])
            save()
            shown = {k: v for k, v in row.items() if k not in ("parameters", "step_seconds")}
            print(f"{time.monotonic() - began:6.1f} s  {backend}: {shown}", flush=True)
    finally:
        alarm.cancel()
        process.kill()
        status = process.wait()
    ended = {row["of"] for row in mine if row["piece"] == "ended"}
    late = time.monotonic() - began >= seconds - 1
    missing = [p for p in PIECES if p not in ended and (p != "native" or backend == "torch")]
    if missing:
        why = f"no time was left after {seconds:.0f} s" if late else f"ended with status {status}"
        rows.append({"backend": backend, "piece": "cut", "missing": missing, "why": why})


def table(result):
    """The tables, as Markdown."""
    rows = result["rows"]
    lines = [f"# {result['device']}", ""]
    for row in rows:
        if row["piece"] == "about":
            lines.append(
                f"{row['backend']} {row['version']}, keras {row['keras']}, on {row['device']}."
            )
    if result["dry_run"]:
        lines += ["", "**A dry run: tiny models, two steps. Its figures mean nothing.**"]
    lines += ["", *_speeds(rows), "", *_profiles(rows), "", *_checks(rows)]
    for row in rows:
        if row["piece"] == "telemetry" and "ratio" in row:
            lines += ["", f"Monitor, {row['backend']}: {row['ratio']:.3f} of the time without it "
                      f"({row['low']:.3f} to {row['high']:.3f}), at steps of "
                      f"{row['step_seconds'] * 1e3:.2f} ms."]  # fmt: skip
        if row["piece"] == "cut":
            lines += ["", f"**Not run, {row['backend']}: {', '.join(row['missing'])} (or a part): "
                      f"{row['why']}.**"]  # fmt: skip
        if row["piece"] in PIECES and "error" in row and "model" not in row:
            lines += ["", f"**{row['backend']}, {row['piece']}: {row['error']}**"]
    for backend in BACKENDS:
        if backend not in result["backends"]:
            lines += ["", f"{backend}: not run here."]
    lines += ["", f"{result['seconds']:.0f} s in all."]
    return "\n".join(lines) + "\n"


def _speeds(rows):
    found = [r for r in rows if r["piece"] in ("speed", "native") and "model" in r]
    base = {
        (r["backend"], r["model"], r["piece"]): r["samples_per_s"]
        for r in found
        if r["precision"] == "float32" and "samples_per_s" in r
    }
    lines = [
        "| model | backend | precision | by | batch | samples/s | × float32 | peak memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    order = {name: number for number, name in enumerate((*MODELS, *BACKENDS))}
    found.sort(key=lambda r: (order[r["model"]], order[r["backend"]], r["piece"] == "native"))
    for row in found:
        head = f"| {row['model']} | {row['backend']} | {row['precision']} | {row['whose']} |"
        if "error" in row:
            lines.append(f"{head} – | {row['error']} | – | – |")
            continue
        one = base.get((row["backend"], row["model"], row["piece"]))
        times = "–" if one is None else f"{row['samples_per_s'] / one:.2f}"
        peak = "–" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.2f} GiB"
        lines.append(f"{head} {row['batch']} | {row['samples_per_s']:,.5g} | {times} | {peak} |")
    return lines


def _profiles(rows):
    lines = [
        "| a step of the transformer | backend | precision | kernel launches | host reads | "
        "operators |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["piece"] == "profile" and "whose" in row:
            if "error" in row:
                cells = ["–", "–", row["error"]]
                lines.append(
                    f"| {row['whose']} | {row['backend']} | {row['precision']} | "
                    f"{' | '.join(cells)} |"
                )
                continue
            cells = [
                "–" if row[name] is None else f"{row[name]:.0f}"
                for name in ("launches", "reads", "operators")
            ]
            lines.append(
                f"| {row['whose']} | {row['backend']} | {row['precision']} | {' | '.join(cells)} |"
            )
    return lines


def _checks(rows):
    lines = ["| depends on kernels | backend | | seen |", "|---|---|---|---|"]
    for row in rows:
        if row["piece"] == "checks" and "check" in row:
            verdict = row["verdict"] if row["verdict"] == "fine" else f"**{row['verdict']}**"
            lines.append(f"| {row['check']} | {row['backend']} | {verdict} | {row['seen']} |")
    return lines


def main(argv=None):
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
    began = time.monotonic()
    end = began + 60 * args.minutes
    options = [*(["--dry-run"] if args.dry_run else []), "--models", *args.models]
    rows = []

    def save():
        return write(args.json, rows, backends, args.dry_run, time.monotonic() - began)

    for number, backend in enumerate(backends):
        # What one does not need, the next ones have.
        left = (end - time.monotonic()) / (len(backends) - number)
        run_backend(backend, left, options, rows, save)
    path = save()
    text = table(json.loads(path.read_text(encoding="utf-8")))
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(f"\n{path}\n\n{text}")
    return 0 if any(row["piece"] == "about" for row in rows) else 1


def write(path, rows, backends, dry, seconds):
    """Write the JSON file; returns its path, by default under the card's name."""
    devices = [row["device"] for row in rows if row["piece"] == "about"]
    result = {
        "device": devices[0] if devices else "unknown",
        "dry_run": dry,
        "backends": backends,
        "seconds": seconds,
        "rows": rows,
    }
    if path is None:
        card = "".join(c if c.isalnum() else "-" for c in result["device"]).strip("-").lower()
        path = ROOT / "benchmarks" / "results" / f"gpu-{card}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
