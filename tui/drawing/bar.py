"""A share of something as a line of cells."""

from tui.drawing.roles import Role, Row

# From these shares on, what is full is worth a look, and needs a person.
HIGH, FULL = 0.85, 0.95


def bar(share: float | None, width: int, unicode: bool = True, alarm: bool = True) -> Row:
    """``width`` cells, the first ``share`` of them full; a dash where it is not known.

    Args:
        alarm: Whether a full bar is bad (memory) or not (utilisation).
    """
    if width < 1:
        return []
    if share is None or share != share:
        return [(("–" if unicode else "-").ljust(width), "muted")]
    full = min(max(round(share * width), 0), width)
    if share > 0 and full == 0:
        full = 1
    role: Role = "line"
    if alarm and share >= HIGH:
        role = "bad" if share >= FULL else "warn"
    on, off = ("━", "─") if unicode else ("=", "-")
    return [piece for piece in ((on * full, role), (off * (width - full), "faint")) if piece[0]]
