"""jax: what is said aloud, though a compiled step does not speak."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_mp.scaling.device_state import (
    APPLIED,
    CONSECUTIVE_SKIPS,
    HYSTERESIS_LEFT,
    SKIPPED,
    Values,
)
from keras_mp.scaling.kernels.jax_ops import overflowed
from keras_mp.scaling.told import LossScaleExhaustedError


class JaxTold:
    """Args: kernel: The JaxKernel whose steps are spoken of.

    Attributes:
        inside_a_step: Whether a compiled step is calling Python.
    """

    def __init__(self, kernel: Any):
        self.kernel = kernel
        self.inside_a_step = False
        self.ended: tuple[Any, ...] | None = None  # what ended a step, until it is raised as itself
        self.run_told = 0  # the step before the run of skips that was last looked at

    def from_the_device(self, before: Values, after: Values, flags: Any) -> None:
        """End the run from within a compiled step, where the user asked for that.

        Only there: a step that may call the host costs milliseconds more, called or not. Words can
        wait for the next look.
        """
        config = self.kernel.config
        if config.on_exhausted != "raise":
            return
        at_floor = True if not config.dynamic else before.scale <= before.limits[0]
        if config.dynamic and config.hysteresis > 1:
            at_floor = jnp.logical_and(at_floor, after.counters[HYSTERESIS_LEFT] == 0)
        lost = jnp.logical_and(
            at_floor, after.counters[CONSECUTIVE_SKIPS] >= config.exhausted_after
        )
        arguments = before.scale, before.limits, after.counters, flags
        jax.lax.cond(lost, lambda: jax.debug.callback(self._end, *arguments), lambda: None)

    def _end(self, *arguments: Any) -> None:
        """The error leaves the step as one of jax's, with its words."""
        self.inside_a_step = True
        try:
            self.tell(*arguments)
        except LossScaleExhaustedError:
            self.ended = tuple(np.asarray(argument) for argument in arguments)
            raise
        finally:
            self.inside_a_step = False

    def raise_what_ended_a_step(self) -> None:
        """Keras looks at the optimizer when a fit ends, however it does: here it ends with our
        own error."""
        ended, self.ended = self.ended, None
        if ended is not None:
            self.tell(*ended)

    def tell(self, scale: Any, limits: Any, counters: Any, flags: Any = None) -> None:
        """Let the teller see a state. ``flags``, if given, are of its step, a skipped one."""
        counters = np.asarray(counters)
        run, left = int(counters[CONSECUTIVE_SKIPS]), int(counters[HYSTERESIS_LEFT])
        step = int(counters[SKIPPED]) + int(counters[APPLIED])
        teller = self.kernel.teller
        if flags is not None:
            nonfinite = np.flatnonzero(~np.asarray(flags))
            self.kernel.last_overflow = overflowed(step, nonfinite, None)
        if step - run != self.run_told:
            self.run_told = step - run
            teller.check(float(scale), 0)  # a clean step came between
        low, high = (float(x) for x in np.asarray(limits))
        teller.check(float(scale), run, left, self.kernel.config.within(low, high))
