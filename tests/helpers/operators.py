"""Count what a piece of torch code asks of a device: operators, host reads, copies of scalars."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# A host read of one number; a Python number made into a tensor (on an accelerator, a copy to it).
READS = ("aten._local_scalar_dense.default",)
SCALAR_COPIES = ("aten.lift_fresh.default",)


@dataclass(frozen=True)
class Count:
    """What ran: every operator below autograd, views too; by name."""

    by_name: Counter

    @property
    def operators(self) -> int:
        """All but the scalar copies, which are counted apart."""
        return sum(self.by_name.values()) - self.scalar_copies

    @property
    def reads(self) -> int:
        return sum(self.by_name[name] for name in READS)

    @property
    def scalar_copies(self) -> int:
        return sum(self.by_name[name] for name in SCALAR_COPIES)


class _Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.by_name = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.by_name[str(function)] += 1
        return function(*args, **(kwargs or {}))


def count(work) -> Count:
    """Run ``work()`` and count."""
    with torch.no_grad(), _Counting() as mode:
        work()
    return Count(mode.by_name)
