"""What is to be said about the selected job: the verdict, what to do, and the facts beside it."""

import textwrap
from collections.abc import Sequence

from keras_mp.telemetry.format import duration, number, share, whole
from tui.drawing.roles import Role, Row
from tui.drawing.text import fit
from tui.job_cells import elapsed, epoch_text
from tui.snapshot import JobView
from tui.widgets.job_lines import JobLines

_ROLE: dict[str, Role] = {"ok": "text", "warning": "warn", "error": "bad"}


class VerdictLine(JobLines):
    def rows(self, width: int, height: int) -> Sequence[Row]:
        job, say = self._job, self._look.say
        if job is None:
            return []
        verdict = job.verdict
        name = say(job.name)
        sentence = say(verdict.sentence)
        lines = textwrap.wrap(f"{name} · {sentence}", width) or [name]
        rows: list[Row] = [[(line, _ROLE[verdict.severity])] for line in lines]
        rows[0] = [(name[:width], "strong"), (lines[0][len(name) :], _ROLE[verdict.severity])]
        if verdict.advice:
            rows += [[(line, "text")] for line in textwrap.wrap(say(verdict.advice), width)]
        else:
            others = [f for f in verdict.findings if f not in verdict.sentence][:2]
            if others:
                rows.append([(say(" · ".join(others)), "muted")])
        if len(rows) > max(1, height - 1):
            # What to do comes before the facts; what does not fit ends in an ellipsis.
            kept = rows[:height]
            if len(rows) > height:
                text = "".join(piece for piece, _ in kept[-1])
                kept[-1] = [(fit(f"{text} …", min(width, len(text) + 2)), kept[-1][-1][1])]
            return kept
        return [*rows, [(say(facts_of(job)), "muted")]] if height > 1 else rows[:1]


def facts_of(job: JobView) -> str:
    """Everything that a narrow table leaves out."""
    meta = job.meta
    parts = [job.policy, meta.backend if meta else None, meta.device if meta else None]
    parts += [meta.host if meta else None, f"pid {meta.pid}" if meta else None]
    parts.append(f"step {whole(job.step)}" if job.step else None)
    epoch = epoch_text(job)
    parts.append(f"epoch {epoch}" if epoch else None)
    took = elapsed(job)
    parts.append(f"ran {duration(took)}" if took else None)
    parts.append(
        "resumed" if job.resumed == 1 else f"resumed {job.resumed}×" if job.resumed else ""
    )
    if job.skipped_lately:
        parts.insert(1, f"skipped {share(job.skipped_lately)} of the last 100 steps")
    parts += [f"{name} {number(value)}" for name, value in job.results.items()]
    return " · ".join(p for p in parts if p)
