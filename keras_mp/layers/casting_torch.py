"""Casts on torch: each made once a call, none kept for the backward pass.

A weight is there anyway, and so is what another layer gave; a copy of it in another dtype can be
made again when the gradient needs it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import torch
from torch.autograd import forward_ad

from keras_mp import _keras_internals

HALF = ("float16", "bfloat16")


class Copy:
    """A tensor of which a copy is used: what stands for the copy until the backward pass asks."""

    def __init__(self, source: torch.Tensor, what: str):
        self._what = what
        self._version = _version(source)
        self._made: torch.Tensor | None = None
        self._to_come = 0

    def source(self) -> torch.Tensor:
        """The tensor itself, in the backward pass."""
        raise NotImplementedError

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def ticket(self, view: torch.Tensor) -> "_Ticket":
        """Stands for a view of the copy until the backward pass asks for it."""
        self._to_come += 1
        return _Ticket(self, view.size(), view.stride(), view.storage_offset())

    def again(self) -> torch.Tensor:
        """The copy, made again; the same one until every ticket was shown."""
        source = self.source()
        if self._version != _version(source):
            raise RuntimeError(
                "A tensor was changed between a layer's call and the backward pass, which needs it "
                "as it was. Expected the optimizer step after the backward pass. "
                f"Received: {self._what}"
            )
        with torch.no_grad():
            made = self.copy(source) if self._made is None else self._made
        self._to_come -= 1
        self._made = made if self._to_come > 0 else None
        return made


def _version(tensor: torch.Tensor) -> int | None:
    """Counts changes of a tensor; None for one of ``torch.inference_mode``, which does not."""
    return None if tensor.is_inference() else tensor._version


class Cast(Copy):
    """A float32 weight and its half-precision copy.

    Attributes:
        variable: The Keras variable.
        weight: Its tensor as it is stored.
        order: The weight's axes from the one that varies slowest in the copy's memory to the
            fastest, the last ones first: (2, 0, 1). None for the weight's own order.
    """

    def __init__(self, variable: Any, dtype: torch.dtype, order: Sequence[int] | None = None):
        self.variable = variable
        self.weight = _keras_internals.stored_value(variable)
        super().__init__(self.weight, f"variable={variable.path}")
        self.order = order
        self._dtype = dtype

    def make(self) -> torch.Tensor:
        """The copy, differentiable in the weight."""
        if self.order is None:
            return self.weight.to(self._dtype)
        return _Turned.apply(self.weight, self._dtype, self.order[0])

    def source(self) -> torch.Tensor:
        return self.weight

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        return (
            source.to(self._dtype)
            if self.order is None
            else _turned(source, self._dtype, self.order[0])
        )


def _turned(tensor: torch.Tensor, dtype: torch.dtype, first: int) -> torch.Tensor:
    """A cast copy in whose memory the axes from ``first`` on come first. Its shape is the tensor's.

    A cast and then a transposed copy of a matrix, for which torch has a loop over blocks: at once,
    as a copy of many axes, it takes four times as long.
    """
    shape = tensor.shape
    matrix = tensor.to(dtype).reshape(math.prod(shape[:first]), math.prod(shape[first:]))
    turned = matrix.t().contiguous().view(*shape[first:], *shape[:first])
    rest = tensor.ndim - first
    return turned.permute(*range(rest, tensor.ndim), *range(rest))


class _Turned(torch.autograd.Function):
    """``_turned``, whose gradient is turned back likewise, before it is cast."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dtype: torch.dtype, first: int) -> torch.Tensor:
        ctx.dtype, ctx.first = tensor.dtype, first
        return _turned(tensor, dtype, first)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        shape, first = gradient.shape, ctx.first
        turned = gradient.permute(*range(first, gradient.ndim), *range(first))
        matrix = turned.reshape(math.prod(shape[first:]), math.prod(shape[:first]))
        return matrix.t().contiguous().view(shape).to(ctx.dtype), None, None


