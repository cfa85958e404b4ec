"""What torch's autograd keeps for the backward pass, by saved-tensor hooks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import torch

# Private in name; torch's own tools are built on it, and nothing public shows the operators below
# autograd. Without it a copy of a weight could not be told from an activation.
from torch.utils._python_dispatch import TorchDispatchMode

from keras_mp import _keras_internals
from keras_mp.numerics.memory import Kept
from keras_mp.policies.structure import Place

# Operators that put numbers elsewhere, in another dtype or order, and leave them what they are.
_COPIES = ("_to_copy", "clone", "cat", "stack", "copy", "contiguous")


def kept_blocks(model: Any, inputs: Any, places: list[Place], mode: dict[str, bool]) -> list[Kept]:
    """Each storage that autograd keeps, once. See ``saved_bytes``."""
    mapping = [(variable, variable.value) for variable in model.variables]
    weights = {tensor.untyped_storage().data_ptr() for _, tensor in mapping}
    count = _Count(weights, places)
    with (
        torch.enable_grad(),
        _keras_internals.wrapped_calls([place.layer for place in places], count.inside),
        _Copies(count),
        torch.autograd.graph.saved_tensors_hooks(count.keep, lambda tensor: tensor),
        # Not ``stateless_call``: that leaves out what Keras does before a model's own ``call``.
        keras.StatelessScope(state_mapping=mapping),
    ):
        outputs = model(inputs, **mode)
    del outputs  # lived until here: what autograd lets go of must not be counted twice
    return [
        Kept(layer, dtype, nbytes, address in count.copies)
        for address, (layer, dtype, nbytes) in count.kept.items()
    ]


class _Count:
    """Storages by address. Every one that is noted stays alive, so no address comes twice."""

    def __init__(self, weights: set[int], places: list[Place]):
        self.weights = weights
        self.copies: dict[int, torch.Tensor] = {}
        self.kept: dict[int, tuple[str, str, int]] = {}
        self._alive: list[torch.Tensor] = []
        self._paths = {id(place.layer): place.path for place in places}
        self._within = [""]

    @contextmanager
    def inside(self, layer: Any) -> Iterator[None]:
        self._within.append(self._paths[id(layer)])
        try:
            yield
        finally:
            self._within.pop()

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        address = _address(tensor)
        if address and address not in self.weights and address not in self.kept:
            dtype = keras.backend.standardize_dtype(tensor.dtype)
            nbytes = tensor.untyped_storage().nbytes()
            self.kept[address] = (self._within[-1], dtype, nbytes)
            self._alive.append(tensor)
        return tensor

    def of_weights(self, tensors: list[torch.Tensor]) -> bool:
        return all(_address(t) in self.weights or _address(t) in self.copies for t in tensors)


class _Copies(TorchDispatchMode):
    """Notes which storages are copies of weights."""

    def __init__(self, count: _Count):
        super().__init__()
        self._count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _COPIES and isinstance(result, torch.Tensor):
            taken = [t for t in keras.tree.flatten(args) if isinstance(t, torch.Tensor)]
            if taken and self._count.of_weights(taken):
                self._count.copies[_address(result)] = result
        return result


def _address(tensor: torch.Tensor) -> int:
    """Of the storage; 0 for an empty one, or one that has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0
