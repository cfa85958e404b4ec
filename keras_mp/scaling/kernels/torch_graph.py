"""What the loss' autograd graph tells: whether float16 occurs, and how far each variable is."""

from typing import Any

import torch


class LossGraphs:
    """Tells an optimizer what the graphs of its losses say. Args: optimizer: The one."""

    def __init__(self, optimizer: Any):
        self.optimizer = optimizer
        self.losses = 0  # scaled so far
        self.half: bool | None = False  # float16 was seen in some graph; None: torch cannot tell
        self.told: bool | None = None

    def see(self, loss: Any) -> None:
        """Look at a loss' graph: at the first few, for several may take turns, then ever less
        often, since a look costs as much as a small step."""
        self.losses += 1
        if self.losses > 4 and self.losses & (self.losses - 1):
            return
        optimizer = self.optimizer
        half, distances = inspect_graph(loss, [v.value for v in optimizer._trainable_variables])
        # A loss without float16 beside one with it: the scale is for both.
        self.half = self.half or half
        # No news while gradients of a loss that was scaled before are on their way here.
        news = None if optimizer._in_flight or self.half == self.told else self.half
        if news is not None:
            self.told = news
        optimizer._saw_graph(news, {**distances, **optimizer._distances})


def inspect_graph(loss: Any, parameters: list[Any]) -> tuple[bool | None, dict[int, int]]:
    """Walk from the loss to the parameters, once.

    Args:
        loss: Scalar tensor with a graph. parameters: The trainable tensors.

    Returns:
        (whether an operation computes in float16, distances): None where torch does not tell the
        dtypes; the operations between each parameter (by position) and the loss, the longest way
        (see ``attribution.attribute``).
    """
    index = {id(p): i for i, p in enumerate(parameters)}
    half: bool | None = False
    users = {loss.grad_fn: 0}  # of each node: how many edges lead to it
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if getattr(node, "variable", None) is None:
            dtypes = _output_dtypes(node)
            if dtypes is None:
                half = None
            elif half is False and torch.float16 in dtypes:
                half = True
        for after, _ in node.next_functions:
            if after is not None:
                if after not in users:
                    stack.append(after)
                users[after] = users.get(after, 0) + 1
    return half, _longest_ways(loss.grad_fn, users, index)


def _longest_ways(loss: Any, users: dict[Any, int], index: dict[int, int]) -> dict[int, int]:
    """Nodes behind those that use them; ``users`` is used up."""
    distances: dict[int, int] = {}
    reached = {loss: 0}
    ready = [loss]
    while ready:
        node = ready.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) in index:
            distances[index[id(leaf)]] = reached[node]
        for after, _ in node.next_functions:
            if after is not None:
                reached[after] = max(reached.get(after, 0), reached[node] + 1)
                users[after] -= 1
                if users[after] == 0:
                    ready.append(after)
    return distances


def _output_dtypes(node: Any) -> set[Any] | None:
    """Dtypes of what an autograd node's operation gave. torch keeps them in a private attribute."""
    try:
        return {meta.dtype for meta in node._input_metadata}
    except (AttributeError, RuntimeError):
        return None
