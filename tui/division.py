"""How the height of the jobs screen is shared out."""

from dataclasses import dataclass

# Rows of the verdict and what to do: as many in every job's, so that nothing jumps; two lines of
# each on 80 columns.
VERDICT = 4
# From this height on there is a space above the charts and above the events.
AIRY = 32
# From this height on the charts stand in two rows.
TWO_ROWS = 20


@dataclass(frozen=True)
class Division:
    """How the height is shared out."""

    table: int
    charts: int
    events: int


def divide(height: int, jobs: int, details: bool) -> Division:
    """Rows for each part of a screen of ``height`` rows.

    The table gets what its jobs need up to under half, then the charts, then the events.
    """
    # The status line, the titles, a space, the verdict, the keys.
    rest = height - 4 - VERDICT - (2 if height >= AIRY else 0)
    if not details:
        return Division(height - 3, 0, 0)
    table = max(3, min(jobs, int(rest * 0.45)))
    events = max(2, min((rest - table) // 4, 12))
    return Division(table, rest - table - events, events)
