"""Which jobs are shown, and in which order. Pure: the same jobs and settings give the same list."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tui.filter import parse
from tui.job_cells import ENDED
from tui.job_columns import BY_KEY, COLUMNS, trouble_first
from tui.snapshot import JobView


@dataclass(frozen=True)
class Arrangement:
    """What the user has chosen.

    Attributes:
        sort: Key of a column; None puts who needs a person first.
        reverse: The column's own direction turned round.
        filter: See ``tui.filter``.
        hide_ended: Leave out jobs that are over, except those that need a person.
        grouped: Keep the jobs of a folder or host together.
        pinned: Keys of jobs that stand above all others, filter or not.
    """

    sort: str | None = None
    reverse: bool = False
    filter: str = ""
    hide_ended: bool = False
    grouped: bool = False
    pinned: frozenset[str] = frozenset()

    def apply(self, jobs: Iterable[JobView]) -> list[JobView]:
        ordered = self._sorted(self._chosen(jobs))
        if self.grouped:
            ordered.sort(key=lambda job: group_of(job))
        pinned = [job for job in ordered if job.key in self.pinned]
        return pinned + [job for job in ordered if job.key not in self.pinned]

    def _chosen(self, jobs: Iterable[JobView]) -> list[JobView]:
        matches = parse(self.filter)
        return [
            job
            for job in jobs
            if job.key in self.pinned or (matches(job) and not (self.hide_ended and _over(job)))
        ]

    def _sorted(self, jobs: Iterable[JobView]) -> list[JobView]:
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
        shown = set(shown)
        keys: list[str | None] = [None]
        keys += [c.column.key for c in COLUMNS if c.column.key in shown and c.column.title]
        at = keys.index(self.sort) if self.sort in keys else 0
        return replace(self, sort=keys[(at + by) % len(keys)], reverse=False)

    def pin(self, key: str) -> "Arrangement":
        """Pin a job, or let it go again."""
        return replace(self, pinned=self.pinned ^ {key})


def group_of(job: JobView) -> tuple[str, str]:
    return job.place, (job.meta.host if job.meta else "")


def _over(job: JobView) -> bool:
    return job.verdict.state in ENDED and not job.verdict.needs_you


def _known(value: Any) -> bool:
    return value is not None and value == value
