"""What a terminal that is too small says instead."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.screen import Screen

from tui.drawing.roles import Row
from tui.widgets.lines import ROLE_CLASSES, Lines

MIN_WIDTH, MIN_HEIGHT = 80, 24


def too_small(width: int, height: int) -> bool:
    return width < MIN_WIDTH or height < MIN_HEIGHT


class SmallText(Lines):
    def rows(self, width: int, height: int) -> Sequence[Row]:
        size = self.app.size
        words = (
            f"keras-mp needs a terminal of {MIN_WIDTH} x {MIN_HEIGHT} or more; "
            f"this one has {size.width} x {size.height}. Enlarge it, or press q"
            f"{getattr(self.app, 'INSTEAD', ' and use keras-mp monitor --once')}."
        ).split()
        rows, line = [], ""
        for word in words:
            if line and len(line) + 1 + len(word) > width:
                rows.append(line)
                line = word
            else:
                line = f"{line} {word}".strip()
        return [[(text, "text")] for text in [*rows, line]]


class SmallScreen(Screen[None]):
    COMPONENT_CLASSES: ClassVar[set[str]] = ROLE_CLASSES

    def compose(self) -> ComposeResult:
        yield SmallText()
