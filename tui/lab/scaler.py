"""A dynamic scaler on a recorded run: which steps any preset would have skipped."""

import math
from dataclasses import dataclass, replace

from keras_mp.scaling.presets import PRESETS
from keras_mp.scaling.state import ScaleState, exhausted, update
from tui.lab.recorded import Overflows


@dataclass(frozen=True)
class Taken:
    """One step: the scale it used (log2), whether it overflowed, and the scale after it (log2)."""

    scale: float
    finite: bool
    after: float


class Scaler:
    """Goes through the recording a step at a time.

    Attributes:
        preset: Name in PRESETS. interval: Growth interval; None leaves the preset's.
        state: Before the next step. taken: The steps so far. ended: A preset that raises when its
            scale is exhausted has ended the run.
    """

    def __init__(self, recording: Overflows, preset: str = "dynamic"):
        self.recording = recording
        self.restart(preset)

    def restart(self, preset: str, interval: int | None = None) -> None:
        """Back to the first step, under this preset."""
        self.preset, self.interval = preset, interval
        config = PRESETS[preset]
        self.config = replace(config, growth_interval=interval) if interval else config
        self.state = ScaleState.initial(self.config)
        self.taken: list[Taken] = []
        self.ended = False

    @property
    def over(self) -> bool:
        """Whether there is no next step."""
        return self.ended or len(self.taken) >= len(self.recording.log2_limit)

    def step(self) -> Taken | None:
        """Take a step, as ``keras_mp.scaling`` would; None if the recording is over."""
        if self.over:
            return None
        scale = math.log2(self.state.scale)
        finite = scale <= self.recording.log2_limit[len(self.taken)]
        self.state = update(self.state, finite, self.config)
        done = Taken(scale, finite, math.log2(self.state.scale))
        self.taken.append(done)
        run, left = self.state.consecutive_skips, self.state.hysteresis_left
        run_out = exhausted(2.0**scale, run, self.config, left)
        self.ended = run_out and self.config.on_exhausted == "raise"
        return done

    def go(self, steps: int) -> None:
        for _ in range(steps):
            if self.step() is None:
                return

    def back(self) -> None:
        """Undo the last step."""
        before = max(0, len(self.taken) - 1)
        self.restart(self.preset, self.interval)
        self.go(before)

    def go_to_change(self) -> None:
        """Up to the next step that is skipped or changes the scale."""
        while (done := self.step()) is not None:
            if not done.finite or done.after != done.scale:
                return
