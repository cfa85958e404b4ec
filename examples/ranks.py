"""Several processes of one data-parallel job, one journal: torch's DistributedDataParallel.

    python examples/ranks.py --runs runs --processes 2      # starts them itself
    torchrun --nproc-per-node 2 examples/ranks.py           # or let torchrun do it
    keras-mp monitor runs

Each process writes its own file in the same run; the dashboard shows them as one job, its samples a
second added up. torchrun (and this program) tell each process its RANK and WORLD_SIZE.
"""

import argparse
import os
import socket
import subprocess
import sys


def start_all(argv, processes):
    """The processes of the job, each with what torchrun would tell it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    told = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, *argv], env={**os.environ, **told, "RANK": str(rank)}
        )
        for rank in range(processes)
    ]
    return max(process.wait() for process in started)


def main(argv=None):
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", default="runs", help="folder for the journal")
    parser.add_argument("--name", default="ranks")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args(argv)
    if "RANK" not in os.environ:
        return start_all(argv, args.processes)

    import torch
    from sklearn.datasets import load_digits

    import keras_mp

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(rank)
    x, y = load_digits(return_X_y=True)  # 1,797 handwritten digits, 8 x 8
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_of = torch.nn.CrossEntropyLoss()
    with keras_mp.Run(
        args.runs, args.name, policy="autocast bfloat16", planned_steps=args.steps
    ) as run:
        for _ in range(args.steps):
            picked = torch.randint(1500, (args.batch_size,))
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model(x[picked]), y[picked])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.step(loss=loss, samples=args.batch_size)
    torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
