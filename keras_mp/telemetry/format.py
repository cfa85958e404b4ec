"""Numbers, times and names as people read them: in ``--once``, the dashboard and the verdicts.

What is not known is a dash. ``ascii_only`` is for terminals that cannot show the rest.
"""

import math
import re
import unicodedata

UNKNOWN = "–"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# What a terminal without UTF-8 gets instead; everything else that it cannot show becomes "?".
_ASCII = str.maketrans(
    {
        "–": "-", "·": "|", "×": "x", "→": "->", "…": "...", "▸": ">", "≥": ">=", "≤": "<=",
        "\N{NO-BREAK SPACE}": " ", "\N{NARROW NO-BREAK SPACE}": " ", "µ": "u", "⁻": "-",
    }
)  # fmt: skip


def power_of_two(value: float | None) -> str:
    """A loss scale: ``2¹⁵``, ``2⁻³``; other numbers as they are; 0, nan and inf in words."""
    if value is None:
        return UNKNOWN
    if value != value or math.isinf(value) or value <= 0:
        return number(value)
    mantissa, exponent = math.frexp(value)
    if mantissa == 0.5:
        return "2" + str(exponent - 1).translate(_SUPERSCRIPTS)
    return f"{value:.4g}"


def number(value: float | None, digits: int = 4) -> str:
    """``digits`` significant digits without needless zeros: ``1.831``, ``0.0011``, ``3.2e-07``."""
    if value is None:
        return UNKNOWN
    if value != value:
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e6:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:.{min(places, 6)}f}"
        return text.rstrip("0").rstrip(".") if "." in text and len(text) > digits + 1 else text
    return f"{value:.{max(0, digits - 2)}e}"


def count(value: float | None) -> str:
    """Steps and rates in three digits: ``564``, ``2.41k``, ``12.4k``, ``1.20M``."""
    if value is None or value != value:
        return UNKNOWN
    if abs(value) < 999.5:
        return f"{value:.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.3g}"
    for unit in "kMGT":
        value /= 1000
        if abs(value) < 999.5:
            places = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
            return f"{value:.{places}f}{unit}"
    return number(value * 1e12, 3)


def goal(value: float | None) -> str:
    """A planned count, without the zeros that say nothing: ``564``, ``50k``, ``1.2M``."""
    text = count(value)
    return re.sub(r"\.?0+([kMGT])$", r"\1", text) if "." in text else text


def whole(value: int | None) -> str:
    """A count in full: ``12,011``."""
    return UNKNOWN if value is None else f"{value:,}"


def share(value: float | None) -> str:
    """A share of 1 in percent: ``0 %``, ``0.1 %``, ``38 %``; never 0 for something above 0."""
    if value is None or value != value:
        return UNKNOWN
    percent = value * 100
    if percent == 0:
        return "0 %"
    if percent < 0.095:
        return "<0.1 %"
    return f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"


def size(value: float | None) -> str:
    """Bytes: ``512 B``, ``620 MB``, ``38.1 GB`` (GB = 10⁹)."""
    if value is None or value != value:
        return UNKNOWN
    if value < 1000:
        return f"{value:.0f} B"
    for unit, factor in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12)):
        if value < factor * 999.5 or unit == "TB":
            amount = value / factor
            return f"{amount:.1f} {unit}" if amount < 99.95 else f"{amount:.0f} {unit}"
    return UNKNOWN


def duration(seconds: float | None) -> str:
    """``850 ms``, ``42 s``, ``3 min 05``, ``3 h 12``, ``2 d 04``."""
    if seconds is None or seconds != seconds or math.isinf(seconds):
        return UNKNOWN
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    whole_seconds = round(seconds)
    if whole_seconds < 3600:
        return f"{whole_seconds // 60} min {whole_seconds % 60:02d}"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d}"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d}"


def ascii_only(text: str) -> str:
    """``text`` for a terminal that knows only ASCII: ``2¹⁵`` becomes ``2^15``."""
    out = []
    inside = False
    for char in text:
        raised = char in "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"
        if raised and not inside:
            out.append("^")
        inside = raised
        out.append("-" if char == "⁻" else str("⁰¹²³⁴⁵⁶⁷⁸⁹".index(char)) if raised else char)
    return "".join(out).translate(_ASCII).encode("ascii", "replace").decode()


def width(text: str) -> int:
    """Terminal cells that ``text`` takes: two for wide letters, none for combining marks."""
    cells = 0
    for char in text:
        if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
            continue
        cells += 2 if unicodedata.east_asian_width(char) in "WF" else 1
    return cells


def fit(text: str, cells: int) -> str:
    """``text`` cut to at most ``cells`` terminal cells, with an ellipsis where it was cut."""
    if width(text) <= cells:
        return text
    out, used = "", 0
    for char in text:
        used += width(char)
        if used > cells - 1:
            break
        out += char
    return out + "…"


def pad(text: str, cells: int, right: bool = False) -> str:
    """``text`` filled up with spaces to ``cells``; ``right`` aligns it to the right."""
    space = " " * max(0, cells - width(text))
    return space + text if right else text + space
