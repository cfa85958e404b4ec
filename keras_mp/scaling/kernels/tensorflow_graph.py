"""tensorflow: what a traced graph tells: XLA or not, which dtypes occur, what lies how far."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

# Operations that run a function, whose inside the walk does not see.
_CALLS = {
    "PartitionedCall",
    "StatefulPartitionedCall",
    "While",
    "StatelessWhile",
    "If",
    "StatelessIf",
    "Case",
    "StatelessCase",
    "MapDefun",
}


def in_xla() -> bool:
    """Whether the code is being traced for XLA (``jit_compile=True``), where Python cannot be
    called from the graph and fused operators are taken apart.

    TensorFlow has no public way to ask; it keeps the answer in a private attribute of the graph. If
    that should change, everything is taken for XLA: right everywhere, slower outside.
    """
    if tf.executing_eagerly():
        return False
    try:
        return any(_is_xla(g._get_control_flow_context()) for g in _graphs())
    except AttributeError:
        return True


def _is_xla(context: Any) -> bool:
    while context is not None:
        if context.IsXLAContext():
            return True
        context = context.outer_context
    return False


def _graphs() -> Iterable[Any]:
    """The graph being traced, and those around it."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


def belongs_here(tensor: Any) -> bool:
    """Whether a tensor that was seen before can be used in what is running or traced now.

    A tensor of another graph cannot, and an eager one would become a constant of this graph.
    """
    if tf.executing_eagerly():
        return not tf.is_symbolic_tensor(tensor)
    return tf.is_symbolic_tensor(tensor) and any(tensor.graph is g for g in _graphs())


@dataclass(frozen=True)
class Seen:
    """What the graph of a loss told.

    Attributes:
        half: Whether an operation computes in float16; None where no variable has a part.
        distances: The operations between each variable (by position) and the loss, the longest way
            (see ``attribution.attribute``).
        ops: The operations that it is computed with.
    """

    half: bool | None
    distances: dict[int, int]
    ops: set[Any]


def inspect_graph(loss: Any, variables: Sequence[Any]) -> Seen:
    """Walk from the loss to the variables, once a trace.

    Args:
        loss: Symbolic tensor. variables: The trainable variables (``tf.Variable`` or Keras').
    """
    index = {id(inside): i for i, inside in captured(loss.graph, variables).items()}
    half, hidden = loss.dtype == tf.float16, False
    queue, seen = deque([loss.op]), {loss.op}
    while queue:
        op = queue.popleft()
        hidden = hidden or op.type in _CALLS
        for tensor in op.inputs:
            half = half or tensor.dtype == tf.float16
            if id(tensor) not in index and tensor.op not in seen:
                seen.add(tensor.op)
                queue.append(tensor.op)
    distances = _longest_ways(loss.op, seen, index)
    if hidden and not half:
        half = _functions_compute_in_half(loss.graph)
    # A loss that no variable has a part in is none that is trained on.
    return Seen(half if half or distances else None, distances, seen)


def _longest_ways(loss: Any, ops: set[Any], index: dict[int, int]) -> dict[int, int]:
    """Args: loss: The last of ``ops``. index: Position of each variable, by its tensor's id."""
    distances: dict[int, int] = {}
    reached = dict.fromkeys(ops, 0)
    # An operation stands behind those that made its inputs.
    for op in reversed([op for op in loss.graph.get_operations() if op in ops]):
        for tensor in op.inputs:
            if id(tensor) in index:
                i = index[id(tensor)]
                distances[i] = max(distances.get(i, 0), reached[op])
            else:
                reached[tensor.op] = max(reached[tensor.op], reached[op] + 1)
    return distances


def captured(graph: Any, variables: Sequence[Any]) -> dict[int, Any]:
    """The tensor that stands for each variable's resource in a function's graph, by position."""
    inside = {id(outer): inner for outer, inner in getattr(graph, "captures", ())}
    found = {}
    for i, variable in enumerate(variables):
        handle = getattr(variable, "handle", None)
        if id(handle) in inside:
            found[i] = inside[id(handle)]
        elif getattr(handle, "graph", None) is graph:
            found[i] = handle
    return found


def _functions_compute_in_half(graph: Any) -> bool:
    """Whether a function that the graph may call (a loop's body, say) computes in float16."""
    half = tf.float16.as_datatype_enum
    return any(
        attr.type == half or half in attr.list.type
        for function in graph.as_graph_def().library.function
        for node in function.node_def
        for attr in node.attr.values()
    )


def values_before(variables: Sequence[Any]) -> list[Any | None]:
    """What each variable held before the step that is being traced changed it.

    A step that computes a new value from the old one has read it first: that read is the value, at
    no cost, and cannot be stale. None where the first thing that happened to a variable is no read,
    or where it happened inside a function.
    """
    if tf.executing_eagerly():
        return [None] * len(variables)
    graph = tf.compat.v1.get_default_graph()
    inside = captured(graph, variables)
    first: dict[int, Any] = {}
    wanted = {id(tensor) for tensor in inside.values()}
    for op in graph.get_operations():  # in the order in which they were made
        for tensor in op.inputs:
            if id(tensor) in wanted:
                first.setdefault(id(tensor), op)
    found: list[Any | None] = []
    for i in range(len(variables)):
        op = first.get(id(inside.get(i)))
        found.append(op.outputs[0] if op is not None and op.type == "ReadVariableOp" else None)
    return found
