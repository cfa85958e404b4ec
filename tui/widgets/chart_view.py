"""A chart in a widget."""

from collections.abc import Sequence

from tui.drawing.chart import Chart, draw
from tui.drawing.raster import BRAILLE, Charset
from tui.drawing.roles import Row
from tui.widgets.lines import Lines


class ChartView(Lines):
    """Draws one chart; ``show`` gives it another."""

    def __init__(self, *, id: str | None = None, classes: str | None = None):
        super().__init__(id=id, classes=classes)
        self.chart: Chart | None = None
        self.charset: Charset = BRAILLE

    def show(self, chart: Chart | None, charset: Charset) -> None:
        self.chart, self.charset = chart, charset
        self.redraw()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        return draw(self.chart, width, height, self.charset) if self.chart else []
