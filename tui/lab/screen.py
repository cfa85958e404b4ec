"""The lab's screen: a line of pages, the page that is shown, and its keys."""

import re
from collections.abc import Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from keras_mp.telemetry.format import ascii_only
from keras_mp.telemetry.records import Numerics
from tui.drawing.roles import Row
from tui.drawing.text import plain
from tui.keys import EVERYWHERE, Key, bindings, hints
from tui.lab.bits import BitsPage
from tui.lab.memory import MemoryPage
from tui.lab.ops import OpsPage
from tui.lab.page import Page
from tui.lab.recorded import job_gradients
from tui.lab.results import ResultsPage
from tui.lab.scale import ScalePage
from tui.lab.step import StepPage
from tui.look import Look
from tui.screens.base import ShownScreen
from tui.widgets.key_bar import KeyBar
from tui.widgets.lines import Lines

PAGES: tuple[type[Page], ...] = (
    BitsPage,
    StepPage,
    ScalePage,
    MemoryPage,
    OpsPage,
    ResultsPage,
)
_NAMES = ", ".join(page.TITLE for page in PAGES) + "."
# Each page is as wide as this at most: lines that are longer are harder to read.
WIDEST = 100


def _all_keys() -> tuple[Key, ...]:
    """Every key that some page answers, once."""
    seen: dict[str, Key] = {}
    for page in PAGES:
        for key in page.KEYS:
            seen.setdefault(key.keys.split(",")[0], key)
    return tuple(seen.values())


LAB = (
    Key("tab", "turn(1)", "tab", "page", "The next page; shift+tab the one before.", 1),
    Key("shift+tab", "turn(-1)", "", "", ""),
    *(
        Key(str(n), f"page({n})", "1–6" if n == 1 else "", "", _NAMES if n == 1 else "")
        for n in range(1, len(PAGES) + 1)
    ),
    Key("escape", "leave", "esc", "", "Leave the lab: back to where you were."),
)


# Of the keys that work everywhere, those that the lab's footer has room for.
_LAST = tuple(key for key in EVERYWHERE if key.action in ("app.help", "app.quit"))


class PageLine(Lines):
    """The names of the pages; the shown one stands out, and a click opens one."""

    def __init__(self) -> None:
        super().__init__(id="pages")
        self.current = 0

    def show(self, current: int) -> None:
        self.current = current
        self.redraw()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        row: Row = [("keras-mp lab   ", "strong")]
        for number, page in enumerate(PAGES):
            shown = number == self.current
            row.append((f" {number + 1} ", "key" if shown else "muted"))
            row.append((f"{page.TITLE}  ", "strong" if shown else "muted"))
        return [row]

    async def on_click(self, event: events.Click) -> None:
        edge = self.gutter.left + len("keras-mp lab   ")
        for number, page in enumerate(PAGES, start=1):
            edge += len(page.TITLE) + 5
            if event.x < edge:
                await self.run_action(f"screen.page({number})")
                return


class PageView(Lines):
    """Draws a page."""

    def __init__(self, page: Page) -> None:
        super().__init__(id="page")
        self._page = page
        self._look = Look()
        self.problem = ""

    def show(self, page: Page, look: Look, problem: str = "") -> None:
        self._page, self._look, self.problem = page, look, problem
        self.redraw()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        rows = list(self._page.rows(min(width, WIDEST), height, self._look))[:height]
        if self.problem:
            rows = [*rows[: height - 1], [(self.problem, "bad")]]
        if self._look.unicode:
            return rows
        return [[(in_ascii(piece), role) for piece, role in row] for row in rows]


_RAISED = re.compile("[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_SIGNS = str.maketrans({"−": "-", "÷": "/"})


def in_ascii(piece: str) -> str:
    """The piece in ASCII: 2¹⁵ as 2^15, the longer by it, taken from the blanks at its end."""
    said = _RAISED.sub(lambda match: ascii_only(match[0]), piece)
    while len(said) > len(piece) and said.endswith(" "):
        said = said[:-1]
    return plain(said.translate(_SIGNS))


class LabScreen(ShownScreen):
    """Six pages of things to see and move.

    Args:
        job: Name of a job, for the Scale page. numerics: Its records, newest last.
        page: Title of the page to begin with.
    """

    AUTO_FOCUS = ""  # keys are the page's until it asks for a number
    DEFAULT_CSS = """
    LabScreen PageLine { height: 1; padding: 0 1; }
    LabScreen PageView { height: 1fr; padding: 0 1; margin-top: 1; }
    LabScreen #typed {
        height: 1; border: none; padding: 0 1; background: $panel; color: $foreground;
    }
    LabScreen #typed:focus { border: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(LAB),
        *(
            Binding(key.keys, key.action.removeprefix("screen."), key.word, show=False)
            for key in _all_keys()
        ),
    ]

    def __init__(self, job: str = "", numerics: Sequence[Numerics] = (), page: str = "Bits"):
        super().__init__()
        sources = job_gradients(job, numerics)
        self._pages = [cls(sources) if cls is ScalePage else cls() for cls in PAGES]
        self._at = [p.TITLE for p in self._pages].index(page)
        self._line = PageLine()
        self._view = PageView(self.page)
        self._input = Input(id="typed", placeholder="")
        self._input.display = False
        self._footer = KeyBar((), id="keys")

    @property
    def page(self) -> Page:
        return self._pages[self._at]

    @property
    def KEYS(self) -> tuple[Key, ...]:  # type: ignore[override]  # the help shows this page's
        return (*self.page.current_keys(), *LAB)

    def compose(self) -> ComposeResult:
        yield self._line
        yield self._view
        yield self._input
        yield self._footer

    def on_mount(self) -> None:
        self.show()

    def show(self) -> None:
        self._line.show(self._at)
        self._view.show(self.page, self.monitor.look, self._view.problem)
        self._footer.show(hints((*self.page.current_keys(), *LAB, *_LAST)))

    def action_turn(self, by: int) -> None:
        self.action_page((self._at + by) % len(self._pages) + 1)

    def action_page(self, number: int) -> None:
        self._at = number - 1
        self._view.problem = ""
        self.show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A key that this page does not answer is left to the app."""
        if action == "press":
            return parameters[0] in {key.keys.split(",")[0] for key in self.page.current_keys()}
        return True

    def action_press(self, key: str) -> None:
        self._view.problem = ""
        if key == "enter" and self.page.prompt is not None:
            self._ask(self.page.prompt)
        else:
            self.page.press(key)
        self.show()

    def _ask(self, prompt: str) -> None:
        self._input.placeholder = prompt
        self._input.value = ""
        self._input.display = True
        self._input.focus()

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        self._close_input()
        problem = self.page.take(event.value) if event.value.strip() else None
        self._view.problem = problem or ""
        self.show()

    def _close_input(self) -> None:
        self._input.display = False
        self.set_focus(None)

    def action_leave(self) -> None:
        if self._input.display:
            self._close_input()
        elif len(self.app.screen_stack) > 1:
            self.app.pop_screen()
        else:
            self.app.exit()
