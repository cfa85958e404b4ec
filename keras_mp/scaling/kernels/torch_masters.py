"""torch: masters renewed only where somebody wrote to them or to their variable, with no read."""

from collections.abc import Callable
from typing import Any

import torch


class TorchMasters:
    """The in-place half of ``masters.Masters`` on torch.

    A tensor counts the writes to it, on the host. Who wrote nothing since the last step need not be
    compared, and that is everybody in nearly all steps.

    Args:
        pairs: (variable, master), Keras variables.
        renewed: ``masters.renewed``.
    """

    def __init__(self, pairs: list[tuple[Any, Any]], renewed: Callable[[Any, Any], Any]):
        self.pairs, self.renewed = pairs, renewed
        self.masters = {id(master) for _, master in pairs}
        self.seen: list[tuple[Any, ...]] = [()] * len(pairs)
        # Float32 copies of the gradients, kept on a CPU, where fresh memory costs the most.
        self.scratch: dict[int, Any] = {}

    def gradients(self, grads: list[Any], targets: list[Any]) -> list[Any]:
        """The gradients in float32 where the target is a master, by one operator."""
        out, halves, copies = list(grads), [], []
        for i, (grad, target) in enumerate(zip(grads, targets, strict=True)):
            if grad is None or grad.dtype == torch.float32 or id(target) not in self.masters:
                continue
            if grad.layout != torch.strided or torch.compiler.is_compiling():
                out[i] = grad.float()
                continue
            copy = self.scratch.get(id(target))
            if copy is None or copy.device != grad.device:
                copy = torch.empty_like(target.value)
                if grad.device.type == "cpu":
                    self.scratch[id(target)] = copy
            out[i] = copy
            halves.append(grad)
            copies.append(copy)
        if copies:
            with torch.no_grad():
                torch._foreach_copy_(copies, halves)
        return out

    def before(self) -> None:
        compiling = torch.compiler.is_compiling()
        with torch.no_grad():
            for i, (variable, master) in enumerate(self.pairs):
                value, kept = variable.value, master.value
                if compiling or self.seen[i] != _writes(value, kept):
                    kept.copy_(self.renewed(kept, value))

    def after(self) -> None:
        values, masters = self._tensors()
        with torch.no_grad():
            torch._foreach_copy_(values, masters)
        if not torch.compiler.is_compiling():
            self.seen = list(map(_writes, values, masters))

    def reset(self) -> None:
        values, masters = self._tensors()
        with torch.no_grad():
            torch._foreach_copy_(masters, values)

    def _tensors(self) -> tuple[list[Any], list[Any]]:
        # Asked for anew each time: a variable may get another tensor (a move to another device).
        return [v.value for v, _ in self.pairs], [m.value for _, m in self.pairs]


def _writes(value: Any, master: Any) -> tuple[Any, ...]:
    return id(value), value._version, id(master), master._version
