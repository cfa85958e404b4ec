"""The tables of ``gpu.py``: every line says which backend ran it, and on which device."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

BACKENDS = ("torch", "jax", "tensorflow")
MODELS = ("resnet50", "transformer", "demo")

Row = Mapping[str, Any]


def table(result: Row) -> str:
    """The tables, as Markdown."""
    rows, where = result["rows"], {}
    lines = [f"# {result['device']}", ""]
    if result["dry_run"]:
        lines += ["**A dry run: tiny models, two steps. Its figures mean nothing.**", ""]
    for backend in BACKENDS:
        of = result["about"].get(backend, {"why": "not installed, or not asked for"})
        if "why" in of:
            lines.append(f"- **{backend}: nothing ran: {of['why']}.**")
            continue
        where[backend] = f"{backend}, {of['device'].partition(' (')[0]}"
        lines.append(f"- {backend} {of['version']}, keras {of['keras']}, on {of['device']}.")
    speeds = [r for r in rows if r["piece"] in ("speed", "native")]
    lines += ["", *_speeds(speeds, where)]
    lines += ["", *_profiles([r for r in rows if r["piece"] == "profile"], where)]
    lines += ["", *_checks([r for r in rows if r["piece"] == "checks"], where)]
    for row in rows:
        lines += _said(row, where[row["backend"]])
    minutes = "" if result["done"] else " The program was ended before its end."
    return "\n".join([*lines, "", f"{result['seconds']:.0f} s in all.{minutes}"]) + "\n"


def _said(row: Row, where: str) -> Iterator[str]:
    """What has no table: Monitor's cost; what is missing."""
    if row["piece"] == "telemetry":
        yield ""
        if "error" in row:
            yield f"**Monitor, {where}: {row['error']}**"
        else:
            yield (
                f"Monitor, {where}: {row['ratio']:.3f} of the time without it ({row['low']:.3f} to "
                f"{row['high']:.3f}), at steps of {row['step_seconds'] * 1e3:.2f} ms."
            )
    if row["piece"] == "late":
        yield from ("", f"**No time was left, {where}, {row['of']}: {'; '.join(row['left'])}.**")
    if row["piece"] == "crash":
        yield ""
        yield (
            f"**The process of {where} ended with status {row['status']} in {row['of']}, row "
            f"{row['row']}; another one went on behind it.**"
        )


def _speeds(rows: Sequence[Row], where: Mapping[str, str]) -> Iterator[str]:
    base = {
        (r["backend"], r["model"], r["piece"]): r["samples_per_s"]
        for r in rows
        if r["precision"] == "float32" and "samples_per_s" in r
    }
    yield "| model | on | precision | by | batch | samples/s | × float32 | peak memory |"
    yield "|---|---|---|---|---|---|---|---|"
    order = {name: number for number, name in enumerate((*MODELS, *BACKENDS))}
    for row in sorted(
        rows, key=lambda r: (order[r["model"]], order[r["backend"]], r["piece"] == "native")
    ):
        on = where[row["backend"]]
        head = f"| {row['model']} | {on} | {row['precision']} | {row['whose']} |"
        if "error" in row:
            yield f"{head} – | {row['error']} | – | – |"
            continue
        one = base.get((row["backend"], row["model"], row["piece"]))
        times = "–" if one is None else f"{row['samples_per_s'] / one:.2f}"
        peak = "–" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.2f} GiB"
        yield f"{head} {row['batch']} | {row['samples_per_s']:,.5g} | {times} | {peak} |"


def _profiles(rows: Sequence[Row], where: Mapping[str, str]) -> Iterator[str]:
    yield "| the transformer's step | on | precision | kernel launches | host reads | operators |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        cells = ["–", "–", row["error"]] if "error" in row else [
            "–" if row[name] is None else f"{row[name]:.0f}"
            for name in ("launches", "reads", "operators")
        ]  # fmt: skip
        on = where[row["backend"]]
        yield f"| {row['whose']} | {on} | {row['precision']} | {' | '.join(cells)} |"


def _checks(rows: Sequence[Row], where: Mapping[str, str]) -> Iterator[str]:
    yield "| depends on kernels | on | | seen |"
    yield "|---|---|---|---|"
    for row in rows:
        verdict = row["verdict"] if row["verdict"] == "fine" else f"**{row['verdict']}**"
        yield f"| {row['check']} | {where[row['backend']]} | {verdict} | {row['seen']} |"
