"""Several torch processes decide alike: one all-reduce of the overflow flag, before anyone acts."""

from typing import Any

import torch.distributed


def agree(found: Any) -> None:
    """Make ``found`` (float32, one element) 1 in every process if it is 1 in any.

    Nothing happens without an initialised process group of several processes. DDP spreads a
    non-finite gradient by its own all-reduce, but not under ``no_sync``, nor for parameters it does
    not reduce, nor in loops without DDP.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    if distributed.get_world_size() > 1:
        distributed.all_reduce(found, op=distributed.ReduceOp.MAX)
