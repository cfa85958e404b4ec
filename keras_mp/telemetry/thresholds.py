"""Every limit that a verdict depends on, with its reason: the one table.

from keras_mp.telemetry.thresholds import TABLE, as_text
print(as_text())
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    """One limit. name: as the constant below is called; unit: of ``value``."""

    name: str
    value: float
    unit: str
    reason: str


TABLE: dict[str, Threshold] = {}


def _limit(name: str, value: float, unit: str, reason: str) -> float:
    TABLE[name] = Threshold(name, value, unit, reason)
    return value


def _whole(name: str, value: int, unit: str, reason: str) -> int:
    TABLE[name] = Threshold(name, value, unit, reason)
    return value


# The job.
STALL_SECONDS = _limit(
    "STALL_SECONDS", 10.0, "seconds of silence",
    "a checkpoint or the start of a validation takes a while, however fast the steps are",
)  # fmt: skip
STALL_STEPS = _limit(
    "STALL_STEPS", 8.0, "of the job's own slow steps (95th percentile)",
    "a job with steps of a minute is not stalled after ten seconds",
)  # fmt: skip
STALL_GAPS = _limit(
    "STALL_GAPS", 3.0, "of the job's own usual silences (95th percentile)",
    "records come only every so many steps; longer than any silence so far, and then some",
)  # fmt: skip
START_SECONDS = _limit(
    "START_SECONDS", 900.0, "seconds before the first step",
    "there is no own pace yet: XLA may compile for minutes, data may be unpacked",
)  # fmt: skip
DEAD_SECONDS = _limit(
    "DEAD_SECONDS", 2.0, "seconds",
    "a process that is gone may have its last record on the way (a network file system, a relay)",
)  # fmt: skip
SLOW_FACTOR = _limit(
    "SLOW_FACTOR", 2.0, "× the run's own median step time",
    "less is what a shared machine does; twice as long is another job on the device, or the disk",
)  # fmt: skip
SLOW_RECENT = _whole(
    "SLOW_RECENT", 5, "windows of records",
    "the recent pace is their median: two odd windows do not decide",
)  # fmt: skip
SLOW_SECONDS = _limit(
    "SLOW_SECONDS", 10.0, "seconds, of the recent windows together",
    "windows of a few fast steps are over in a moment; what lasts no longer is no trouble",
)  # fmt: skip
SLOW_BEFORE = _whole(
    "SLOW_BEFORE", 20, "windows of records",
    "what the run's own pace is must have been seen first",
)  # fmt: skip

# The scale.
CALIBRATION_STEPS = _whole(
    "CALIBRATION_STEPS", 100, "steps from a fresh scale",
    "the search for the first scale: from 2**24 down to 2**-14 takes 38 halvings, and each may "
    "need a second look at another batch",
)  # fmt: skip
COLLAPSE_RUN = _whole(
    "COLLAPSE_RUN", 8, "skipped steps in a row",
    "eight halvings take the scale down 256-fold, while the gradients of neighbouring batches "
    "seldom differ by more than a few powers of two",
)  # fmt: skip
CALIBRATION_FLOOR = _limit(
    "CALIBRATION_FLOOR", 1.0, "the loss scale",
    "while the first scale is sought a long run of skips is normal (2**32 is Megatron's start); "
    "not below 1, where a scale takes from float16's range instead of adding to it",
)  # fmt: skip
THRASH_BACKOFFS = _whole(
    "THRASH_BACKOFFS", 3, "backoffs within one growth interval",
    "one is the rule, two may be two odd batches; with three the scale was cut twice before it "
    "could have grown once",
)  # fmt: skip
EXHAUSTED_RUN = _whole(
    "EXHAUSTED_RUN", 3, "skipped steps in a row at the smallest scale",
    "where the journal does not say the optimizer's own `exhausted_after`, which is this",
)  # fmt: skip
STATIC_WARNING = _limit(
    "STATIC_WARNING", 0.01, "of the steps skipped",
    "a static scale cannot adapt; one skip in a hundred costs a hundredth of the training",
)  # fmt: skip
STATIC_ERROR = _limit(
    "STATIC_ERROR", 0.10, "of the steps skipped",
    "a tenth of the training is lost, and the batches with the largest gradients with it",
)  # fmt: skip
STATIC_SKIPS = _whole(
    "STATIC_SKIPS", 3, "skipped steps",
    "one of the first two steps is half of them all and says nothing yet",
)  # fmt: skip
STATIC_WINDOW = _whole(
    "STATIC_WINDOW", 1000, "steps",
    "what is skipped now counts, however good the run was before",
)  # fmt: skip
DEFAULT_INTERVAL = _whole(
    "DEFAULT_INTERVAL", 2000, "steps",
    "growth interval where the journal does not say: Keras' own default",
)  # fmt: skip

# The numbers.
LOST_WARNING = _limit(
    "LOST_WARNING", 0.10, "of the gradients that are not zero",
    "nets that train without scaling lose below 1 %; 5 % of a speech net's weight gradients "
    "mattered, and 67 % zeros made SSD diverge (Micikevicius et al. 2018)",
)  # fmt: skip
OVERFLOW_WARNING = _limit(
    "OVERFLOW_WARNING", 0.0, "of a layer's outputs",
    "a single infinite value makes the loss infinite, and no loss scale acts on outputs",
)  # fmt: skip


def as_text() -> str:
    """The table for people: a line a limit."""
    return "\n".join(f"{t.name:<18} {t.value:>8g} {t.unit}: {t.reason}" for t in TABLE.values())
