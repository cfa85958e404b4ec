"""What the loss' autograd graph tells: whether float16 occurs, and how far each variable is."""

from collections import deque
from typing import Any

import torch


def inspect_graph(loss: Any, parameters: list[Any]) -> tuple[bool | None, dict[int, int]]:
    """Walk from the loss to the parameters, once.

    Args:
        loss: Scalar tensor with a graph. parameters: The trainable tensors.

    Returns:
        (whether an operation computes in float16, distances): None where torch does not tell the
        dtypes; the operations between each parameter (by position) and the loss, the fewest way.
    """
    index = {id(p): i for i, p in enumerate(parameters)}
    half: bool | None = False
    distances: dict[int, int] = {}
    queue, seen = deque([(loss.grad_fn, 0)]), {loss.grad_fn}
    while queue:
        node, distance = queue.popleft()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            if id(leaf) in index:
                distances.setdefault(index[id(leaf)], distance)
            continue
        dtypes = _output_dtypes(node)
        if dtypes is None:
            half = None
        elif half is False and torch.float16 in dtypes:
            half = True
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                queue.append((after, distance + 1))
    return half, distances


def _output_dtypes(node: Any) -> set[Any] | None:
    """Dtypes of what an autograd node's operation gave. torch keeps them in a private attribute."""
    try:
        return {meta.dtype for meta in node._input_metadata}
    except (AttributeError, RuntimeError):
        return None
