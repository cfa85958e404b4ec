"""A job's verdict on itself, while it trains: an alert when something begins to go wrong, or ends.

The same judgement that the dashboard makes (``health.py``), on the records that the job has just
written, at each look: a record for the journal, and a call of the user's hook.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable

from keras_mp.telemetry.health import Finding, own_findings
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.records import Alert, Meta, Record
from keras_mp.telemetry.scale_health import Severity
from keras_mp.telemetry.series import Series

log = logging.getLogger("keras_mp")

OnAlert = Callable[[Alert], None]

# What a job can tell of itself. A process that hangs or dies says nothing; others see that.
CODES = frozenset(
    {
        *("nan", "slow", "unscaled", "lost", "outputs"),
        *("thrashing", "collapsing", "exhausted", "static"),
    }
)
# The same trouble, coming and going, is told again after this long at the soonest.
AGAIN_SECONDS = 60.0
# The job's own memory of itself stays small, however long it runs.
MAX_POINTS, MAX_OVERFLOWS = 4096, 4096
_RANK: dict[Severity, int] = {"ok": 0, "warning": 1, "error": 2}


class Alerts:
    """Folds what one job writes, and says what has changed.

    Attributes:
        active: Code -> severity, of what is wrong now.
    """

    def __init__(self, meta: Meta):
        self._job = Job(meta.run_id)
        self._job.meta = meta
        self._job.series = Series("loss", MAX_POINTS)
        self._job.scales = Series("scale", MAX_POINTS)
        self._job.memories = Series("device_peak", MAX_POINTS)
        self._job.overflows = deque(maxlen=MAX_OVERFLOWS)
        self.active: dict[str, Severity] = {}
        self._told: dict[str, float] = {}

    def see(self, record: Record) -> None:
        """The job has written this."""
        self._job.apply(record)

    def news(self, now: float) -> list[Alert]:
        """Alerts since the last call: what began, what got worse, what is over.

        Args:
            now: Seconds since the epoch.
        """
        found = {f.code: f for f in _own(own_findings(self._job))}
        out = [self._alert(f, now) for f in found.values() if self._is_news(f, now)]
        over = [code for code in self.active if code not in found and code in self._told]
        out += [
            Alert(
                step=self._job.step,
                time=now,
                severity="info",
                code=code,
                message=f"{code}: over since step {self._job.step:,}",
            )
            for code in over
        ]
        self.active = {code: f.severity for code, f in found.items()}
        return out

    def _is_news(self, finding: Finding, now: float) -> bool:
        before = self.active.get(finding.code)
        if before is not None and _RANK[finding.severity] <= _RANK[before]:
            return False
        told = self._told.get(finding.code)
        worse = before is not None
        return worse or told is None or now - told >= AGAIN_SECONDS

    def _alert(self, finding: Finding, now: float) -> Alert:
        self._told[finding.code] = now
        return Alert(
            step=self._job.step,
            time=now,
            severity="error" if finding.severity == "error" else "warning",
            code=finding.code,
            message=f"{finding.sentence}. {finding.advice}".rstrip(),
        )


def _own(found: Iterable[Finding]) -> Iterable[Finding]:
    return (f for f in found if f.code in CODES and f.severity != "ok")


def call_hook(hook: OnAlert | None, alert: Alert, said: set[str]) -> None:
    """The user's hook; an exception in it is said once (``said`` remembers) and stops nothing."""
    if hook is None:
        return
    try:
        hook(alert)
    except Exception as error:
        if "on_alert" not in said:
            said.add("on_alert")
            log.warning(
                "keras-mp telemetry: on_alert raised %s: %s. Training goes on; the alert is in "
                "the journal.",
                type(error).__name__,
                error,
            )
