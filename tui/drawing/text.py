"""Text in cells: names in any script keep the columns straight, and cannot drive the terminal."""

import unicodedata

from rich.cells import cell_len, chop_cells

# Cannot be shown in a cell of its own: joiners, variation selectors, direction marks. Terminals do
# not agree about their width, so they are left out rather than guessed at.
_DROPPED = {"Cf", "Cs", "Co", "Cn"}


def clean(text: str) -> str:
    """One line of printable text: control characters become ``?``, invisible ones are dropped.

    A run's name is whatever its author typed; an escape sequence in it must not reach the terminal.
    """
    if text.isascii() and text.isprintable():
        return text
    out = []
    for character in unicodedata.normalize("NFC", text):
        category = unicodedata.category(character)
        if category in ("Cc", "Zl", "Zp"):
            out.append("?")
        elif category == "Zs":
            out.append(" ")
        elif category not in _DROPPED and not 0xFE00 <= ord(character) <= 0xFE0F:
            out.append(character)
    return "".join(out)


def fit(text: str, width: int, right: bool = False, ellipsis: str = "…") -> str:
    """Exactly ``width`` cells: padded, or cut with an ellipsis."""
    if width <= 0:
        return ""
    length = cell_len(text)
    if length > width:
        room = width - cell_len(ellipsis)
        pieces = chop_cells(text, room) if room > 0 else []
        text = (pieces[0] if pieces and cell_len(pieces[0]) <= room else "") + ellipsis[:width]
        length = cell_len(text)
    pad = " " * (width - length)
    return pad + text if right else text + pad


def fit_end(text: str, width: int) -> str:
    """At most ``width`` cells: of a longer text, such as a path, the end."""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) >= width:
        text = text[1:]
    return f"…{text}" if width > 0 else ""


# What an encoding without Unicode shows instead. One character each, so that widths stay; the
# superscripts of a power of two are written out by the formatter ("2^15").
_PLAIN = str.maketrans(
    {
        "…": "~",
        "·": "|",
        "–": "-",
        "—": "-",
        "▸": ">",
        "▾": "v",
        "▴": "^",
        "×": "x",
        "↑": "^",
        "↓": "v",
        "←": "<",
        "→": ">",
        "⏎": "<",
        "┤": "|",
        "│": "|",
        "└": "`",
        "─": "-",
        "┴": "+",
        "╵": "'",
        "●": "*",
        "√": "v",
        "≥": ">",
        "≤": "<",
        "±": "~",
        "’": "'",
        "“": '"',
        "”": '"',
        **dict.fromkeys("▁▂▃▄▅▆▇█", "#"),  # the ends of a scroll bar
    }
)


def plain(text: str) -> str:
    """The same text in ASCII, cell for cell, for terminals that are not Unicode."""
    if text.isascii():
        return text
    out = text.translate(_PLAIN)
    return out if out.isascii() else "".join(_ascii_cell(c) for c in out)


def _ascii_cell(character: str) -> str:
    return character if character.isascii() else "?" * cell_len(character)
