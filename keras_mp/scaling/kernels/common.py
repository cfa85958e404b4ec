"""What all kernels share: when a step is an update, and apply without side effects."""

from typing import Any

from keras import ops

from keras_mp.scaling.device_state import Values, advance

OWN = 3  # the scaler's variables come first in optimizer.variables: scale, good steps, counters


class Kernel:
    """The base of a backend's kernel.

    Args:
        optimizer: The built LossScaleOptimizer. Kernels keep no list of its variables that Keras
            could track.
    """

    def __init__(self, optimizer: Any):
        self.optimizer = optimizer
        self.inner = optimizer.inner_optimizer
        self.state = optimizer._state
        self.config = optimizer.config

    def scale_loss(self, loss: Any) -> Any:
        return ops.multiply(loss, ops.cast(self.state.scale, loss.dtype))

    def is_update(self, iterations: Any) -> Any:
        """Whether a clean step now updates the weights, or only accumulates a micro-batch."""
        steps = self.inner.gradient_accumulation_steps
        return True if not steps else ops.equal((iterations + 1) % steps, 0)

    def advance(self, values: Values, finite: Any, updated: Any) -> Values:
        return advance(values, finite, updated, self.config)
