"""What all kernels share: when a step is an update, and apply without side effects."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp.scaling.device_state import COUNTERS, Values, advance
from keras_mp.scaling.masters import HALF
from keras_mp.scaling.ring import StepRow
from keras_mp.scaling.state import ScaleState
from keras_mp.scaling.told import Teller


def keep_overwrites(unscaled: list[Any], grads: list[Any], variables: list[Any]) -> list[Any]:
    """Unscaled gradients, but those that become their variable's value (float8's scales) as given.

    Such a gradient is no derivative of the loss and was never scaled.
    """
    if not any(getattr(v, "overwrite_with_gradient", False) for v in variables):
        return unscaled
    return [
        grad if getattr(variable, "overwrite_with_gradient", False) else quotient
        for quotient, grad, variable in zip(unscaled, grads, variables, strict=True)
    ]


def half_dtype(variable: Any) -> str | None:
    """The dtype of a variable in half precision; None for any other."""
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return dtype if dtype in HALF else None


OWN = 4  # the scaler's variables come first in optimizer.variables


class Kernel:
    """The base of a backend's kernel.

    A subclass gives ``is_tracing``, ``apply``, ``stateless_apply``, ``allocate_ring`` and
    ``read_ring``.

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
        self.last_overflow: StepRow | None = None
        self.places: list[str] = []  # layers that a forward pass can overflow in
        self.run_before = 0  # consecutive skips up to the last row that was counted
        self.teller = Teller(self.config, self._layer_to_blame)

    @property
    def carried(self) -> list[Any]:
        """Variables that must travel in ``optimizer.variables`` though no checkpoint holds them."""
        return []

    def is_tracing(self) -> bool:
        """Whether what is called now is being traced or compiled, and not run."""
        raise NotImplementedError

    def current_scale(self) -> Any:
        """The loss scale: a float; in what is being traced, a tensor."""
        scale = self.state.scale
        if self.is_tracing():
            return ops.convert_to_tensor(scale)
        return float(ops.convert_to_numpy(scale))

    def current_state(self) -> ScaleState:
        """The state on the host; in what is being traced, one of tensors."""
        if not self.is_tracing():
            return self.state.read()
        scale, good_steps, counters, _ = self.state.values()
        return ScaleState(scale, good_steps, *(counters[i] for i in range(COUNTERS)))

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

    def can_bind(self) -> bool:
        """Whether values can be read now. Else the kernel has the optimizer bind (and take what was
        loaded before it was built) later."""
        return True

    def bind(self, binding: Any, protected: list[Any]) -> None:
        """From now on spare a model's state on skipped steps.

        Args:
            binding: ``Binding``: gives the loss tracker's variables.
            protected: Variables that a skipped step must leave as they were.
        """
        raise NotImplementedError

    def refresh(self) -> None:
        """Take the protected variables as they are now as what a skipped step goes back to."""

    def look(self) -> None:
        """Let the host see what happened since the last look, and say what must be said."""

    def measure_headroom(self, every: int) -> None:
        """From now on measure each variable's largest scaled gradient, every so many steps."""
        raise NotImplementedError

    def largest_gradients(self) -> np.ndarray | None:
        """[variables]: largest magnitude of each scaled gradient when last measured, or None."""
        return None

    def overflow_counts(self) -> np.ndarray:
        """[3, variables]: how often, first step, last step a gradient was not finite."""
        return self.overflows

    def part_from_averages(self, variables: list[Any]) -> None:
        """The variables were given the values of their averages; what is theirs must be their own.

        Args:
            variables: Those that the inner optimizer updates.
        """

    def distances(self) -> dict[int, int]:
        """Operations between each variable (by index) and the loss, where no loss' graph told."""
        return {}

    def place_of(self, layer: str) -> int:
        """Index of a layer in ``places``; it never changes, whoever else is added."""
        if layer not in self.places:
            self.places.append(layer)
        return self.places.index(layer)

    def note_overflow(
        self,
        step: int,
        nonfinite: tuple[int, ...],
        loss_finite: bool | None,
        place: int | None = None,
    ) -> None:
        """Count one skipped step."""
        for i in nonfinite:
            first = self.overflows[1, i] or step
            self.overflows[:, i] = self.overflows[0, i] + 1, first, step
        self.last_overflow = StepRow(
            step=step,
            scale=float("nan"),
            next_scale=float("nan"),
            finite=False,
            loss=None,
            loss_finite=loss_finite,
            good_steps=0,
            grad_norm=None,
            nonfinite=nonfinite,
            place=place,
        )

    def _layer_to_blame(self) -> str | None:
        row = self.last_overflow
        return None if row is None else self.optimizer.describe(row).layer

    def is_update(self, iterations: Any) -> Any:
        """Whether a clean step now updates the weights, or only accumulates a micro-batch."""
        steps = self.inner.gradient_accumulation_steps
        return True if not steps else ops.equal((iterations + 1) % steps, 0)

    def advance(self, values: Values, finite: Any, updated: Any) -> Values:
        return advance(values, finite, updated, self.config)
