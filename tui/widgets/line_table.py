"""A table that formats the rows in view and repaints the ones that changed.

Textual's DataTable drops its caches at any change: 30 rows of 11 columns take 30 ms to repaint
after one changed cell. Here a changed row costs a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.drawing.chart import padded
from tui.drawing.roles import Piece, Role, Row
from tui.widgets.columns import Column, Layout, lay_out
from tui.widgets.lines import Lines, RoleStyles


class TableHeader(Lines):
    """The titles over a LineTable; a click on one asks to sort by it."""

    @dataclass
    class Clicked(Message):
        key: str

    def __init__(self, table: "LineTable", *, id: str | None = None):
        super().__init__(id=id)
        self._table = table
        table.header = self
        self.sorted_by: tuple[str, bool] | None = None
        self.titles: dict[str, str] = {}  # in place of the columns' own

    def rows(self, width: int, height: int) -> Sequence[Row]:
        layout = self._table.plan
        cells: list[Piece] = []
        for place in layout.places:
            title = (place.short and place.column.short_title) or place.column.title
            title = self.titles.get(place.column.key, title)
            role: Role = "muted"
            if self.sorted_by is not None and self.sorted_by[0] == place.column.key:
                title = f"{title}{'▾' if self.sorted_by[1] else '▴'}"
                role = "text"
            cells.append((title, role))
        return [layout.row(cells)]

    def on_click(self, event: events.Click) -> None:
        column = self._table.plan.column_at(event.x - self.gutter.left)
        if column is not None and column.title:
            self.post_message(self.Clicked(column.key))


class LineTable(RoleStyles, ScrollView, can_focus=True):
    """Rows by key, one of them under the cursor.

    Call ``show(keys, cells)`` whenever anything may have changed. ``cells(index, plan)`` is
    called for rows in view only, and returns a (text, role) for each column that is shown.
    """

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "go(0)", "First", show=False),
        Binding("end,G", "go(-1)", "Last", show=False),
        Binding("enter", "open", "Open", show=False),
    ]

    @dataclass
    class Selected(Message):
        """Another row is under the cursor. ``key`` is None when there is no row."""

        key: str | None

    @dataclass
    class Opened(Message):
        key: str

    def __init__(self, columns: Sequence[Column], *, id: str | None = None):
        self._role_styles = {}
        self._cache: dict[int, tuple[Row, bool, Strip]] = {}
        super().__init__(id=id)
        self.columns: Sequence[Column] = tuple(columns)
        self.plan = lay_out(self.columns, 80)
        self._planned = 0
        self.header: TableHeader | None = None
        self.keys: Sequence[str] = ()
        self.selected: str | None = None
        self._place_of: dict[str, int] = {}
        self._cells: Callable[[int, Layout], Sequence[Piece]] | None = None

    @property
    def width(self) -> int:
        """Cells of a row: what a scroll bar leaves."""
        return self.scrollable_content_region.width

    @property
    def cursor(self) -> int:
        """Index of the selected row, -1 if there is none."""
        return self._place_of.get(self.selected, -1) if self.selected is not None else -1

    def show(self, keys: Sequence[str], cells: Callable[[int, Layout], Sequence[Piece]]) -> None:
        """Show these rows. The selection stays with its key; if that is gone, near its place."""
        before = self.cursor
        self.keys, self._cells = keys, cells
        self._place_of = {key: number for number, key in enumerate(keys)}
        if self.virtual_size.height != len(keys):
            self.virtual_size = Size(self.width, len(keys))
        if keys and self.selected not in self._place_of:
            self._select(keys[min(max(before, 0), len(keys) - 1)])
        elif not keys and self.selected is not None:
            self._select(None)
        self.redraw()

    def _select(self, key: str | None) -> None:
        if key != self.selected:
            self.selected = key
            self.post_message(self.Selected(key))

    def redraw(self) -> None:
        """Format the rows in view, and repaint the ones that came out different."""
        if not self.is_mounted:
            return
        if self._planned != self.width:
            self._make_plan()
        top = round(self.scroll_y)
        fresh: dict[int, tuple[Row, bool, Strip]] = {}
        for y in range(top, min(top + self.size.height, len(self.keys))):
            row, current = self._row(y), self.keys[y] == self.selected
            known = self._cache.get(y)
            if known is not None and known[0] == row and known[1] == current:
                fresh[y] = known
            else:
                fresh[y] = self._entry(row, current)
                self.refresh_line(y)
        for y in self._cache.keys() - fresh.keys():
            self.refresh_line(y)
        self._cache = fresh

    def _entry(self, row: Row, current: bool) -> tuple[Row, bool, Strip]:
        return row, current, self.strip(row, over="cursor" if current else None)

    def _row(self, y: int) -> Row:
        if self._cells is None:
            return []
        return padded(self.plan.row(self._cells(y, self.plan)), self.width)

    def render_line(self, y: int) -> Strip:
        at = y + round(self.scroll_y)
        if at >= len(self.keys):
            return Strip.blank(self.width, self.rich_style)
        if at not in self._cache:
            row, current = self._row(at), self.keys[at] == self.selected
            self._cache[at] = self._entry(row, current)
        return self._cache[at][2]

    def notify_style_update(self) -> None:
        # Strips hold styles: another theme needs others.
        self._cache = {}
        super().notify_style_update()

    def on_resize(self) -> None:
        self._make_plan()
        self._keep_in_view()
        self.redraw()

    def _make_plan(self) -> None:
        """Lay the columns out; also when a scroll bar has come or gone."""
        self._planned = self.width
        self.plan = lay_out(self.columns, self.width)
        self.virtual_size = Size(self.width, len(self.keys))
        self._cache = {}
        if self.header is not None:
            self.header.redraw()

    def use_columns(self, columns: Sequence[Column]) -> None:
        """Lay out other columns."""
        if list(columns) != list(self.columns):
            self.columns = columns
            self._make_plan()

    def _keep_in_view(self) -> None:
        at, height = self.cursor, self.size.height
        if at < 0 or not height:
            return
        top = round(self.scroll_y)
        if at < top:
            self.scroll_to(y=at, animate=False, immediate=True)
        elif at >= top + height:
            self.scroll_to(y=at - height + 1, animate=False, immediate=True)

    def select(self, index: int) -> None:
        """Put the cursor on a row, as near as there is one."""
        if self.keys:
            self._select(self.keys[min(max(index, 0), len(self.keys) - 1)])
            self._keep_in_view()
            self.redraw()

    def action_move(self, by: int) -> None:
        self.select(self.cursor + by)

    def action_page(self, by: int) -> None:
        self.select(self.cursor + by * max(1, self.size.height - 1))

    def action_go(self, to: int) -> None:
        self.select(len(self.keys) - 1 if to < 0 else to)

    def action_open(self) -> None:
        if self.selected is not None:
            self.post_message(self.Opened(self.selected))

    def on_click(self, event: events.Click) -> None:
        at = event.y + round(self.scroll_y)
        if at < len(self.keys):
            again = self.keys[at] == self.selected
            self.select(at)
            if again and event.chain > 1:
                self.action_open()
