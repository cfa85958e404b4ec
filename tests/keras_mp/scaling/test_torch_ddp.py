"""Two torch processes, an overflow in one of them: both skip, both back off, none drifts away."""

import json
import subprocess
import sys

import pytest
from helpers.stepping import BACKEND

pytestmark = [
    pytest.mark.backend,
    pytest.mark.skipif(BACKEND != "torch", reason="torch.distributed"),
]

DDP = [
    "ddp",
    "ddp, any optimizer",
    "ddp, no_sync",
    "ddp, unused in one",
    "ddp, unused in all",
]
# Here the processes have gradients, and so weights, of their own; an optimizer that accumulates
# under no_sync adds up what was never reduced.
APART = [
    "apart",
    "apart, unused in one",
    "apart, sparse",
    "apart, any optimizer",
    "apart, compiled",
    "ddp, no_sync, accumulating optimizer",
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What the two processes saw: {scenario: [step, ...]} each."""
    from helpers import __path__ as helpers

    folder = tmp_path_factory.mktemp("ranks")
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    job = [f"{helpers[0]}/two_processes.py", str(folder)]
    done = subprocess.run(
        [*torchrun, "--nproc_per_node=2", *job], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("scenario", DDP + APART)
def test_all_processes_decide_alike(scenario, ranks):
    one, other = (rank[scenario] for rank in ranks)
    assert [step["state"] for step in one] == [step["state"] for step in other]
    assert [step["iterations"] for step in one] == [step["iterations"] for step in other]
    assert one[-1]["state"][2] == 1  # one skip, in both
    before, after = one[1], one[2]
    assert after["state"][0] == before["state"][0] / 2
    if scenario in DDP:  # the same weights all along
        assert [step["weights"] for step in one] == [step["weights"] for step in other]
    if "accumulating" not in scenario:
        assert after["weights"] == before["weights"]
        assert one[3]["weights"] != before["weights"]


def test_without_the_agreement_they_part(ranks):
    """The mutant: the healthy process goes on alone."""
    one, other = (rank["mutant"] for rank in ranks)
    assert one[-1]["state"] != other[-1]["state"]
    assert (one[-1]["state"][2], other[-1]["state"][2]) == (0, 1)


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "mutant"])
def test_a_process_ends_after_its_group_has_let_go_of_the_flag(waits):
    """gloo's thread drops the flag late and aborts a process that no longer runs Python.

    Its part is played by a thread that keeps the flag for a while and says when it lets go.
    """
    job = f"""
import atexit, threading, time, torch
from keras_mp.scaling.kernels import torch_distributed as kernel

held = []

def all_reduce(flag, op):
    flag.fill_(1.0)
    held.append(flag)

def let_go():
    time.sleep({0.3 if waits else 60})
    print("let go", flush=True)
    held.clear()

torch.distributed.is_initialized = lambda: True
torch.distributed.get_world_size = lambda: 2
torch.distributed.all_reduce = all_reduce
if not {waits}:
    atexit.unregister(kernel.wait_for_flags)
found = torch.zeros(())
kernel.agree(found)
print(found.item(), flush=True)
threading.Thread(target=let_go, daemon=True).start()
"""
    done = subprocess.run([sys.executable, "-c", job], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split("\n")[:-1] == (["1.0", "let go"] if waits else ["1.0"])
