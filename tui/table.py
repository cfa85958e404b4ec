"""Columns of numbers that nobody changes any more: what charts are drawn from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """Columns of points, with the step and time of each."""

    columns: Mapping[str, Floats] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Floats:
        column = self.columns.get(name)
        return np.full(len(self), np.nan) if column is None else column

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __len__(self) -> int:
        step = self.columns.get("step")
        return 0 if step is None else len(step)


NO_POINTS = Table()
