import pytest
from textual.app import App
from textual.screen import Screen

from tui.drawing.roles import ROLES
from tui.widgets.columns import Column, lay_out
from tui.widgets.line_table import LineTable, TableHeader
from tui.widgets.lines import ROLE_CLASSES

COLUMNS = (
    Column("name", "job", 12, stretch=20),
    Column("policy", "policy", 15, short=6, rank=1),
    Column("loss", "loss", 7, right=True),
    Column("memory", "mem", 8, right=True, rank=2),
)


def shown(width):
    plan = lay_out(COLUMNS, width)
    return [(p.column.key, p.width, p.short) for p in plan.places], plan.gap


def test_columns_shrink_before_they_leave_and_leave_by_rank():
    assert shown(48) == (
        [("name", 12, False), ("policy", 15, False), ("loss", 7, False), ("memory", 8, False)],
        2,
    )
    assert shown(45)[1] == 1
    assert ("policy", 6, True) in shown(40)[0]
    assert [key for key, *_ in shown(30)[0]] == ["name", "policy", "loss"]
    assert [key for key, *_ in shown(20)[0]] == ["name", "loss"]
    assert [key for key, *_ in shown(5)[0]] == ["name", "loss"], "rank 0 never leaves"


def test_room_goes_to_the_columns_that_stretch():
    assert shown(58)[0][0] == ("name", 22, False)
    assert shown(300)[0][0] == ("name", 32, False)


@pytest.mark.parametrize("width", range(20, 200, 7))
def test_a_row_is_never_wider_than_the_screen(width):
    plan = lay_out(COLUMNS, width)
    row = plan.row([("x" * 50, "text")] * len(plan.places))
    assert sum(len(text) for text, _ in row) <= width


class Roles(Screen):
    COMPONENT_CLASSES = ROLE_CLASSES


class Table(App):
    def get_default_screen(self):
        return Roles()

    CSS = "TableHeader { height: 1; } LineTable { height: 1fr; }" + "".join(
        f".role--{role} {{ }}" for role in ROLES
    )

    def __init__(self, count=100):
        super().__init__()
        self.values = {f"job{i:03}": i for i in range(count)}
        self.formatted: list[int] = []
        self.messages: list = []

    def compose(self):
        self.table = LineTable(COLUMNS)
        yield TableHeader(self.table)
        yield self.table

    def on_mount(self):
        self.show()

    def show(self):
        keys = list(self.values)

        def cells(index, plan):
            self.formatted.append(index)
            value = str(self.values[keys[index]])
            texts = {"name": keys[index], "policy": "float32", "loss": value, "memory": "1 GB"}
            return [(texts[p.column.key], "text") for p in plan.places]

        self.table.show(keys, cells)

    def on_line_table_selected(self, message):
        self.messages.append(message.key)

    def on_line_table_opened(self, message):
        self.messages.append(("open", message.key))

    def on_table_header_clicked(self, message):
        self.messages.append(("sort", message.key))

    def lines(self):
        return [self.table.render_line(y).text for y in range(self.table.size.height)]


async def test_only_the_rows_in_view_are_formatted():
    app = Table(1000)
    async with app.run_test(size=(60, 11)):
        app.formatted.clear()
        app.show()
        assert app.formatted == list(range(10))


async def test_only_a_changed_row_is_repainted():
    app = Table()
    async with app.run_test(size=(60, 11)) as pilot:
        await pilot.pause()
        repainted = []
        app.table.refresh_line = repainted.append
        app.show()
        assert repainted == []
        app.values["job003"] = 7
        app.values["job050"] = 7, "out of view"
        app.show()
        assert repainted == [3]


async def test_arrows_move_the_cursor_and_scroll():
    app = Table()
    async with app.run_test(size=(60, 11)) as pilot:
        assert app.table.selected == "job000"
        await pilot.press("down", "down", "j")
        assert app.table.selected == "job003"
        await pilot.press("k", "up", "up", "up", "up")
        assert app.table.selected == "job000"
        await pilot.press("end")
        await pilot.pause()
        assert app.table.selected == "job099"
        assert "job099" in app.lines()[-1]
        await pilot.press("pageup", "home")
        await pilot.pause()
        assert "job000" in app.lines()[0]
        assert app.messages[-1] == "job000"


async def test_the_cursor_stays_with_its_job_when_the_order_changes():
    app = Table(5)
    async with app.run_test(size=(60, 11)) as pilot:
        await pilot.press("down")
        app.values = dict(reversed(app.values.items()))
        app.show()
        assert app.table.selected == "job001"
        assert app.table.cursor == 3


async def test_the_cursor_stays_near_its_place_when_its_job_goes():
    app = Table(5)
    async with app.run_test(size=(60, 11)) as pilot:
        await pilot.press("end")
        del app.values["job004"]
        app.show()
        assert app.table.selected == "job003"
        app.values = {}
        app.show()
        assert app.table.selected is None
        await pilot.press("down", "enter", "end")
        assert app.table.cursor == -1


async def test_enter_opens_and_a_double_click_does():
    app = Table(5)
    async with app.run_test(size=(60, 11)) as pilot:
        await pilot.press("down", "enter")
        await pilot.pause()
        assert app.messages[-1] == ("open", "job001")
        await pilot.click(LineTable, offset=(3, 3))
        assert app.table.selected == "job003"
        await pilot.click(LineTable, offset=(3, 2), times=2)
        await pilot.pause()
        assert app.messages[-1] == ("open", "job002")


async def test_a_click_on_a_title_asks_to_sort():
    app = Table(5)
    async with app.run_test(size=(60, 11)) as pilot:
        await pilot.click(TableHeader, offset=(1, 0))
        await pilot.pause()
        assert app.messages[-1] == ("sort", "name")
        at = app.query_one(TableHeader).text()[0].index("loss")
        await pilot.click(TableHeader, offset=(at, 0))
        await pilot.pause()
        assert app.messages[-1] == ("sort", "loss")


async def test_a_resize_lays_the_columns_out_again():
    app = Table(5)
    async with app.run_test(size=(60, 11)) as pilot:
        assert "float32" in app.lines()[0]
        assert "1 GB" in app.lines()[0]
        await pilot.resize_terminal(20, 8)
        await pilot.pause()
        assert "float32" not in app.lines()[0]
        assert "job000" in app.lines()[0]
