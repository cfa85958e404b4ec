"""How tensors lie in memory: torch's fused operators on a CPU pair them number by number as stored.

An orthogonal kernel is stored transposed, ``module.to(memory_format=torch.channels_last)`` stores
others anew, and neither changes a value. A slot or a gradient that is stored in another way than
its variable would be the update of other weights.
"""

from typing import Any

import torch


def is_dense(tensor: Any) -> bool:
    """Whether the numbers fill their memory, each once: in whichever order."""
    return tensor.stride() == torch.empty_like(tensor, device="meta").stride()


def lay_out_like(tensor: Any, model: Any) -> Any:
    """The tensor, its numbers stored in the order of ``model``'s (of the same shape, dense)."""
    if tensor.stride() != model.stride():
        tensor.data = torch.empty_like(model, dtype=tensor.dtype).copy_(tensor)
    return tensor


class Layout:
    """Where and how parameters are stored. Args: parameters: Dense tensors."""

    def __init__(self, parameters: list[Any]):
        self.parameters = parameters
        self.places = self._places()
        self.strides = [p.stride() for p in parameters]

    def _places(self) -> list[int]:
        return [p.data_ptr() for p in self.parameters]

    def has_changed(self) -> bool:
        """Whether somebody gave a parameter other memory (``module.to``, ``module.half``)."""
        return self._places() != self.places

    def is_that_of(self, tensors: list[Any]) -> bool:
        """Whether tensors, one a parameter, are stored in the same order."""
        return [t.stride() for t in tensors] == self.strides

    def views(self, flat: Any) -> list[Any]:
        """Tensors like the parameters, one behind the other in ``flat``."""
        parts = torch.split(flat, [p.numel() for p in self.parameters])
        pairs = zip(parts, self.parameters, strict=True)
        return [part.as_strided(p.shape, p.stride()) for part, p in pairs]
