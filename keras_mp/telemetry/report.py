"""All jobs of a folder at one moment, as a table for people and as JSON for programs."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from keras_mp.telemetry import format as fmt
from keras_mp.telemetry.health import EXIT_NOTHING, Verdict, exit_status, verdict
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.records import encode, plain

MAX_NAME = 60
LAST_OVERFLOWS = 10
_MARKS = {"ok": " ", "warning": "·", "error": "!"}
_SEVERITIES = ("error", "warning", "ok")


@dataclass(frozen=True)
class Report:
    """Every job with its verdict, the ones that need somebody first, then the latest started.

    Attributes:
        runs: The folder. error: Why there is nothing to show, in a sentence; None if there is.
    """

    runs: str
    jobs: tuple[tuple[Job, Verdict], ...]
    error: str | None

    @property
    def exit_status(self) -> int:
        return EXIT_NOTHING if self.error else exit_status(v for _, v in self.jobs)


class Runs(Protocol):
    """A RunsFolder, or what looks like one (runs of another machine)."""

    @property
    def path(self) -> Any: ...

    @property
    def error(self) -> str | None: ...

    @property
    def jobs(self) -> list[Job]: ...


def look(folder: Runs, now: float) -> Report:
    """Judge all jobs of ``folder`` (which has been polled) at ``now``."""
    judged = [(job, verdict(job, now)) for job in folder.jobs]
    judged.sort(key=lambda pair: _SEVERITIES.index(pair[1].severity))
    error = folder.error
    if error is None and not judged:
        error = f"no runs in {folder.path}"
    return Report(str(folder.path), tuple(judged), error)


def cells(job: Job, v: Verdict) -> dict[str, str]:
    """The columns of one job's row as text: header -> cell."""
    planned = f"/{fmt.goal(job.planned_steps)}" if job.planned_steps else ""
    step = f"{fmt.count(job.step)}{planned}" if job.step else fmt.UNKNOWN
    epoch = fmt.UNKNOWN
    if job.epoch is not None:
        total = job.meta.planned_epochs if job.meta else None
        epoch = f"{job.epoch + 1}/{total}" if total else str(job.epoch + 1)
    alive = job.end is None and v.state in ("running", "slow")
    row = {
        "job": fmt.fit(job.name, MAX_NAME),
        "state": v.state,
        "policy": job.policy or fmt.UNKNOWN,
        "epoch": epoch,
        "step": step,
        "loss": fmt.number(job.loss),
        "scale": fmt.power_of_two(job.scale),
        "skip": fmt.share(job.skipped_share),
        # The pace of a job that hangs or broke off is history, not a rate.
        "samples/s": fmt.count(job.samples_per_second if alive or v.state == "done" else None),
        "mem": fmt.size(job.memory_bytes),
        "ETA": fmt.duration(job.eta_seconds) if alive else fmt.UNKNOWN,
    }
    return row | {name: fmt.number(value, 3) for name, value in job.results.items()}


_LEFT = ("job", "state", "policy")


def as_table(report: Report, encoding: str | None = "utf-8") -> str:
    """The table, one job a line, and below it what is to be said about each that is not well.

    Args:
        encoding: What it is printed in. Where that lacks some of its signs they are written in
            ASCII, before the columns are laid out: ``2^15`` is wider than ``2¹⁵``.
    """
    table = _laid_out(report, str)
    try:
        table.encode(encoding or "ascii")
    except (UnicodeError, LookupError):
        return _laid_out(report, fmt.ascii_only)
    return table


def _laid_out(report: Report, say: Callable[[str], str]) -> str:
    rows = [{h: say(cell) for h, cell in cells(job, v).items()} for job, v in report.jobs]
    headers = list(dict.fromkeys(header for row in rows for header in row))
    widths = {
        h: max(fmt.width(say(h)), *(fmt.width(row.get(h, "")) for row in rows)) for h in headers
    }

    def line(mark: str, row: dict[str, str], missing: str) -> str:
        parts = [fmt.pad(row.get(h, missing), widths[h], right=h not in _LEFT) for h in headers]
        return f"{say(mark)} {'  '.join(parts)}".rstrip()

    out = [line(" ", {h: say(h) for h in headers}, "")]
    for (_, v), row in zip(report.jobs, rows, strict=True):
        out.append(line(_MARKS[v.severity], row, say(fmt.UNKNOWN)))
    out.append("")
    for job, v in report.jobs:
        text = f"{_MARKS[v.severity]} {fmt.fit(job.name, MAX_NAME)}: {v.sentence}"
        out.append(say(f"{text}. {v.advice}".rstrip() if v.advice else text))
    return "\n".join(out)


def as_json(report: Report) -> str:
    """The same as JSON (ASCII only; non-finite numbers are the strings nan, inf, -inf)."""
    content = {
        "runs": report.runs,
        "error": report.error,
        "exit_status": report.exit_status,
        "jobs": [describe(job, v) for job, v in report.jobs],
    }
    return json.dumps(plain(content), indent=1, allow_nan=False)


def describe(job: Job, v: Verdict) -> dict[str, Any]:
    """One job as plain data. What is not known is null."""
    meta, latest = job.meta, job.latest
    return {
        "name": job.name,
        "run_id": job.run_id,
        "state": v.state,
        "severity": v.severity,
        "scale_state": v.scale_state,
        "nan": v.nan,
        "sentence": v.sentence,
        "advice": v.advice,
        "findings": list(v.findings),
        "policy": job.policy,
        "backend": meta.backend if meta else None,
        "device": meta.device if meta else None,
        "host": meta.host if meta else None,
        "pid": meta.pid if meta else None,
        "step": job.step,
        "planned_steps": job.planned_steps,
        "epoch": job.epoch,
        "planned_epochs": meta.planned_epochs if meta else None,
        "loss": job.loss,
        "metrics": dict(latest.metrics) if latest else {},
        "scale": job.scale,
        "skipped": job.skipped,
        "skipped_share": job.skipped_share,
        "applied": latest.applied if latest else None,
        "samples_per_second": job.samples_per_second,
        "tokens_per_second": job.tokens_per_second,
        "input_share": job.input_share,
        "steps_per_second": job.steps_per_second,
        "useful_steps_per_second": job.useful_steps_per_second,
        "step_time_p50": latest.step_time_p50 if latest else None,
        "step_time_p95": latest.step_time_p95 if latest else None,
        "memory": encode(job.memory) if job.memory else None,
        "memory_bytes": job.memory_bytes,
        "eta_seconds": job.eta_seconds,
        "results": dict(job.results),
        "started": job.started,
        "last_time": job.last_time,
        "resumed": job.resumed,
        "overflows": job.overflow_count,
        "last_overflows": [encode(o) for o in list(job.overflows)[-LAST_OVERFLOWS:]],
        "ranks": sorted(job.ranks),
        "loading": job.loading,
        "problems": list(job.problems),
    }
