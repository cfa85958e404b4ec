"""Columns of numbers that grow at the end: what charts are drawn from."""

from collections.abc import Mapping

import numpy as np

# A point is (step, time) and its columns. Memory for a job of weeks stays below this many points:
# beyond it, the older half is thinned (see Series.thin).
MAX_POINTS = 200_000
MAX_COLUMNS = 64


def _grown(column: np.ndarray, size: int) -> np.ndarray:
    """A larger copy; what is not written yet takes no memory of the machine."""
    fresh = np.empty(size)
    fresh[: len(column)] = column
    return fresh


class Series:
    """Points in the order of their steps, one float64 array a column; NaN where nothing was said.

    ``series["loss"]`` is a read-only view of all points so far: later points go behind it, so a
    view may be drawn in one thread while another appends. A column that no point has ever named is
    all NaN. ``series.version`` changes with every change.

    A point at or before the last step replaces everything from its step on: that is a run resumed
    from a checkpoint, whose lost work is not drawn twice. (Only then may a view taken earlier
    change, at its end.)

    Args:
        max_points: When there are more, the older half is thinned to half as many: of each four
            neighbours two stay, those with the least and the greatest value of ``keep``, so a
            dip of a single point is never lost.
        keep: The column whose extremes decide.
    """

    def __init__(self, keep: str, max_points: int = MAX_POINTS):
        self.version = 0
        self._keep = keep
        self._max_points = max(16, max_points)
        self._size = 0
        self._columns = {"step": np.empty(64), "time": np.empty(64), keep: np.empty(64)}

    def __len__(self) -> int:
        return self._size

    def __contains__(self, column: str) -> bool:
        return column in self._columns

    def __getitem__(self, column: str) -> np.ndarray:
        data = self._columns.get(column)
        view = np.full(self._size, np.nan) if data is None else data[: self._size]
        view.flags.writeable = False
        return view

    @property
    def columns(self) -> list[str]:
        return list(self._columns)

    def append(
        self,
        step: float,
        time: float,
        values: Mapping[str, float | None],
        replace: bool = True,
    ) -> None:
        """Add one point. ``None`` values are not measured (NaN).

        Args:
            replace: Whether points at or after ``step`` give way. Without, a point before the last
                step is placed at the last step instead.
        """
        if self._size and step <= self._columns["step"][self._size - 1]:
            if replace:
                self.rewind(step)
            else:
                step = float(self._columns["step"][self._size - 1])
        if self._size >= self._max_points:
            self._thin()
        for name, value in values.items():
            # A column that nobody ever measures takes no memory.
            if value is None or name in self._columns:
                continue
            if len(self._columns) < MAX_COLUMNS:
                fresh = np.empty(len(self._columns["step"]))
                fresh[: self._size] = np.nan
                self._columns[name] = fresh
        at = self._size
        if at == len(self._columns["step"]):
            size = max(min(2 * at, self._max_points), at + 1)
            self._columns = {n: _grown(c, size) for n, c in self._columns.items()}
        for name, column in self._columns.items():
            value = values.get(name)
            column[at] = np.nan if value is None else value
        self._columns["step"][at] = step
        self._columns["time"][at] = time
        self._size = at + 1
        self.version += 1

    def limit(self, max_points: int) -> None:
        """Keep about this many points from now on; the next appends thin what is more."""
        self._max_points = max(16, max_points)

    def rewind(self, step: float) -> None:
        """Drop all points at or after ``step``."""
        keep = int(np.searchsorted(self._columns["step"][: self._size], step, side="left"))
        if keep < self._size:
            self._size = keep
            self.version += 1

    def _thin(self) -> None:
        half = self._size // 2 // 4 * 4
        values = self._columns[self._keep][:half].reshape(-1, 4)
        low = np.where(np.isnan(values), np.inf, values).argmin(axis=1)
        high = np.where(np.isnan(values), -np.inf, values).argmax(axis=1)
        high = np.where(high == low, (low + 1) % 4, high)
        rows = np.arange(0, half, 4)
        kept = np.sort(np.concatenate([rows + low, rows + high]))
        index = np.concatenate([kept, np.arange(half, self._size)])
        capacity = len(self._columns["step"])
        thinned = {}
        for name, column in self._columns.items():
            fresh = np.empty(capacity)
            fresh[: len(index)] = column[index]
            thinned[name] = fresh
        self._columns = thinned
        self._size = len(index)
        self.version += 1
