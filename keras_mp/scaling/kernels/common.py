"""What all kernels share: when a step is an update, and apply without side effects."""

from typing import Any

import numpy as np
from keras import ops

from keras_mp.scaling.device_state import Values, advance

OWN = 4  # the scaler's variables come first in optimizer.variables


class Kernel:
    """The base of a backend's kernel.

    A subclass gives ``apply``, ``stateless_apply``, ``allocate_ring`` and ``read_ring``.

    Args:
        optimizer: The built LossScaleOptimizer. Kernels keep no list of its variables that Keras
            could track.
    """

    def __init__(self, optimizer: Any):
        self.optimizer = optimizer
        self.inner = optimizer.inner_optimizer
        self.state = optimizer._state
        self.config = optimizer.config
        # Per variable: overflows, first and last step at which its gradient was not finite.
        self.overflows = np.zeros((3, len(optimizer._trainable_variables)), np.int64)
        self.loss: Any = None  # the unscaled loss of the step under way, where it was seen

    def scale_loss(self, loss: Any) -> Any:
        self.loss = loss
        return ops.multiply(loss, ops.cast(self.state.scale, loss.dtype))

    def apply(self, grads: list[Any], variables: list[Any]) -> None:
        raise NotImplementedError

    def stateless_apply(
        self, optimizer_values: list[Any], grads: list[Any], trainable_values: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        raise NotImplementedError

    def allocate_ring(self, rows: int) -> None:
        """Keep the last ``rows`` steps on the device from now on."""
        raise NotImplementedError

    def read_ring(self) -> np.ndarray | None:
        """The ring as it stands: float32, [rows, columns]. One copy from the device."""
        raise NotImplementedError

    def overflow_counts(self) -> np.ndarray:
        """[3, variables]: how often, first step, last step a gradient was not finite."""
        return self.overflows

    def is_update(self, iterations: Any) -> Any:
        """Whether a clean step now updates the weights, or only accumulates a micro-batch."""
        steps = self.inner.gradient_accumulation_steps
        return True if not steps else ops.equal((iterations + 1) % steps, 0)

    def advance(self, values: Values, finite: Any, updated: Any) -> Values:
        return advance(values, finite, updated, self.config)
