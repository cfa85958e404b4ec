"""What each tensor of a job lost over the run: the fold of its ``numerics`` records."""

from collections.abc import Iterator, Mapping

from keras_mp.telemetry import records as r
from keras_mp.telemetry.series import Series

# A heat strip is a few hundred cells wide; beyond this the older half is thinned, and the greatest
# loss of each stretch stays.
MAX_POINTS = 512
COLUMNS = ("lost", "subnormal", "near", "overflow", "underflow", "headroom")

Key = tuple[str, str]


class LayerShares(Mapping[Key, Series]):
    """(variable or layer, tensor) -> a Series with the columns of ``COLUMNS``, in model order.

    They are the record's shares, except for ``lost``: of the values that were not zero already,
    because half of a ReLU's gradients are.

    Attributes:
        version: Changes with every change.
    """

    def __init__(self) -> None:
        self.version = 0
        self._series: dict[Key, Series] = {}

    def __getitem__(self, key: Key) -> Series:
        return self._series[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._series)

    def __len__(self) -> int:
        return len(self._series)

    def append(self, key: Key, record: r.Numerics) -> None:
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series("lost", MAX_POINTS)
        self.version += 1
        values = {name: getattr(record, name) for name in COLUMNS}
        if record.lost is not None and record.zero is not None:
            nonzero = 1.0 - record.zero
            values["lost"] = min(1.0, record.lost / nonzero) if nonzero > 0 else 0.0
        series.append(record.step, record.time, values)

    def rewind(self, step: float) -> None:
        """Drop all points at or after ``step``."""
        self.version += 1
        for series in self._series.values():
            series.rewind(step)
