"""Variables that a skipped step must leave as they were, on torch: three operators, no host read.

A copy holds the values after the last good step. After the next, live values or the copy are
selected into both. A stale copy would bring old values back after ``load_weights``: before each
forward pass the version counters tell whether somebody else wrote, and the copy is taken anew.
"""

from collections.abc import Sequence
from typing import Any

import torch

from keras_mp import _keras_internals


class TorchGuard:
    """Args: variables: Keras variables, of floating dtype, on one device."""

    def __init__(self, variables: Sequence[Any]):
        self.tensors = [_keras_internals.raw_tensor(v) for v in variables]
        self.versions: tuple[tuple[int, int], ...] = ()
        if self.tensors:
            self._take()

    def _take(self) -> None:
        """Begin a copy of what the variables are now."""
        self.dtype = torch.float32
        for tensor in self.tensors:
            self.dtype = torch.promote_types(self.dtype, tensor.dtype)
            tensor.data = tensor.data.contiguous()  # or the views below would be none
        self.flat = [t.detach().reshape(-1) for t in self.tensors]
        self.saved = torch.cat([t.to(self.dtype) for t in self.flat])
        self.views = list(torch.split(self.saved, [t.numel() for t in self.flat]))
        self._settled()

    def refresh(self) -> None:
        """Take the copy anew, if somebody wrote to the variables since the last step."""
        now = self._current()
        if self.versions == now:
            return
        with torch.no_grad():
            if [place for _, place in now] != [place for _, place in self.versions]:
                self._take()  # stored anew (Module.half(), .to())
            else:
                torch.cat([t.to(self.dtype) for t in self.flat], out=self.saved)
                self._settled()

    def passed(self) -> None:
        """A forward pass has ended. What it wrote belongs to the step: another pass before the step
        (a second batch, another input) must not take it for a change from outside."""
        self._settled()

    def _gathered(self) -> Any:
        # From the variables' own tensors: beside them no view of them may enter a compiled graph.
        return torch.cat([t.reshape(-1).to(self.dtype) for t in self.tensors])

    def _settle_compiled(self, ok: Any) -> None:
        self.saved.copy_(torch.where(ok, self._gathered(), self.saved))
        start = 0
        for tensor in self.tensors:
            stop = start + tensor.numel()
            tensor.copy_(self.saved[start:stop].reshape(tensor.shape))
            start = stop

    def settle(self, ok: Any) -> None:
        """After a step: keep the live values where ``ok`` (bool, shape ()), else the copy."""
        if not self.tensors:
            return
        if torch.compiler.is_compiling():
            self._settle_compiled(ok)
            return
        torch.where(ok, torch.cat(self.flat).to(self.dtype), self.saved, out=self.saved)
        torch._foreach_copy_(self.flat, self.views)
        self._settled()

    def _current(self) -> tuple[tuple[int, int], ...]:
        return tuple((t._version, t.data_ptr()) for t in self.tensors)

    def _settled(self) -> None:
        self.versions = self._current()


class TorchLossGuard(TorchGuard):
    """The sums and counts of the mean losses, which losses that are not finite do not enter.

    A count of 0 is shown as NaN: an epoch without any finite loss shows NaN, and not the 0 of an
    empty mean. Before a forward pass it becomes 0 again, for the loss to be added to.

    Args: trackers: (sum, count) of each mean.
    """

    def __init__(self, trackers: Sequence[tuple[Any, Any]]):
        super().__init__([v for part in zip(*trackers, strict=True) for v in part])
        self.counts = self.tensors[len(trackers) :]

    def begin(self) -> None:
        """A forward pass begins that trains."""
        if not self.tensors:
            return
        if self.versions != self._current():
            self.refresh()
            saved = self.saved[-len(self.counts) :]
            saved.masked_fill_(saved == 0, float("nan"))
        for count in self.counts:
            count.nan_to_num_(0.0)
