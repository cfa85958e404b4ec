"""What a run's numbers advise: a static scale, a dynamic setting, layers to keep in float32.

    from keras_mp.numerics.suggest import suggest
    print(suggest("runs/digits"))

Backend-free. From the exponent histograms that ``Monitor(numerics=...)`` wrote it follows what
float16 would lose at any scale; from the skipped steps, what another rule would have wasted.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from keras_mp.numerics.formats import FORMATS
from keras_mp.numerics.rows import Row, in_half, largest_scale
from keras_mp.scaling.state import ScaleConfig

if TYPE_CHECKING:
    from keras_mp.telemetry.jobs import Job
    from keras_mp.telemetry.records import Numerics

# Smallest and largest power of two that is considered, as ScaleConfig's own limits.
_SMALLEST, _LARGEST = -14, 40
# Scales that lose no more than this above the least are as good: a thousandth of the gradients.
AS_GOOD = 0.001
# Doublings kept free above the largest gradient seen: other batches have larger ones.
MARGIN = 2
# A layer that still loses this share of its gradients at the best scale is better off in float32.
LAYER_LOSES = 0.10
# ... and one that made so many of the overflows, where there were some.
LAYER_OVERFLOWS, MIN_OVERFLOWS = 0.5, 3
# A setting that wastes this share of the steps is no advice.
HOPELESS = 0.5
_INTERVALS = (100, 200, 500, 1000, 2000, 5000)


@dataclass(frozen=True)
class ScaleRange:
    """Static scales, powers of two, from the looks at a run.

    Attributes:
        low: The smallest that loses (nearly) least. high: The largest with which nothing that was
            seen overflows. best: Between them, with room on both sides.
        lost: Share of the non-zero activation gradients that ``best`` loses.
        lost_unscaled: The same without a scale.
    """

    low: float
    high: float
    best: float
    lost: float
    lost_unscaled: float


@dataclass(frozen=True)
class KeepLayer:
    """A layer to keep in float32. path: As ``keras_mp.plan`` has it. why: In a sentence."""

    path: str
    why: str


@dataclass(frozen=True)
class Dynamic:
    """A setting of the dynamic scale. wasted, share: Of the run's steps, by replay."""

    config: ScaleConfig
    wasted: int
    share: float
    recorded: int


