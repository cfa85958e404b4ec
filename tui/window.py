"""What part of a job's charts is looked at, and how. Pure; one for all charts of a screen."""

from dataclasses import dataclass, replace
from typing import Literal

Span = tuple[float, float]
By = Literal["step", "time"]

# A view of fewer points than this says nothing more.
SMALLEST_SHARE = 1e-6


@dataclass(frozen=True)
class Window:
    """A view on the charts of a job.

    Attributes:
        by: What runs along the base line: steps, or seconds since the job began.
        span: Range of it that is shown; None is everything, growing as the job goes on.
        cursor: Position that is read; None reads the last value.
        log: A logarithmic value axis: yes, no, or (None) as the values suggest.
        trend: Draw the trend of a noisy line over its points.
    """

    by: By = "step"
    span: Span | None = None
    cursor: float | None = None
    log: bool | None = None
    trend: bool = True

    def zoom(self, factor: float, whole: Span) -> "Window":
        """Show ``factor`` times as much, around the cursor (or the middle)."""
        start, stop = self.span or whole
        centre = self.cursor if self.cursor is not None else (start + stop) / 2
        width = (stop - start) * factor
        if width >= whole[1] - whole[0]:
            return replace(self, span=None)
        width = max(width, (whole[1] - whole[0]) * SMALLEST_SHARE)
        share = (centre - start) / (stop - start)
        return replace(self, span=_inside(centre - share * width, width, whole))

    def pan(self, share: float, whole: Span) -> "Window":
        """Move on by a share of what is shown (negative: back)."""
        if self.span is None:
            return self
        start, stop = self.span
        width = stop - start
        return replace(self, span=_inside(start + share * width, width, whole))

    def move_cursor(self, share: float, whole: Span) -> "Window":
        """Move the cursor by a share of what is shown; the view follows at its edges."""
        start, stop = self.span or whole
        at = (self.cursor if self.cursor is not None else stop) + share * (stop - start)
        at = min(max(at, whole[0]), whole[1])
        moved = replace(self, cursor=at)
        if self.span is not None and not start <= at <= stop:
            width = stop - start
            return replace(moved, span=_inside(at - width / 2, width, whole))
        return moved

    def turned(self) -> "Window":
        """By time instead of by step, or back. Positions have no meaning on the other one."""
        return replace(self, by="time" if self.by == "step" else "step", span=None, cursor=None)

    def next_log(self) -> "Window":
        order = (None, True, False)
        return replace(self, log=order[(order.index(self.log) + 1) % 3])


def _inside(start: float, width: float, whole: Span) -> Span:
    start = min(max(start, whole[0]), whole[1] - width)
    return start, start + width
