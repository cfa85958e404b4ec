"""In which order the jobs stand. Pure: the same jobs and settings give the same list."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tui.job_columns import BY_KEY, COLUMNS, trouble_first
from tui.snapshot import JobView


@dataclass(frozen=True)
class Arrangement:
    """What the user has chosen.

    Attributes:
        sort: Key of a column; None puts who needs a person first.
        reverse: The column's own direction turned round.
    """

    sort: str | None = None
    reverse: bool = False

    def apply(self, jobs: Iterable[JobView]) -> list[JobView]:
        ordered = sorted(jobs, key=trouble_first)
        if self.sort is None:
            return ordered[::-1] if self.reverse else ordered
        column = BY_KEY[self.sort]
        # Values that are not known (and NaN) stand last in either direction.
        known = [j for j in ordered if _known(column.order(j))]
        unknown = [j for j in ordered if not _known(column.order(j))]
        known.sort(key=column.order, reverse=self.descending)
        return known + unknown

    @property
    def descending(self) -> bool:
        return self.sort is not None and BY_KEY[self.sort].descending != self.reverse

    def sorted_by(self, key: str) -> "Arrangement":
        """By this column; by it already: the other way round."""
        if key == self.sort:
            return replace(self, reverse=not self.reverse)
        return replace(self, sort=key, reverse=False)

    def next(self, by: int, shown: Iterable[str]) -> "Arrangement":
        """By the next column among the shown ones; after the last, trouble first again."""
        keys: list[str | None] = [None]
        keys += [c.column.key for c in COLUMNS if c.column.key in set(shown) and c.column.title]
        at = keys.index(self.sort) if self.sort in keys else 0
        return replace(self, sort=keys[(at + by) % len(keys)], reverse=False)


def _known(value: Any) -> bool:
    return value is not None and value == value