@dataclass(frozen=True)
class Suggestion:
    """What a run's numbers advise; what they do not tell is None.

    Attributes:
        run: Its name. looks: How many looks at its numbers there were.
        static, dynamic: Scales. layers: To keep in float32.
        notes: What stands behind it or is missing, in sentences.
    """

    run: str
    looks: int
    static: ScaleRange | None
    dynamic: Dynamic | None
    layers: tuple[KeepLayer, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        from keras_mp.numerics.suggest_text import as_text

        return as_text(self)


def scale_range(looks: Sequence[Sequence[Row]]) -> ScaleRange | None:
    """The static scales that suit all looks; None without a finite, non-zero gradient.

    Args:
        looks: For each look its gradients' rows (activation and weight gradients).
    """
    limit = min((largest_scale(rows) for rows in looks), default=0.0)
    gradients = [[row for row in rows if row.tensor == "gradient"] or list(rows) for rows in looks]
    if not 0 < limit < math.inf:
        return None
    top = max(_SMALLEST, min(_LARGEST, math.floor(math.log2(limit))))
    # The look that loses most decides: small gradients come late in a training.
    curves = [_lost_by_power(rows) for rows in gradients]
    lost = {power: max(curve(power) for curve in curves) for power in range(_SMALLEST, top + 1)}
    low = min(power for power, share in lost.items() if share <= lost[top] + AS_GOOD)
    best = round((low + max(low, top - MARGIN)) / 2)
    unscaled = max(curve(0) for curve in curves)
    return ScaleRange(2.0**low, 2.0**top, 2.0**best, lost[best], unscaled)


def _lost_by_power(rows: Sequence[Row]) -> Callable[[int], float]:
    """Power of two -> share of the rows' non-zero values that float16 loses at that scale."""
    counts: Counter[int] = Counter()
    for row in rows:
        counts.update(row.histogram.exponents)
    total = sum(counts.values())
    first_kept = math.log2(FORMATS["float16"].zero_below)

    def lost(power: int) -> float:
        if not total:
            return 0.0
        return sum(n for exponent, n in counts.items() if exponent + power < first_kept) / total

    return lost


def best_scale(rows: Sequence[Row]) -> float | None:
    """``scale_range(...).best`` of one look's gradients."""
    found = scale_range([rows])
    return None if found is None else found.best


def suggest(run: object, meta: object = None) -> Suggestion:
    """Advice from a run's records.

    Args:
        run: Folder of the run (such as "runs/digits"), its records in order, or a Job (which knows
            the last look alone).
        meta: ``meta.json``'s content, with records.

    Raises:
        ValueError: There is no such run, or it tells neither numbers nor skipped steps.
    """
    from keras_mp.numerics.suggest_from import material

    job, numerics = material(run, meta)
    looks = _looks(numerics)
    gradients = [[r for r in rows if r.tensor != "activation"] for rows in looks]
    gradients = [rows for rows in gradients if rows]
    static = scale_range(gradients) if gradients else None
    dynamic = _dynamic(job, static)
    notes = _notes(job, looks, static)
    if dynamic is not None and dynamic.share >= HOPELESS:
        notes = (*notes, "no setting of the scale would have wasted less than half of the steps")
        dynamic = None
    elif not looks and dynamic is None:
        raise ValueError(
            "The run tells neither numbers nor single steps of a loss scale. Expected a run of "
            f"Monitor(numerics=True) or of keras_mp.LossScaleOptimizer. Received: {job.name!r}"
        )
    layers = _layers(job, looks, static)
    return Suggestion(job.name, len(looks), static, dynamic, layers, notes)


def _looks(numerics: "Iterable[Numerics]") -> list[list[Row]]:
    by_step: dict[int, list[Row]] = {}
    for record in numerics:
        by_step.setdefault(record.step, []).append(Row.of_record(record))
    return [in_half(by_step[step]) for step in sorted(by_step)]


def _dynamic(job: "Job", static: ScaleRange | None) -> Dynamic | None:
    """Of the usual settings, started where the numbers say, the one that wastes least."""
    from keras_mp.telemetry.history import history_of
    from keras_mp.telemetry.replay import what_if

    try:
        history = history_of(job)
    except ValueError:
        return None
    if history.config is None and static is None:
        return None
    own = history.config if history.config is not None and history.config.dynamic else None
    base = own or ScaleConfig()
    starts = [base.initial_scale]
    if static is not None:
        starts = [static.best, static.high / 2.0**MARGIN, static.low]
    elif history.skipped:
        # Without numbers only a scale that the run has borne for long is known to be of use.
        starts.append(float(np.median(history.scales)))
    found: list[tuple[tuple, Dynamic]] = []
    for place, wanted in enumerate(starts):
        start = min(max(wanted, base.min_scale), base.max_scale)
        for interval in sorted({*_INTERVALS, base.growth_interval}):
            config = replace(base, initial_scale=start, growth_interval=interval)
            outcome = what_if(history, config)
            # Of two that waste as much, the one that changes least, then the one that adapts sooner
            order = (outcome.wasted, place, interval != base.growth_interval, interval)
            found.append((order, Dynamic(config, outcome.wasted, outcome.share, history.skipped)))
    return min(found, key=lambda pair: pair[0])[1]


def _layers(
    job: "Job", looks: Sequence[Sequence[Row]], static: ScaleRange | None
) -> tuple[KeepLayer, ...]:
    keep: dict[str, str] = {}
    for rows in looks:
        for row in rows:
            told = row.shares("float16")
            if row.tensor == "activation" and told.overflow > 0:
                keep.setdefault(row.layer, "its outputs leave float16's range (65,504)")
            elif row.tensor == "gradient" and static is not None:
                lost = row.shares("float16", static.best).lost_of_nonzero
                if lost > LAYER_LOSES:
                    keep.setdefault(
                        row.layer,
                        f"at the best scale float16 still loses {lost:.0%} of its gradients",
                    )
    overflows = [o for o in job.overflows if o.layer and o.origin != "loss"]
    if len(overflows) >= MIN_OVERFLOWS and _is_in_trouble(job):
        layer, times = Counter(str(o.layer) for o in overflows).most_common(1)[0]
        if times >= LAYER_OVERFLOWS * len(overflows):
            # Named by variables' paths, which begin with the model's name; plans do not.
            model = job.meta.model if job.meta else None
            path = layer.removeprefix(f"{model}/") if model else layer
            keep.setdefault(path, f"{times} of {len(overflows)} overflows began there")
    return tuple(KeepLayer(path, why) for path, why in keep.items())


def _is_in_trouble(job: "Job") -> bool:
    """By more than a scale that is too large and cannot move."""
    from keras_mp.telemetry.scale_health import scale_verdict

    told = scale_verdict(job)
    return told.severity != "ok" and told.state != "static"


def _notes(
    job: "Job", looks: Sequence[Sequence[Row]], static: ScaleRange | None
) -> tuple[str, ...]:
    notes = []
    if not looks:
        notes.append("the run has no numerics: what is lost below float16 is not known")
    elif static is None:
        notes.append("no look found a gradient that is finite and not zero")
    if job.policy not in (None, "mixed_float16", "float16"):
        notes.append(f"the run computes in {job.policy}; the scales are for float16")
    return tuple(notes)
