"""Several torch processes decide alike: one all-reduce of the overflow flag, before anyone acts."""

import atexit
import time
import weakref
from typing import Any

import torch
import torch.distributed

# Seconds that an exit waits at most for the flags below.
PATIENCE = 5.0

# Flags that the process group's threads may still hold.
_held: list[weakref.ref[Any]] = []


def several() -> bool:
    """Whether there is a process group of several processes."""
    distributed = torch.distributed
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def agree(found: Any) -> None:
    """Make ``found`` (float32, one element) 1 in every process if it is 1 in any.

    Nothing happens without an initialised process group of several processes. DDP spreads a
    non-finite gradient by its own all-reduce, but not under ``no_sync``, nor for parameters it does
    not reduce, nor in loops without DDP.
    """
    if several():
        # A tensor that nobody else keeps, so that its end tells when gloo has let go of it.
        flag = found.clone()
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
        found.copy_(flag)
        _held[:] = [ref for ref in _held if ref() is not None]
        _held.append(weakref.ref(flag))


# One operator to the compiler: no break of a step's graph.
@torch.library.custom_op("keras_mp::agree", mutates_args=("found",))
def agree_compiled(found: torch.Tensor) -> None:
    """``agree`` inside of a compiled step."""
    agree(found)


@atexit.register
def wait_for_flags() -> None:
    """Let the process group's threads drop their last flags while the interpreter still runs.

    gloo's worker lets go of a tensor some time after the all-reduce has returned, and needs
    Python's lock for it. If the interpreter is ending by then, the process aborts ("terminate
    called without an active exception", https://github.com/pytorch/pytorch/issues/190489), and a
    training that was over has failed.
    """
    end = time.monotonic() + PATIENCE
    while any(ref() is not None for ref in _held) and time.monotonic() < end:
        time.sleep(0.001)
