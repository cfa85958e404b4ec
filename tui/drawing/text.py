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
    text = text[-4 * max(width, 1) :]  # more than fits, whatever marks its letters carry
    while text and cell_len(text) >= width:
        text = text[1:]
    return f"…{text}" if width > 0 else ""


def shorten(text: str, width: int) -> str:
    """At most ``width`` cells: of a longer name the beginning and the end.

    The names of a sweep differ at their end, and so do those that are a model and a date.
    """
    if cell_len(text) <= width:
        return text
    head = fit(text, max(0, width - 1 - (width - 1) // 2), ellipsis="")
    return head.rstrip() + fit_end(text, width - cell_len(head.rstrip()))


def wrap(text: str, width: int, taken: int = 0) -> list[str]:
    """Lines of at most ``width`` cells, the first with ``taken`` cells less; at least one.

    ``textwrap`` counts letters, not cells: in Chinese its lines are twice as wide as the screen.
    """
    lines, room = [""], width - taken
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= room:
            lines[-1] = joined
            continue
        if lines[-1] or room < width:
            lines.append("")
            room = width
        first, *rest = chop_cells(word, width)
        lines[-1:] = [first, *rest]
    return lines


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
