"""How fast a job is, how far it has come and how long it still takes: from its last windows."""

import math

import numpy as np

from keras_mp.telemetry import records as r
from keras_mp.telemetry.series import Series


class Rank:
    """The latest of one process of a job (the others of a data-parallel job beside rank 0)."""

    def __init__(self, rank: int):
        self.rank = rank
        self.step = 0
        self.time: float | None = None
        self.pid: int | None = None
        self.samples_per_second: float | None = None
        self.memory: r.Memory | None = None
        self.end: r.End | None = None


class Rates:
    """The part of ``jobs.Job`` that looks at the pace; it owns nothing."""

    meta: r.Meta | None
    latest: r.Step | None
    end: r.End | None
    step: int
    series: Series
    ranks: dict[int, Rank]
    _lead: int | None
    _begun_at: int | None

    @property
    def skipped(self) -> int | None:
        """Steps skipped over the optimizer's life."""
        return self.latest.skipped if self.latest else None

    @property
    def skipped_share(self) -> float | None:
        """Skipped of all attempted steps, 0 to 1."""
        skipped, step = self.skipped, self.step
        if skipped is None or not step:
            return None
        applied = self.latest.applied if self.latest else None
        total = skipped + applied if applied is not None else step
        return min(1.0, skipped / total) if total else None

    @property
    def samples_per_second(self) -> float | None:
        """Of the last windows (median of five), all ranks together."""
        rates = [x for x in self.series["samples_per_second"][-5:] if math.isfinite(x)]
        if not rates:
            return None
        own = sorted(rates)[len(rates) // 2]
        others = [rank for n, rank in self.ranks.items() if n != self._lead]
        return own + sum(rank.samples_per_second or 0.0 for rank in others)

    @property
    def steps_per_second(self) -> float | None:
        """Of the last windows (median of five), the lead rank's."""
        rates = [x for x in self.series["steps_per_second"][-5:] if math.isfinite(x)]
        return sorted(rates)[len(rates) // 2] if rates else None

    @property
    def useful_steps_per_second(self) -> float | None:
        """Recent steps a second without the skipped ones."""
        rate, skipped, step = self.steps_per_second, self.series["skipped"], self.series["step"]
        if rate is None:
            return None
        # Over the windows that the rate is of; a restart may have set the count back.
        first = max(0, len(step) - 6)
        steps = step[-1] - step[first]
        lost = skipped[-1] - skipped[first] if steps else math.nan
        share = lost / steps if lost >= 0 else self.skipped_share or 0.0
        return rate * (1.0 - min(1.0, share))

    @property
    def tokens_per_second(self) -> float | None:
        """Of the last windows (median of five), the lead rank's; None without integer sequences."""
        rates = [x for x in self.series["tokens_per_second"][-5:] if math.isfinite(x)]
        return sorted(rates)[len(rates) // 2] if rates else None

    @property
    def input_share(self) -> float | None:
        """Share of the recent time that the job waited for its batches, 0 to 1 (median of five
        windows); None where that cannot be seen."""
        shares = [x for x in self.series["input_share"][-5:] if math.isfinite(x)]
        return sorted(shares)[len(shares) // 2] if shares else None

    @property
    def planned_steps(self) -> int | None:
        meta = self.meta
        if meta is None:
            return None
        if meta.planned_steps is not None:
            return meta.planned_steps
        if meta.planned_epochs is not None and meta.steps_per_epoch is not None:
            return meta.planned_epochs * meta.steps_per_epoch
        return None

    @property
    def progress(self) -> float | None:
        """Share of the planned steps done, 0 to 1."""
        planned = self.planned_steps
        return min(1.0, self.step / planned) if planned else None

    @property
    def eta_seconds(self) -> float | None:
        """Seconds of work left at the recent rate; None when ended or not known."""
        planned, rate = self.planned_steps, self.wall_steps_per_second
        if planned is None or not rate or self.end is not None:
            return None
        return max(0.0, (planned - self.step) / rate)

    @property
    def wall_steps_per_second(self) -> float | None:
        """Recent steps by the wall clock, validation and checkpoints included (for the ETA).

        Of this start alone: the pause before a job was resumed is no pace. Where the clock was set
        back, the step itself counts no time.
        """
        step, time = self.series["step"][-100:], self.series["time"][-100:]
        if self._begun_at is not None:
            own = int(np.searchsorted(step, self._begun_at, side="right"))
            step, time = step[own:], time[own:]
        passed = float(np.clip(np.diff(time), 0.0, None).sum()) if len(time) > 1 else 0.0
        if not passed > 0:
            return self.steps_per_second
        return float((step[-1] - step[0]) / passed)
