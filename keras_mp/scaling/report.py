"""Which variables overflowed, how often, since when: for a person to print."""

from dataclasses import dataclass

import numpy as np

from keras_mp.scaling.attribution import Attribution


@dataclass(frozen=True)
class VariableOverflows:
    """Overflows in one variable's gradient; steps count from 1 over the optimizer's life."""

    path: str
    count: int
    first_step: int
    last_step: int


@dataclass(frozen=True)
class OverflowReport:
    """What overflowed since the optimizer was built (or restored).

    Attributes:
        skipped: Steps skipped over the optimizer's life.
        variables: Those whose gradient was ever not finite, the most frequent first.
        last: Attribution of the last overflow; None where none was seen.
    """

    skipped: int
    variables: tuple[VariableOverflows, ...]
    last: Attribution | None

    @property
    def layer(self) -> str | None:
        """The layer to blame for the last overflow (see ``Attribution``)."""
        return None if self.last is None else self.last.layer

    @property
    def origin(self) -> str:
        return "unknown" if self.last is None else self.last.origin

    def __str__(self) -> str:
        skipped = "1 step skipped" if self.skipped == 1 else f"{self.skipped:,} steps skipped"
        if not self.variables:
            return f"{skipped}; no variable is known to have overflowed."
        width = max(len(v.path) for v in self.variables)
        lines = [
            f"{skipped}; last in {self.layer} (origin: {self.origin})",
            f"{'variable':<{width}}  {'times':>7}  {'first':>9}  {'last':>9}",
        ]
        lines += [
            f"{v.path:<{width}}  {v.count:>7,}  {v.first_step:>9,}  {v.last_step:>9,}"
            for v in self.variables
        ]
        return "\n".join(lines)


def overflow_report(
    skipped: int, counts: np.ndarray, paths: list[str], last: Attribution | None
) -> OverflowReport:
    """Args: counts: [3, variables]: how often, first and last step. paths: Of the variables."""
    hit = sorted(np.flatnonzero(counts[0]), key=lambda i: (-counts[0, i], i))
    rows = (VariableOverflows(paths[i], *(int(c) for c in counts[:, i])) for i in hit)
    return OverflowReport(skipped, tuple(rows), last)