class InputCast(Copy):
    """An input in half precision of which a float32 layer uses a copy.

    Whoever made the input mostly keeps it too, so it costs nothing more.
    """

    def __init__(self, inputs: torch.Tensor):
        super().__init__(inputs, "the input of a layer")
        self._hooks = _outer_hooks()
        self._kept: Any = inputs.detach()
        self._packed = False

    def ticket(self, view: torch.Tensor) -> "_Ticket":
        if self._hooks is not None and not self._packed:
            # As autograd would keep it, so that the hooks around see it.
            self._kept, self._packed = self._hooks[0](self._kept), True
        return super().ticket(view)

    def source(self) -> torch.Tensor:
        return self._kept if self._hooks is None else self._hooks[1](self._kept)

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        return source.to(torch.float32)


class _Ticket:
    def __init__(self, cast: Copy, size: Any, stride: Any, offset: int):
        self._cast, self._size, self._stride, self._offset = cast, size, stride, offset

    def redeem(self) -> torch.Tensor:
        return self._cast.again().as_strided(self._size, self._stride, self._offset)


def casts_of(
    layer: Any, variables: Sequence[Any], orders: Callable[[Any], Any] | None = None
) -> list[Cast]:
    """A ``Cast`` for each float32 variable that this layer computes with in half precision.

    Args:
        layer: Its compute dtype counts.
        variables: Of the layer.
        orders: Variable -> the ``order`` of its cast; None for its own.
    """
    if layer.compute_dtype not in HALF or _keras_internals.autocast_dtype() != layer.compute_dtype:
        return []
    dtype = getattr(torch, layer.compute_dtype)
    return [
        Cast(v, dtype, None if orders is None else orders(v))
        for v in variables
        if _keras_internals.follows_autocast(v)
        and _keras_internals.stored_value(v).dtype == torch.float32
    ]


@contextmanager
def casts_not_kept(made: Sequence[tuple[Copy, torch.Tensor]]) -> Iterator[None]:
    """Inside, autograd keeps none of these copies; the backward pass makes each again once.

    Other saved-tensor hooks (checkpointing, offloading, counting) see all other tensors, as they
    would without this.
    """
    casts = {copy.untyped_storage().data_ptr(): cast for cast, copy in made}
    outer = _outer_hooks()

    def pack(tensor: torch.Tensor) -> Any:
        cast = casts.get(tensor.untyped_storage().data_ptr())
        if cast is not None:
            return cast.ticket(tensor)
        return tensor if outer is None else outer[0](tensor)

    def unpack(packed: Any) -> torch.Tensor:
        if isinstance(packed, _Ticket):
            return packed.redeem()
        return packed if outer is None else outer[1](packed)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


@contextmanager
def using(made: Sequence[tuple[Cast, torch.Tensor]], others: Sequence[Any] = ()) -> Iterator[Any]:
    """Inside, these variables have these values. Gives the scope; ``others`` keep theirs.

    The scope would hide one around it, so every variable that the block reads must be named.
    """
    scope = keras.StatelessScope()
    for variable in others:
        scope.add_update((variable, _keras_internals.stored_value(variable)))
    for cast, value in made:
        # Not by the constructor: that casts to the variable's dtype.
        scope.add_update((cast.variable, value))
    with scope:
        yield scope


def can_remake() -> bool:
    """Whether casts can be left out of what autograd keeps, here and now.

    Not inside torch's compiler, which decides by itself what to keep, nor inside a transform; and
    not without the private function that tells the hooks around ours.
    """
    return not torch.compiler.is_compiling() and _TOP is not None and not is_transformed()


def is_transformed() -> bool:
    """Whether ``torch.func`` or forward-mode differentiation is at work, here and now.

    Neither can look into an autograd function without rules for both, nor has its tensors' memory.
    """
    if torch.compiler.is_compiling():
        return False
    return forward_ad._current_level >= 0 or _IN_TRANSFORM()


# Private: torch says it nowhere else. Without them layers of ours raise inside a transform.
_IN_TRANSFORM = getattr(torch._C, "_are_functorch_transforms_active", bool)


# Private: torch lets one pair of hooks act at a time and has no public way to ask for the one that
# ours would hide. Without it casts are kept, as Keras keeps them.
_TOP = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def _outer_hooks() -> tuple[Callable, Callable] | None:
    return None if _TOP is None else _TOP(False)
