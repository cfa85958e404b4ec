"""Memory as a line in the batch size, and the largest batch that fits: arithmetic, no backend."""

import math
from collections.abc import Sequence

from keras_mp.bench.results import Memory

HEADROOM = 0.1
TILE = 8  # tensor cores like batch sizes that are multiples of it


def sizes_for(batch: int) -> tuple[int, int, int]:
    """The batch sizes to measure at: half, whole and double, for two slopes."""
    half = max(1, batch // 2)
    return half, max(half + 1, batch), 2 * max(half + 1, batch)


def fit_line(
    what: str, points: Sequence[tuple[int, int]], budget: int, headroom: float = HEADROOM
) -> Memory:
    """The line through measured (batch size, bytes), and the largest batch by it.

    The slope is the steeper one of the two between neighbouring points: if it is not quite a line,
    a larger batch must not be promised than fits.

    Raises:
        ValueError: There are not three batch sizes that differ.
    """
    points = sorted((int(batch), int(size)) for batch, size in points)
    if len({batch for batch, _ in points}) != 3 or len(points) != 3:
        raise ValueError(
            f"Two slopes need three batch sizes that differ. Received: points={points}"
        )
    (b1, m1), (b2, m2), (b3, m3) = points
    slopes = ((m2 - m1) / (b2 - b1), (m3 - m2) / (b3 - b2))
    slope = max(*slopes, 0.0)
    fixed = m3 - slope * b3
    return Memory(
        what=what,
        points=points,
        fixed=fixed,
        slope=slope,
        slopes=slopes,
        largest_batch=largest_batch(fixed, slope, budget, headroom),
        budget=budget,
        headroom=headroom,
    )


def largest_batch(
    fixed: float, slope: float, budget: int, headroom: float = HEADROOM
) -> int | None:
    """The largest batch whose step stays within ``budget * (1 - headroom)``.

    A multiple of 8 where it is at least 8.

    Returns:
        None if the budget is not known (0), or not even one sample fits, or nothing grows.
    """
    room = budget * (1 - headroom) - fixed
    if budget <= 0 or slope <= 0 or room < slope:
        return None
    most = math.floor(room / slope)
    return most // TILE * TILE if most >= TILE else most
