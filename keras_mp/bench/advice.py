"""From a trial's figures to words: what to switch to, what it gains, what holds it back."""

import math
from collections.abc import Sequence
from statistics import mean

from keras_mp.bench.estimate import disturbed, speedup_of
from keras_mp.bench.results import Advice, Split, Variant
from keras_mp.bench.text import per_second

# A gain that a user would notice, and that is not the machine's noise.
FASTER = 1.03
SMALLER = 0.9
# A share of a step from which on it limits what faster computing can gain.
INPUT_BOUND, OPTIMIZER_BOUND, OVERHEAD_BOUND = 0.25, 0.2, 0.3
# Losses of the last quarter of the steps may differ by this share of the loss's own scale.
LOSS_AGREES = 0.05
# Of two variants that are as fast, the one that needs less care.
_PREFERRED = ("planned", "mixed_bfloat16", "mixed_float16")
_AS_FAST = 0.97


def advise(
    variants: Sequence[Variant],
    batch: int,
    off_tiles: Sequence[tuple[str, str, int]] = (),
    on_cpu: bool = False,
) -> Advice:
    """The advice for a trial.

    Args:
        variants: float32 and the others.
        batch: Samples a batch.
        off_tiles: (path, argument, width) of the widths that are no multiple of 8.
        on_cpu: Whether it ran on a CPU, where multiples of 8 matter little.
    """
    base = next((v for v in variants if v.name == "float32"), None)
    if base is None or base.rate is None:
        why = base.error if base is not None else "it was not asked for"
        text = f"There is nothing to compare with: float32 has no figures ({why})."
        running = [v for v in variants if v.rate and v.name != "float32"]
        if base is None or not running:
            return Advice("float32", [("no-baseline", text)], text)
        best = max(running, key=lambda v: v.rate.median if v.rate else 0.0)
        rate = best.rate.median if best.rate else 0.0
        more = f"{best.name} does run, at {per_second(rate)} samples/s: use that."
        return Advice(best.name, [("no-baseline", text)], f"{text} {more}")
    rivals = [v for v in variants if v.name != "float32" and v.rate and v.speedup]
    sound = [v for v in rivals if losses_agree(base, v)]
    chosen = _choose(base, sound)
    shown = chosen or max(rivals, key=lambda v: _times(v), default=None)
    held = _held_back(base, shown, batch, off_tiles, on_cpu)
    busy = disturbed(speedup_of(base, shown)) if shown is not None else None
    if busy is not None:
        held.append(("busy", f"{busy[0].upper()}{busy[1:]}."))
    for variant in rivals:
        if variant not in sound:
            held.append(("losses", _losses_differ(base, variant)))
    for variant in variants:
        if variant.error and variant.name != "float32":
            held.append(("failed", f"{variant.name} failed: {variant.error.rstrip('.')}."))
    sentences = [
        _verdict(base, chosen, shown),
        *_memory_sentences(base, shown),
        *_amdahl(base, shown),
        *(sentence for _, sentence in held),
        *_loss_sentences(base, chosen),
    ]
    return Advice(chosen.name if chosen else "float32", held, " ".join(sentences))


