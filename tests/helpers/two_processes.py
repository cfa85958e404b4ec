"""Two torch processes that train alike or do not: ``torchrun --nproc_per_node=2 two_processes.py``.

Each scenario plants an overflow in the second process alone. Every process writes, for every
scenario and step, the loss scale, the counters and the weights to ``FOLDER/<rank>.json``.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import keras_mp
from keras_mp.scaling.kernels import torch as kernel

STEPS, BAD = 6, 2


class Net(torch.nn.Module):
    """Keras layers: two that always run, and one that runs as ``branch`` says.

    Args:
        branch: "always", "never", "first process", or "sparse": never, but a table of embeddings
            with sparse gradients is added to the input (outside DDP, which takes them from
            ``torch.nn.Embedding`` alone).
    """

    def __init__(self, branch):
        super().__init__()
        self.first = keras.layers.Dense(4, dtype="mixed_float16", name="first")
        self.second = keras.layers.Dense(1, name="second")
        self.extra = keras.layers.Dense(4, name="extra")
        for layer, width in ((self.first, 3), (self.extra, 4), (self.second, 4)):
            layer.build((None, width))
        self.branch, self.table = branch, None
        if branch == "sparse":
            self.table = keras.layers.Embedding(9, 3, name="table")
            self.table.build((None,))

    @property
    def variables(self):
        layers = (self.first, self.extra, self.second, self.table)
        return [v for layer in layers if layer is not None for v in layer.trainable_variables]

    def forward(self, x):
        if self.table is not None:
            rows = torch.arange(len(x))
            x = x + torch.nn.functional.embedding(rows, self.table.embeddings.value, sparse=True)
        x = self.first(x)
        if self.branch == "always" or (self.branch == "first process" and dist.get_rank() == 0):
            x = self.extra(x)
        return self.second(x)


def batch(step, bad):
    rng = np.random.default_rng(10 * step + dist.get_rank())
    x = rng.normal(size=(8, 3)).astype("float32")
    if bad and dist.get_rank() == 1:
        x[0] = np.inf
    return torch.from_numpy(x)


def train(
    inner,
    branch="always",
    distributed=True,
    micro_batches=1,
    sync="last",
    apply="last",
    compiled=False,
):
    """Run a scenario and return what each step reached.

    Args:
        inner: Keras optimizer. branch: See ``Net``. distributed: Whether DDP is around the model.
        micro_batches: Backward passes an update. sync: "last" leaves all but the last of them under
            ``no_sync``. apply: "last" applies once, "each" after each micro-batch (the optimizer
            accumulates).
        compiled: Whether ``apply`` runs in torch.compile (without its code).
    """
    keras.utils.set_random_seed(0)
    net = Net(branch)
    model = net
    if distributed:
        model = DistributedDataParallel(net, find_unused_parameters=branch != "always")
    variables = net.variables
    optimizer = keras_mp.LossScaleOptimizer(inner, initial_scale=64.0, growth_interval=2)
    optimizer.build(variables)
    step_of = torch.compile(optimizer.apply, backend="eager") if compiled else optimizer.apply
    seen = []
    for step in range(STEPS):
        for micro in range(micro_batches):
            last = micro == micro_batches - 1
            # The overflow comes where no all-reduce of DDP follows, if there is such a place.
            bad = step == BAD and micro == 0
            apart = distributed and sync == "last" and not last
            with model.no_sync() if apart else contextlib.nullcontext():
                loss = torch.mean(model(batch(step * 10 + micro, bad)) ** 2)
                optimizer.scale_loss(loss).backward()
            if apply == "each" or last:
                with torch.no_grad():
                    step_of([v.value.grad for v in variables], variables)
                for variable in variables:
                    variable.value.grad = None
        state = optimizer._state.read()
        seen.append(
            {
                "state": [state.scale, state.good_steps, state.skipped, state.applied],
                "weights": [v.value.detach().flatten().tolist() for v in variables],
                "iterations": int(optimizer.inner_optimizer._iterations.value),
            }
        )
    return seen


def sgd(**kwargs):
    return keras.optimizers.SGD(0.01, **kwargs)


SCENARIOS = {
    "ddp": lambda: train(keras.optimizers.Adam(0.01)),
    "ddp, any optimizer": lambda: train(keras.optimizers.RMSprop(0.01)),
    "ddp, no_sync": lambda: train(sgd(), micro_batches=2),
    "ddp, no_sync, accumulating optimizer": lambda: train(
        sgd(gradient_accumulation_steps=2), micro_batches=2, apply="each"
    ),
    "ddp, unused in one": lambda: train(sgd(), branch="first process"),
    "ddp, unused in all": lambda: train(sgd(), branch="never"),
    "apart, sparse": lambda: train(sgd(), branch="sparse", distributed=False),
    "apart": lambda: train(sgd(), distributed=False),
    "apart, unused in one": lambda: train(sgd(), branch="first process", distributed=False),
    "apart, any optimizer": lambda: train(keras.optimizers.RMSprop(0.01), distributed=False),
    "apart, compiled": lambda: train(sgd(), distributed=False, compiled=True),
}


def main(folder):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    results = {name: run() for name, run in SCENARIOS.items()}
    # The mutant: each process for itself.
    kernel.agree = lambda found: None
    results["mutant"] = SCENARIOS["apart"]()
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
