"""A recurrent layer's loop over time on torch, with each weight cast once."""

from typing import Any

import keras
import torch

from keras_mp import _keras_internals
from keras_mp.layers.casting_torch import (
    Cast,
    can_remake,
    casts_not_kept,
    casts_of,
    is_transformed,
    using,
)
from keras_mp.layers.recurrent_steps import steps_of


class _OneStep(torch.autograd.Function):
    """Hands a step the cast of a weight, and its gradient to the weight itself in float32.

    So the gradients of all steps are summed in float32. Handed on as the cast, they would be summed
    in half precision, which loses a 16th of the sum within 256 steps.
    """

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, cast: torch.Tensor) -> torch.Tensor:
        ctx.dtype = weight.dtype
        return cast.view_as(cast)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return grad.to(ctx.dtype), None


def loop(
    layer: Any, sequences: Any, initial_state: Any, mask: Any, training: bool
) -> tuple[Any, Any, Any] | None:
    """``RNN.inner_loop`` with each weight of the cell cast once, whatever the length.

    Args:
        layer: Keras' RNN or a subclass of it.
        sequences: Shape (batch, time, ...).
        initial_state: The cell's states, a list.
        mask: Booleans, shape (batch, time); None for no mask.
        training: Handed to the cell where it takes it.

    Returns:
        The last output, all outputs (the last alone unless the layer returns sequences) and the
        last states; None where the cell has no weights to cast, and inside a transform.
    """
    cell = layer.cell
    casts = [] if is_transformed() else _casts(cell)
    if not casts:
        return None
    with torch.no_grad():
        made = [(cast, cast.make()) for cast in casts]
    others = [v for v in cell.variables if all(v is not cast.variable for cast in casts)]
    before = [_keras_internals.stored_value(v) for v in others]
    with using(made, others) as scope:
        if can_remake():
            with casts_not_kept(made):
                result = _steps(layer, sequences, initial_state, mask, training, made, scope)
        else:
            result = _steps(layer, sequences, initial_state, mask, training, made, scope)
        after = [scope.get_current_value(v) for v in others]
    # What the cell assigned, such as the state of a random seed, was held back by the scope.
    for variable, old, new in zip(others, before, after, strict=True):
        if new is not None and new is not old:
            variable.assign(new)
    return result


def _casts(cell: Any) -> list[Cast]:
    if not isinstance(cell, keras.Layer):
        return []
    layers = _keras_internals.flatten_layers(cell)
    if any(layer.compute_dtype != cell.compute_dtype for layer in layers):
        return []  # a variable would be cast to one layer's dtype and used in another's
    return casts_of(cell, cell.variables)


def _steps(
    layer: Any,
    sequences: Any,
    initial_state: Any,
    mask: Any,
    training: bool,
    made: list[tuple[Cast, torch.Tensor]],
    scope: Any,
) -> tuple[Any, Any, Any]:
    _hand_out(made, scope)
    sequences, step = steps_of(layer, sequences, mask is not None, training)
    states = list(initial_state)
    if layer.stateful:  # the layer assigns to them in place
        states = keras.tree.map_structure(torch.clone, states)
    inputs = list(sequences.unbind(1))
    masks = None if mask is None else list(_boolean(mask).unbind(1))
    if layer.go_backwards:
        inputs.reverse()
        if masks is not None:
            masks.reverse()
    outputs: list[Any] = []
    output: Any = None
    for time, step_input in enumerate(inputs):
        _hand_out(made, scope)
        new, new_states = step(step_input, tuple(states))
        if not keras.tree.is_nested(new_states):
            new_states = [new_states]
        if masks is not None:
            keep = masks[time]
            if layer.zero_output_for_mask or output is None:
                new = _where(keep, new, torch.zeros_like(new))
            else:
                new = _where(keep, new, output)
            new_states = keras.tree.map_structure(
                lambda a, b, keep=keep: _where(keep, a, b),
                list(new_states),
                keras.tree.pack_sequence_as(list(new_states), keras.tree.flatten(states)),
            )
        output, states = new, list(new_states)
        if layer.return_sequences:
            outputs.append(output)
    stacked = torch.stack(outputs, 1) if layer.return_sequences else output.unsqueeze(1)
    return output, stacked, states


def _hand_out(made: list[tuple[Cast, torch.Tensor]], scope: Any) -> None:
    """Give the weights, for what comes next, a path of their own for the gradient."""
    for cast, copy in made:
        scope.add_update((cast.variable, _OneStep.apply(cast.weight, copy)))


def _boolean(mask: torch.Tensor) -> torch.Tensor:
    mask = mask.to(torch.bool)
    return mask[..., 0] if mask.ndim == 3 else mask


def _where(keep: torch.Tensor, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Of shape (batch, 1, ...), the mask is broadcast and takes no memory to speak of."""
    keep = keep.reshape(keep.shape + (1,) * (new.ndim - keep.ndim))
    return torch.where(keep, new, old)