def losses_agree(base: Variant, other: Variant) -> bool:
    """Whether a variant learns as float32 does, as far as so few steps tell.

    The mean of the last quarter of the losses, within 5 % of the larger of its size and of the
    range that the losses went through.
    """
    if not base.losses or not other.losses:
        return True
    count = max(1, min(len(base.losses), len(other.losses)) // 4)
    one, two = mean(base.losses[-count:]), mean(other.losses[-count:])
    if not math.isfinite(one):
        return True  # float32 does not learn either: nothing can be said of the other
    if not math.isfinite(two):
        return False
    finite = [loss for loss in base.losses if math.isfinite(loss)]
    scale = max(abs(one), max(finite) - min(finite))
    return abs(two - one) <= LOSS_AGREES * scale


def most_by_amdahl(split: Split) -> float:
    """How many times as fast a step would be if computing took no time at all."""
    rest = split.step - split.compute
    return math.inf if rest <= 0 else split.step / rest


def _times(variant: Variant) -> float:
    return variant.speedup.median if variant.speedup else 0.0


def _choose(base: Variant, sound: list[Variant]) -> Variant | None:
    faster = [v for v in sound if v.speedup and v.speedup.low > FASTER]
    if faster:
        best = max(map(_times, faster))
        near = [v for v in faster if _times(v) >= _AS_FAST * best]
        return min(near, key=lambda v: _PREFERRED.index(v.name))
    smaller = [
        v
        for v in sound
        if base.memory
        and v.memory
        and _times(v) >= _AS_FAST
        and v.memory.slope < SMALLER * base.memory.slope
    ]
    return min(smaller, key=lambda v: (v.memory.slope, _PREFERRED.index(v.name)), default=None)  # type: ignore[union-attr]


def _verdict(base: Variant, chosen: Variant | None, shown: Variant | None) -> str:
    if chosen is not None and chosen.speedup and chosen.rate and base.rate:
        asked = f" (a plan for {chosen.policy})" if chosen.name == "planned" else ""
        up = chosen.speedup
        if up.low > FASTER:
            return (
                f"Switch to {chosen.name}{asked}: {up.median:.2f} times as fast as float32 "
                f"({up.low:.2f} to {up.high:.2f}), {per_second(base.rate.median)} → "
                f"{per_second(chosen.rate.median)} samples/s."
            )
        return (
            f"Switch to {chosen.name}{asked} for its memory: it is as fast as float32 "
            f"within the spread ({up.median:.2f} times, {up.low:.2f} to {up.high:.2f})."
        )
    if shown is None or shown.speedup is None:
        return "Stay with float32: nothing else has figures."
    return (
        f"Stay with float32: the best of the others, {shown.name}, ran at "
        f"{shown.speedup.median:.2f} times its speed ({shown.speedup.low:.2f} to "
        f"{shown.speedup.high:.2f})."
    )


def _memory_sentences(base: Variant, shown: Variant | None) -> list[str]:
    if shown is None:
        return []
    if base.memory is None or shown.memory is None:
        why = shown.memory_unknown or base.memory_unknown
        return [f"Memory was not measured: {why}."] if why else []
    one, two = base.memory, shown.memory
    at = one.points[1][0]
    text = (
        f"A step on {at} samples takes {two.at(at) / one.at(at):.2f} of float32's memory "
        f"({two.what}), and {two.slope / one.slope:.2f} of it for each further sample"
        if one.slope
        else f"A step takes {two.at(at) / one.at(at):.2f} of float32's memory ({two.what})"
    )
    if one.largest_batch and two.largest_batch:
        text += (
            f"; the largest batch that fits goes from {one.largest_batch:,} to "
            f"{two.largest_batch:,}, with {two.headroom:.0%} left free"
        )
    return [text + "."]


def _amdahl(base: Variant, shown: Variant | None) -> list[str]:
    split = base.split
    if split is None or split.step <= 0:
        return []
    shares = ", ".join(
        f"{share / split.step:.0%} {name}"
        for name, share in (
            ("computing", split.compute),
            ("the optimizer", split.optimizer),
            ("waiting for input", split.input),
            ("fit's own", split.other),
        )
    )
    most = most_by_amdahl(split)
    limit = f"{most:.1f} times as fast at most" if most < 100 else "limited by nothing else"
    text = f"In float32 a step is {shares}: if computing took no time, it would be {limit}"
    if shown is not None and shown.split is not None and shown.split.compute > 0:
        factor = split.compute / shown.split.compute
        text += f"; in {shown.name} computing itself is {factor:.2f} times as fast"
    return [text + "."]


def _held_back(
    base: Variant,
    shown: Variant | None,
    batch: int,
    off_tiles: Sequence[tuple[str, str, int]],
    on_cpu: bool,
) -> list[tuple[str, str]]:
    held = []
    split = (shown.split if shown else None) or base.split
    if split is not None and split.step > 0:
        for code, share, limit, text in (
            (
                "input-bound",
                split.input,
                INPUT_BOUND,
                "of a step is waiting for data, which no precision makes faster: fetch ahead, or "
                "in more workers",
            ),
            (
                "optimizer-bound",
                split.optimizer,
                OPTIMIZER_BOUND,
                "of a step is the optimizer, which works in float32: a larger batch has fewer "
                "updates",
            ),
            (
                "overhead",
                split.other,
                OVERHEAD_BOUND,
                "of a step is the training loop's own: larger batches, or steps_per_execution on "
                "tensorflow and jax",
            ),
        ):
            if share / split.step >= limit:
                held.append((code, f"{share / split.step:.0%} {text}."))
    if shown is not None and shown.support in ("emulated", "slow", "none"):
        held.append(
            (shown.support, f"{shown.policy} is {shown.support} here: {shown.support_why}.")
        )
    if off_tiles and not on_cpu:
        some = ", ".join(f"{path} {name}={width}" for path, name, width in off_tiles[:4])
        more = f" and {len(off_tiles) - 4} more" if len(off_tiles) > 4 else ""
        held.append(("shapes", f"No multiple of 8, which tensor cores want: {some}{more}."))
    if batch % 8 and not on_cpu:
        held.append(("batch", f"The batch of {batch} is no multiple of 8."))
    return held


def _losses_differ(base: Variant, variant: Variant) -> str:
    return (
        f"After {len(variant.losses)} equal steps {variant.name}'s loss is "
        f"{variant.losses[-1]:.4g}, float32's {base.losses[-1]:.4g}: look into it before you "
        f"switch (keras-mp audit, keras-mp probe)."
    )


def _loss_sentences(base: Variant, chosen: Variant | None) -> list[str]:
    if chosen is None or not chosen.losses or not base.losses:
        return []
    return [
        f"After {len(chosen.losses)} equal steps the losses are {base.losses[-1]:.4g} (float32) "
        f"and {chosen.losses[-1]:.4g}; that is too short to judge learning by."
    ]
