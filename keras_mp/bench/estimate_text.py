"""Estimates as lines for a person, at most 100 columns wide."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from keras_mp.bench.estimate import Hours, Overall, Range, TrialSpeedup
from keras_mp.bench.footprint import PARTS, RECIPES, Footprint
from keras_mp.bench.published import Published, Row
from keras_mp.bench.results import Memory
from keras_mp.telemetry.format import count, pad, share, size

WIDTH = 100
TRY_IT = "A speed-up is a guess until it is measured: try a short run, keras-mp bench MODEL."
TRY_YOURS = "Other people's code and data: try a short run of yours, keras-mp bench MODEL."

# One sign a part of the memory, and the letter for terminals without Unicode.
_SIGNS = dict(zip(PARTS, "█▓▒░·", strict=True))
_LETTERS = {name: name[0] for name in PARTS}
BAR = 48


def times(value: Range) -> str:
    """``2.1×``, or ``1.85× (1.8–1.91)`` for a range with a middle."""
    if value.is_point:
        return f"{value.low:.3g}×"
    ends = f"{value.low:.3g}–{value.high:.3g}"
    return f"{ends}×" if value.middle is None else f"{value.middle:.3g}× ({ends})"


def hours(value: Range) -> str:
    """``47.6 h``, or ``54.1 h (52.4–55.6)``."""
    if value.is_point:
        return f"{_hours(value.low)} h"
    ends = f"{_hours(value.low)}–{_hours(value.high)}"
    return f"{ends} h" if value.middle is None else f"{_hours(value.middle)} h ({ends})"


def _hours(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def saved(of: Hours) -> str:
    """``52.4 h (52 %) less``, or ``25 h (25 %) more`` where it gets slower."""
    low, high = of.saved.low, of.saved.high
    if low == high == 0:
        return "nothing saved"
    if low < 0 < high:
        return f"between {_hours(-low)} h more and {_hours(high)} h less"
    word = "less" if high > 0 else "more"
    ends = sorted((abs(low), abs(high)))
    amounts = list(dict.fromkeys(_hours(end) for end in ends))
    shares = list(dict.fromkeys(share(end / of.before) for end in ends))
    return f"{'–'.join(amounts)} h ({'–'.join(s.removesuffix(' %') for s in shares)} %) {word}"


def from_to(of: Hours) -> str:
    return f"{_hours(of.before)} h → {hours(of.after)}, {saved(of)}"


def limits(overall: Overall) -> str:
    """What holds a step back, as a sentence without its full stop."""
    if overall.held_back_by is None:
        return "nothing but arithmetic was in the split"
    name, part = overall.held_back_by
    name = {"other": "fit's own part"}.get(name, name)  # so a trial calls what is left
    return (
        f"{name} takes {share(part)} of a step and gets no faster: "
        f"{overall.limit:.3g}× is the most that faster arithmetic can give"
    )


def trial_lines(ups: Sequence[TrialSpeedup], results: Mapping[str, Hours]) -> list[str]:
    lines = []
    longest = max(len(up.name) for up in ups)
    for up in ups:
        after = f"   {from_to(results[up.name])}" if up.name in results else ""
        lines.append(f"  {pad(up.name, longest)}  {times(up.speedup)}{after}")
    split = next((up.overall for up in ups if up.overall is not None), None)
    if split is not None:  # of float32's step, and so the same for all
        lines.append(limits(split))
    return lines


def published_lines(found: Published) -> list[str]:
    """The figures with their sources: those of the model asked for first."""
    lines = []
    for number, row in enumerate(found.rows):
        if number == found.exact:
            lines.append(f"and of other models ({found.rows[-1].card}):")
        lines += _row(row)
    return lines


def _row(row: Row) -> Iterable[str]:
    cards = f"{row.gpus} × " if row.gpus > 1 else ""
    batch = f", batch {row.batch}" if row.batch else ""
    yield f"  {row.speedup:>5.3g}×  {row.model}, {row.framework}, {cards}{row.hardware}{batch}"
    yield (
        f"          {_rate(row.baseline)} → {_rate(row.mixed)} {row.unit}, "
        f"{row.baseline_precision} → {row.mixed_precision}"
    )
    yield f"          {row.source}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def memory_lines(
    by_batch: Mapping[int, Mapping[str, Footprint]],
    largest: Mapping[str, int] | None,
    budget: float | None,
    unicode: bool,
) -> list[str]:
    """A table with a stacked bar for each policy and batch size.

    Args:
        by_batch: Batch size -> recipe -> bytes. largest: Recipe -> largest batch within ``budget``.
    """
    signs = _SIGNS if unicode else _LETTERS
    top = max(f.total for of in by_batch.values() for f in of.values())
    wide = max(len(RECIPES[name].title) for name in RECIPES) + 2
    head = "".join(pad(part, 13, right=True) for part in (*PARTS, "total"))
    lines = []
    for batch, of in by_batch.items():
        lines.append(pad(f"batch {batch}", wide) + head)
        for name, each in of.items():
            cells = [size(value) for value in (*each.parts().values(), each.total)]
            row = "".join(pad(f" {cell}", 13, right=True) for cell in cells)
            lines.append(pad(RECIPES[name].title, wide) + row)
        lines.append("")
    lines.append("  ".join(f"{sign} {part}" for part, sign in signs.items()))
    for batch, of in by_batch.items():
        for name, each in of.items():
            label = pad(f"{batch} {RECIPES[name].title}", wide + 5)
            lines.append(f"{label}{bar(each, top, BAR, signs)} {size(each.total)}")
    if largest is not None:
        fits = ", ".join(
            f"{RECIPES[name].title} {count(b) if b else 'none'}" for name, b in largest.items()
        )
        lines += ["", f"largest batch within {size(budget)}, a tenth of it left free: {fits}"]
    return lines


def measured_memory(measured: Mapping[str, Memory], batches: Sequence[int]) -> list[str]:
    """What a trial's measured lines say for these batch sizes, with a bar each."""
    what = next(iter(measured.values())).what
    longest = max(len(name) for name in measured)
    top = max(of.at(batch) for of in measured.values() for batch in batches)
    lines = [f"memory of a step, measured ({what}):"]
    for batch in batches:
        for name, of in measured.items():
            cells = max(1, round(of.at(batch) / top * BAR))
            lines.append(f"  {batch:>6} {pad(name, longest)} {'=' * cells} {size(of.at(batch))}")
    return lines


def bar(of: Footprint, top: float, cells: int, signs: Mapping[str, str]) -> str:
    """A stacked bar: ``cells`` long for ``top`` bytes. Each part ends where its sum rounds to."""
    out, before, done = "", 0, 0
    for part, value in of.parts().items():
        before += value
        end = round(before / top * cells)
        out += signs[part] * (end - done)
        done = end
    return out


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH)
