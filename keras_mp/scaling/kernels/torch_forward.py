"""torch: where a forward pass overflowed. The outputs are looked at only after a loss overflowed.

A loss that is not finite makes every gradient so: what is left of the gradients does not tell the
layer. While the kernel watches, a hook on each layer holds its output until the loss is there,
which keeps those that autograd saves anyway and costs no operator.
"""

import weakref
from collections import deque
from itertools import chain
from typing import Any

import torch
from keras import tree

from keras_mp import _keras_internals
from keras_mp.scaling.attribution import INPUTS, path_of

# A loss may need several passes (a GAN's, a triplet's). Of passes that no loss follows no more are
# kept, either.
PASSES = 3


class ForwardWatch:
    """Args: model: A built keras.Model; held by its layers' hooks alone."""

    def __init__(self, model: Any, kernel: Any):
        # One list a forward pass, from one loss to the next.
        self.passes: deque[list[tuple[str, Any]]] = deque(maxlen=PASSES)
        # Weakly: a model's hooks must not keep a replaced optimizer alive.
        watching = weakref.ref(kernel)
        held = weakref.ref(self)
        self.hooks = [
            layer.register_forward_hook(_hook(path_of(layer), held, watching))
            for layer in _keras_internals.flatten_layers(model)
        ]

    def begin(self, inputs: Any) -> None:
        """A forward pass of the whole model begins."""
        self.passes.append([(INPUTS, inputs)])

    def first_overflow(self) -> str | None:
        """Path of the first layer whose output was not finite, in the order of the calls."""
        outputs = chain.from_iterable(self.passes)
        return next((path for path, value in outputs if not _finite(value)), None)

    def forget(self) -> None:
        self.passes.clear()

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.forget()


def _hook(path: str, held: Any, watching: Any) -> Any:
    def after_forward(_layer: Any, _inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        watch, kernel = held(), watching()
        if watch is not None and kernel is not None and kernel.watches_forward:
            if not watch.passes:  # of a part of the model alone
                watch.passes.append([])
            watch.passes[-1].append((path, output))

    return after_forward


def _finite(value: Any) -> bool:
    tensors = (t for t in tree.flatten(value) if torch.is_tensor(t) and t.is_floating_point())
    return all(bool(torch.isfinite(t.detach()).all()) for t in tensors)
