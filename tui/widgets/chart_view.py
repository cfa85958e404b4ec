"""A chart in a widget, that says where it was pointed at."""

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.message import Message

from tui.drawing.chart import Chart, draw
from tui.drawing.raster import BRAILLE, Charset
from tui.drawing.roles import Row
from tui.widgets.lines import Lines


class ChartView(Lines):
    """Draws one chart; ``show`` gives it another."""

    @dataclass
    class Pointed(Message):
        """A click. ``share``: of the base line, 0 at its left end, 1 at its right."""

        share: float

    @dataclass
    class Wheeled(Message):
        """The wheel was turned up (+1) or down (-1) at ``share`` of the base line."""

        share: float
        by: int

    def __init__(self, *, id: str | None = None, classes: str | None = None):
        super().__init__(id=id, classes=classes)
        self.chart: Chart | None = None
        self.charset: Charset = BRAILLE

    def show(self, chart: Chart | None, charset: Charset) -> None:
        self.chart, self.charset = chart, charset
        self.redraw()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        return draw(self.chart, width, height, self.charset) if self.chart else []

    def share_at(self, x: int) -> float | None:
        """The position of a cell column on the base line; None where there is no chart."""
        base = next((row for row in self.text() if "└" in row), None)
        if base is None:
            return None
        left = base.index("└") + 1
        width = max(len(base) - left - 1, 1)
        return min(max((x - self.gutter.left - left) / width, 0.0), 1.0)

    def on_click(self, event: events.Click) -> None:
        share = self.share_at(event.x)
        if share is not None:
            self.post_message(self.Pointed(share))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event.x, 1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event.x, -1)

    def _wheel(self, x: int, by: int) -> None:
        share = self.share_at(x)
        if share is not None:
            self.post_message(self.Wheeled(share, by))
