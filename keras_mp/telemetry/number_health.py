"""What a job's ``numerics`` records say against it, in words. Backend-free."""

import math
from weakref import WeakKeyDictionary

from keras_mp.numerics.rows import Row, in_half, largest_scale, lost_share
from keras_mp.numerics.suggest import best_scale
from keras_mp.telemetry.format import power_of_two, share
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.thresholds import LOST_WARNING, OVERFLOW_WARNING

_HALF = ("mixed_float16", "float16")
_FOUND: "WeakKeyDictionary[Job, tuple[tuple, list[tuple[str, str, str]]]]" = WeakKeyDictionary()


def number_findings(job: Job) -> list[tuple[str, str, str]]:
    """(code, sentence, advice) of each thing that is not well; all of one look, the last."""
    if job.policy not in _HALF or not job.numerics:
        return []
    last = max(record.step for record in job.numerics.values())
    records = [n for n in job.numerics.values() if n.step == last]
    # Asked many times a second, and the answer changes with each look alone.
    key = (last, len(records), records[-1].time)
    known = _FOUND.get(job)
    if known is None or known[0] != key:
        rows = in_half(Row.of_record(n) for n in records)
        known = _FOUND[job] = (key, [*_lost(rows), *_outputs(rows)])
    return list(known[1])


def _lost(rows: list[Row]) -> list[tuple[str, str, str]]:
    gradients = [row for row in rows if row.tensor == "gradient"]
    if not gradients:
        return []
    scale = gradients[-1].scale
    lost = lost_share(gradients, "float16", scale)
    if lost is None or lost <= LOST_WARNING:
        return []
    worst = max(gradients, key=lambda row: row.shares("float16").lost_of_nonzero)
    sentence = (
        f"float16 loses {share(lost)} of the gradients that are not zero at scale "
        f"{power_of_two(scale)}, most in {worst.layer}"
    )
    better = best_scale([row for row in rows if row.tensor != "activation"])
    if better is None or better <= scale:
        return [
            ("lost", sentence, "No larger scale fits: keep the layers nearest the loss in float32.")
        ]
    kept = lost_share(gradients, "float16", better)
    fits = largest_scale([row for row in rows if row.tensor != "activation"])
    advice = (
        f"A scale of {power_of_two(better)} would lose {share(kept)} (overflow begins above "
        f"{power_of_two(_power_below(fits))})."
    )
    return [("lost", sentence, advice)]


def _power_below(scale: float) -> float:
    return 2.0 ** math.floor(math.log2(scale)) if 0 < scale < math.inf else scale


def _outputs(rows: list[Row]) -> list[tuple[str, str, str]]:
    over = [
        row
        for row in rows
        if row.tensor == "activation" and row.shares("float16").overflow > OVERFLOW_WARNING
    ]
    if not over:
        return []
    names = ", ".join(row.layer for row in over[:3]) + (" and others" if len(over) > 3 else "")
    return [
        (
            "outputs",
            f"outputs of {names} overflow float16, which no loss scale changes",
            f"Keep {'it' if len(over) == 1 else 'them'} in float32: keras_mp.plan(model, "
            "'mixed_float16', data=batch) does.",
        )
    ]
