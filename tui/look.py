"""How the dashboard draws on this terminal: which characters there are."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from keras_mp.telemetry.format import ascii_only
from tui.drawing.raster import ASCII, BRAILLE, CHARSETS, Charset
from tui.drawing.text import clean, plain


@dataclass(frozen=True)
class Look:
    """Characters to draw with.

    Attributes:
        unicode: Whether the terminal shows more than ASCII.
        charset: What lines of charts are made of.
    """

    unicode: bool = True
    charset: Charset = BRAILLE

    def say(self, text: str) -> str:
        """A text from outside (a name, a number, a sentence) as this terminal can show it."""
        return clean(text) if self.unicode else ascii_only(clean(text))

    def label(self, of: Callable[[float], str]) -> Callable[[float], str]:
        return of if self.unicode else lambda value: ascii_only(of(value))


def detect(charset: str | None = None, stream: TextIO | None = None) -> Look:
    """What the terminal can show.

    Args:
        charset: "braille", "blocks" or "ascii" where the user has chosen; None chooses.
        stream: What is drawn to. Defaults to standard error, where Textual draws.
    """
    encoding = getattr(stream or sys.__stderr__, "encoding", None) or "ascii"
    unicode = encoding.lower().replace("-", "") in ("utf8", "utf16", "utf32", "utf8sig")
    # The kernel's own console has 512 glyphs, and braille is not among them.
    console = os.environ.get("TERM") == "linux"
    if not unicode or charset == "ascii":
        return Look(unicode=unicode, charset=ASCII)
    if charset in CHARSETS:
        return Look(charset=CHARSETS[charset])
    return Look(charset=CHARSETS["blocks"] if console else BRAILLE)


class PlainText(LineFilter):
    """The last resort for a terminal without Unicode: whatever is left becomes ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(plain(text), style, control) for text, style, control in segments]
