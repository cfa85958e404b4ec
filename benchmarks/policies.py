"""What a precision plan gains: speed and bytes kept, against the plain global policy and autocast.

    python benchmarks/policies.py [--backend torch tensorflow] [--models mlp lstm ...]
                                  [--policy mixed_bfloat16] [--rounds 7] [--json FOLDER]

Each figure is a ratio to float32 in the same framework: training steps a second (above 1: faster),
and bytes kept for the backward pass (below 1: less). The variants of a model take turns in one
process, a few steps each; the ratio is the median of the rounds' ratios. Time is processor time of
one thread: other work on the machine disturbs it less than the clock's. The optimizer is plain SGD
in all of them: what is compared is what layers do.

    float32   Keras under float32
    global    Keras under the global policy
    plan      the float32 model, planned and applied
    fast      the same with `replace="speed"`: no layer that pays for bytes with time
    autocast  the same model in plain torch under torch.autocast, to its own float32
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

# Name -> the plan's `replace`; None without a plan.
VARIANTS = {"float32": None, "global": None, "plan": True, "fast": "speed"}
STEP_SECONDS = 0.3  # of float32, at least, in a turn


def keras_steps(name, policy, planned=None):
    """(a function that does one training step, the model, the inputs)."""
    import keras
    from policies_models import MODELS, data

    import keras_mp

    keras.utils.set_random_seed(0)
    build, batch = MODELS[name]
    with keras_mp.policy_scope(policy if planned is None else "float32"):
        model, shape = build()
    x, y = data(name, shape, batch)
    if planned is not None:
        keras_mp.plan(model, policy, replace=planned).apply(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-3), loss)
    x, y = keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(y)
    return (lambda: model.train_on_batch(x, y)), model, x


def native_steps(name, autocast):
    """The same in torch, with torch's own optimizer; None where there is no such model."""
    import torch
    from policies_models import MODELS, data, native

    import keras_mp  # noqa: F401 - the same process set-up

    torch.manual_seed(0)
    model = native(name)
    if model is None:
        return None
    shape = {"mlp": (784,), "convnet": (3, 32, 32)}.get(name, (64,))
    batch = MODELS[name][1]
    x, y = (torch.as_tensor(part) for part in data(name, shape, batch))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def forward():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = model(x)
            return torch.nn.functional.cross_entropy(
                output.float().flatten(0, -2), y.flatten().long()
            )

    def step():
        loss = forward()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step, model, forward


def native_kept(model, forward):
    """Bytes that autograd keeps, each storage once, parameters left out."""
    import torch

    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = forward()
    total = sum(storage.nbytes() for storage in kept.values())
    del loss
    return total


def kept_bytes(model, x):
    """Exactly, where they can be counted (torch); else None."""
    import keras

    if keras.backend.backend() != "torch":
        return None
    from keras_mp.numerics.memory import saved_bytes

    return saved_bytes(model, x).total


def turns(variants, rounds):
    """Name -> processor seconds a step, one entry a round; the variants take turns."""
    for step in variants.values():  # warm up, trace, compile
        step(), step()
    begin = time.process_time()
    next(iter(variants.values()))()
    steps = max(1, round(STEP_SECONDS / max(time.process_time() - begin, 1e-3)))
    taken = {name: [] for name in variants}
    for number in range(rounds):
        order = list(variants)
        for name in order if number % 2 == 0 else reversed(order):
            begin = time.process_time()
            for _ in range(steps):
                variants[name]()
            taken[name].append((time.process_time() - begin) / steps)
    return taken


def measure(name, policy, rounds, backend):
    """One model's row."""
    variants, kept = {}, {}
    for variant, planned in VARIANTS.items():
        chosen = "float32" if variant == "float32" else policy
        variants[variant], model, x = keras_steps(name, chosen, planned)
        kept[variant] = kept_bytes(model, x)
    pairs = [(variant, "float32") for variant in VARIANTS if variant != "float32"]
    if backend == "torch" and policy == "mixed_bfloat16":
        for variant, autocast in (("native", False), ("autocast", True)):
            found = native_steps(name, autocast)
            if found is not None:
                variants[variant], model, forward = found
                kept[variant] = native_kept(model, forward)
        if "autocast" in variants:
            pairs.append(("autocast", "native"))
    taken = turns(variants, rounds)
    row = {"model": name, "float32_ms": 1e3 * statistics.median(taken["float32"])}
    for variant, against in pairs:
        ratios = [a / b for a, b in zip(taken[against], taken[variant], strict=True)]
        row[f"{variant}_speed"] = statistics.median(ratios)
        row[f"{variant}_spread"] = max(ratios) - min(ratios)
        if kept.get(variant) is not None:
            row[f"{variant}_bytes"] = kept[variant] / kept[against]
    if "native" in taken:  # the framework's own gap, a figure of its own
        row["keras_to_native_float32"] = statistics.median(
            a / b for a, b in zip(taken["native"], taken["float32"], strict=True)
        )
    return row


def as_text(rows):
    """The rows as a table."""
    columns = [
        f"{variant}_{what}"
        for what in ("speed", "bytes")
        for variant in ("global", "plan", "fast", "autocast")
        if any(f"{variant}_{what}" in row for row in rows)
    ]
    head = ["model", "float32 ms", *(column.replace("_", " ") for column in columns)]
    lines = [head]
    for row in rows:
        cells = [f"{row[c]:.2f}" if c in row else "–" for c in columns]
        lines.append([row["model"], f"{row['float32_ms']:.0f}", *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", nargs="+", default=["torch", "tensorflow"])
    parser.add_argument("--models", nargs="+", default=None)
    parser.add_argument("--policy", default="mixed_bfloat16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FOLDER", help="write policies_<backend>.json there")
    arguments = parser.parse_args()
    if len(arguments.backend) > 1:
        return each_in_a_process(arguments)
    (backend,) = arguments.backend
    os.environ["KERAS_BACKEND"] = backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for variable in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        os.environ.setdefault(variable, "1")
    from policies_models import MODELS

    rows = []
    for name in arguments.models or MODELS:
        rows.append(measure(name, arguments.policy, arguments.rounds, backend))
        print(f"{backend}: {name} done", file=sys.stderr, flush=True)
    print(f"\n{backend}, {arguments.policy}: ratios to float32 in the same framework")
    print(as_text(rows), flush=True)
    if arguments.json:
        Path(arguments.json).mkdir(parents=True, exist_ok=True)
        path = Path(arguments.json) / f"policies_{backend}.json"
        path.write_text(json.dumps({"policy": arguments.policy, "rows": rows}, indent=1) + "\n")
    return 0


def each_in_a_process(arguments):
    status = 0
    for backend in arguments.backend:
        command = [sys.executable, __file__, "--backend", backend, "--policy", arguments.policy]
        command += ["--rounds", str(arguments.rounds)]
        command += ["--models", *arguments.models] if arguments.models else []
        command += ["--json", arguments.json] if arguments.json else []
        status |= subprocess.run(command).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
