"""A share over time as one row of cells, the darker the worse."""

from dataclasses import dataclass

import numpy as np

from tui.drawing.downsample import Floats, bridge, minmax
from tui.drawing.roles import Role, Row

# Light to full, and a cross for what overflows; each level has a sign of its own, so that no colour
# is needed to read it.
_UNICODE, _ASCII = "·░▒▓█×", ".:+#@x"
_ROLES: tuple[Role, ...] = ("faint", "muted", "text", "warn", "bad")


def signs(unicode: bool = True) -> str:
    """The sign of each level, and the cross."""
    return _UNICODE if unicode else _ASCII


@dataclass(frozen=True)
class Levels:
    """Where each level begins: four limits, in the order in which it gets worse.

    ``rising``: whether larger values are worse.
    """

    limits: tuple[float, float, float, float]
    rising: bool = True

    def of(self, values: Floats) -> np.ndarray:
        """Level of each value, 0 to 4 (-1: not known)."""
        bounds = np.array(self.limits if self.rising else [-x for x in self.limits])
        level = np.searchsorted(bounds, values if self.rising else -values, side="right")
        return np.where(np.isnan(values), -1, level)


# Of the values that are not zero, the share that becomes zero.
LOST = Levels((0.001, 0.01, 0.05, 0.20))
# Doublings until overflow: below none there is one.
HEADROOM = Levels((8.0, 4.0, 2.0, 0.0), rising=False)


def strip(
    x: Floats,
    y: Floats,
    span: tuple[float, float],
    width: int,
    levels: Levels,
    bad: Floats | None = None,
    unicode: bool = True,
) -> Row:
    """``width`` cells for the values ``y`` at ``x`` within ``span``; each shows the worst in it.

    Args:
        bad: Values as many as ``y``; where one is above 0 the cell is a cross.
    """
    worst = _worst(x, y, span, width, levels.rising)
    shown = " " + signs(unicode)
    level = levels.of(worst)
    if bad is not None:
        broken = _worst(x, np.nan_to_num(bad), span, width, True)
        level = np.where(broken > 0, 5, level)
    out: Row = []
    changes = np.flatnonzero(np.diff(level)) + 1
    for start, stop in zip([0, *changes], [*changes, width], strict=True):
        at = int(level[start])
        role: Role = "text" if at < 0 else "bad" if at == 5 else _ROLES[at]
        out.append((shown[at + 1] * int(stop - start), role))
    return out


def _worst(x: Floats, y: Floats, span: tuple[float, float], width: int, rising: bool) -> Floats:
    columns = bridge(minmax(x, y, *span, columns=width), hold=True)
    return columns.high if rising else columns.low
