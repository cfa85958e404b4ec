"""A trial as text: a table, then the advice, wrapped to the terminal's width."""

import shutil
import textwrap

from keras_mp.bench.results import Spread, Trial, Variant

_HEAD = ("", "samples/s", "", "× float32", "memory", "largest batch", "loss", "skipped")


def as_text(trial: Trial, width: int | None = None) -> str:
    """The table and the advice.

    Args:
        width: Columns; the terminal's by default.
    """
    width = width or min(shutil.get_terminal_size((100, 24)).columns, 100)
    threads = f", {trial.threads} threads" if trial.threads and trial.threads > 1 else ""
    lines = [
        f"{trial.model}: {trial.parameters:,} parameters, batch {trial.batch_size}, "
        f"data {trial.data}",
        f"{trial.backend} on {trial.device}{threads}; {trial.rounds} interleaved "
        f"round{'s' * (trial.rounds != 1)} of {trial.steps} steps, median and quartiles",
        "",
        *_table([_HEAD, *(_row(variant, trial) for variant in trial.variants)]),
        "",
    ]
    if any(v.memory for v in trial.variants):
        what = next(v.memory.what for v in trial.variants if v.memory)
        lines.append(f"memory: {what}, at batch {_at(trial)}")
    for variant in trial.variants:
        if variant.split is not None:
            split = variant.split
            lines.append(
                f"{variant.name}: a step of {duration(split.step)} is computing "
                f"{duration(split.compute)}, optimizer {duration(split.optimizer)}, input "
                f"{duration(split.input)}, fit's own {duration(split.other)}"
            )
    for note in trial.notes:
        lines.append(f"note: {note}")
    paragraph = textwrap.fill(trial.advice.paragraph, width)
    return "\n".join([*lines, "", paragraph])


def _row(variant: Variant, trial: Trial) -> tuple[str, ...]:
    name = variant.name
    if variant.rate is None:
        return (name, "–", variant.error or "", "", "", "", "", "")
    up = variant.speedup
    memory = variant.memory
    return (
        name,
        per_second(variant.rate.median),
        _range(variant.rate),
        "1.00" if up is None else f"{up.median:.2f} ({up.low:.2f}–{up.high:.2f})",
        "–" if memory is None else size(memory.at(_at(trial))),
        "–" if memory is None or memory.largest_batch is None else f"{memory.largest_batch:,}",
        f"{variant.losses[-1]:.4g}" if variant.losses else "–",
        str(variant.skipped),
    )


def _at(trial: Trial) -> int:
    """The batch size whose memory is shown: the middle one of those measured."""
    return next((v.memory.points[1][0] for v in trial.variants if v.memory), trial.batch_size)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows if row[1] != "–") for i in range(len(_HEAD))]
    lines = []
    for row in rows:
        if row[1] == "–":  # a variant without figures: its error takes the rest of the line
            lines.append(f"{row[0].ljust(widths[0])}  {row[2]}")
            continue
        first, *cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([row[0].ljust(len(first)), *cells]).rstrip())
    return lines


def _range(spread: Spread) -> str:
    return f"{per_second(spread.low)}–{per_second(spread.high)}"


def per_second(rate: float) -> str:
    """Four digits, or all before the point: 83.25, 13,374."""
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}"


def duration(seconds: float) -> str:
    """Seconds in the unit that fits: 12.5 ms."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def size(count: float) -> str:
    """Bytes in the unit that fits: 61.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000
    return ""
