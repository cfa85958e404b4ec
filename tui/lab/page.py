"""What every page of the lab can do: draw itself as rows of text, and answer keys."""

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from tui.drawing.roles import Role, Row
from tui.keys import Key
from tui.look import Look

T = TypeVar("T")


def press(keys: str, shown: str, word: str, text: str, rank: int = 0) -> Key:
    """A page's key: the screen hands it to the page that is shown."""
    return Key(keys, f"screen.press('{keys.split(',')[0]}')", shown, word, text, rank)


class Page:
    """One page. It has no widgets and no clock: what it shows follows from the keys pressed.

    Attributes:
        TITLE: A word, for the line of pages.
        KEYS: Its keys; ``press`` is called with the first name of each.
        prompt: What the user is asked for on ⏎; None where there is nothing to type.
    """

    TITLE: ClassVar[str] = ""
    KEYS: ClassVar[tuple[Key, ...]] = ()
    prompt: ClassVar[str | None] = None

    def rows(self, width: int, height: int, look: Look) -> Sequence[Row]:
        """What to show in ``height`` rows of ``width`` cells; at least 78 x 20 are given."""
        raise NotImplementedError

    def current_keys(self) -> tuple[Key, ...]:
        """The keys that are of use now, for the footer and the help."""
        return self.KEYS

    def press(self, key: str) -> None:
        """Answer a key."""

    def take(self, text: str) -> str | None:
        """Use what the user typed. Returns why that is not possible, or None."""
        return None


def turn(options: Sequence[T], current: T, by: int = 1) -> T:
    """The option after the current one; after the last, the first."""
    return options[(options.index(current) + by) % len(options)]


def bar(amount: float, top: float, cells: int, look: Look) -> str:
    """``amount`` of ``top`` as a bar at most ``cells`` long; something above 0 is never nothing."""
    if not amount > 0 or not top > 0:
        return ""
    halves = max(1, round(min(amount / top, 1.0) * cells * 2))
    if look.unicode:
        return "█" * (halves // 2) + "▌" * (halves % 2)
    return "#" * max(1, halves // 2)


def text(*pieces: str | tuple[str, Role]) -> Row:
    """A row; pieces without a role are ordinary text."""
    return [(piece, "text") if isinstance(piece, str) else piece for piece in pieces]
