"""Widgets that draw rows of (text, role) and repaint only the rows that changed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tui.drawing.chart import padded
from tui.drawing.roles import ROLES, Role, Row

# ``app.tcss`` says what each looks like. Screens have them as component classes and the widgets on
# them ask their screen: Textual matches the style sheet against every component class of every
# widget, and a dozen widgets with sixteen of them are half of a dashboard's time to start.
ROLE_CLASSES = {f"role--{role}" for role in ROLES}


class RoleStyles(Widget if TYPE_CHECKING else object):  # type: ignore[misc]
    """Mixed into a widget that draws rows of (text, role)."""

    _role_styles: dict[tuple[Role | None, Role], Style]

    def strip(self, row: Row, over: Role | None = None) -> Strip:
        """The row in the widget's styles.

        Args:
            over: A role whose style lies under each piece: a selected row.
        """
        return Strip([Segment(text, self._role_style(over, role)) for text, role in row])

    def _role_style(self, over: Role | None, role: Role) -> Style:
        key = (over, role)
        style = self._role_styles.get(key)
        if style is None:
            style = self.rich_style
            for name in (over, role):
                if name is not None:
                    style += self.screen.get_component_rich_style(f"role--{name}", partial=True)
            self._role_styles[key] = style
        return style

    def notify_style_update(self) -> None:
        self._role_styles = {}
        super().notify_style_update()


class Lines(RoleStyles, Widget):
    """A widget whose whole content is rows of text made by ``rows``.

    Call ``redraw`` when what it shows may have changed: rows that came out equal are not repainted,
    so that a quiet dashboard sends nothing to the terminal.
    """

    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None, classes: str | None = None):
        self._role_styles = {}
        super().__init__(id=id, classes=classes)
        self._shown: list[Row] = []

    def rows(self, width: int, height: int) -> Sequence[Row]:
        """The rows to show, at most ``height``; each is cut or filled to ``width``."""
        raise NotImplementedError

    def redraw(self) -> None:
        width, height = self.content_size
        if not width or not height or not self.is_mounted:
            return
        fresh = [padded(row, width) for row in self.rows(width, height)[:height]]
        fresh += [padded([], width)] * (height - len(fresh))
        dirty = [y for y in range(height) if y >= len(self._shown) or fresh[y] != self._shown[y]]
        self._shown = fresh
        if dirty:
            self.refresh(*(Region(0, y, width, 1) for y in dirty))

    def on_resize(self) -> None:
        self._shown = []
        self.redraw()

    def render_line(self, y: int) -> Strip:
        if y >= len(self._shown):
            return Strip.blank(self.content_size.width, self.rich_style)
        return self.strip(self._shown[y])

    def text(self) -> list[str]:
        """What is shown, as plain rows (for copying and for tests)."""
        return ["".join(piece for piece, _ in row) for row in self._shown]
