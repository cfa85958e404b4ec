"""What is said aloud: each thing once, with what to do about it."""

import math
import warnings
from collections.abc import Callable

from keras_mp.scaling.attribution import INPUTS
from keras_mp.scaling.state import ScaleConfig, exhausted

# A fresh scale of 2**15 that meets one bad layer needs about 15 skips to find its level; 20 in a
# row are more than finding the level takes.
LONG_RUN = 20


class LossScaleExhaustedError(RuntimeError):
    """Every step overflows although the loss scale cannot fall any further."""


class Teller:
    """Says when nothing trains: once a run of skips, and again only after a clean step.

    Args:
        config: With ``on_exhausted``. layer: Gives the layer to blame, as far as is known.
    """

    def __init__(self, config: ScaleConfig, layer: Callable[[], str | None]):
        self.config = config
        self.layer = layer
        self.said: set[str] = set()

    def check(
        self,
        scale: float,
        consecutive_skips: int,
        hysteresis_left: int = 0,
        config: ScaleConfig | None = None,
    ) -> None:
        """Look at the state after a step.

        Args:
            scale: The loss scale the step used. consecutive_skips: The run, that step included.
            hysteresis_left: After that step.
            config: The settings in force, where they differ from the optimizer's.

        Raises:
            LossScaleExhaustedError: With ``on_exhausted="raise"``.
        """
        if consecutive_skips == 0:
            self.said.clear()
            return
        config = config or self.config
        if exhausted(scale, consecutive_skips, config, hysteresis_left):
            self._exhausted(scale, consecutive_skips, config)
        elif consecutive_skips >= LONG_RUN:
            self._say(
                "run",
                f"{_skipped(consecutive_skips)}; the loss scale is {_power(scale)}. "
                f"{self._blame()}",
            )

    def _exhausted(self, scale: float, run: int, config: ScaleConfig) -> None:
        if config.on_exhausted == "continue":
            return
        data = "Look for inputs or labels that are not finite, lower the learning rate"
        if config.min_scale == config.max_scale == 1:  # in force: scaling serves nothing
            why = "No layer computes in float16, so no loss scale helps."
            advice = f"{data}."
        else:
            where = "at its floor of" if config.dynamic else "static at"
            why = f"The loss scale is {where} {_power(scale)}."
            smaller = "" if config.dynamic else ', try a smaller scale or scale="dynamic"'
            advice = f"{data}{smaller}, keep that layer in float32, or use mixed_bfloat16."
        message = f"Nothing trains: {_skipped(run)}. {why} {self._blame()} {advice}"
        if config.on_exhausted == "raise":
            raise LossScaleExhaustedError(message)
        self._say("exhausted", message)

    def _blame(self) -> str:
        layer = self.layer()
        if layer == INPUTS:
            return "The batch itself was not finite."
        return f"The layer to blame is {layer!r}." if layer else "No layer could be named."

    def _say(self, what: str, message: str) -> None:
        if what not in self.said:
            self.said.add(what)
            warnings.warn(message, RuntimeWarning, stacklevel=2)


def _skipped(run: int) -> str:
    if run == 1:
        return "a step had gradients that were not finite and was skipped"
    return f"{run} steps in a row had gradients that were not finite and were skipped"


def _power(scale: float) -> str:
    exponent = round(math.log2(scale))
    return f"2**{exponent}" if scale == 2.0**exponent else f"{scale:g}"
