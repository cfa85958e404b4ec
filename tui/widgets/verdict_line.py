"""What is to be said about the selected job: the verdict, what to do, and the facts beside it."""

from collections.abc import Sequence

from rich.cells import cell_len

from keras_mp.telemetry.format import duration, number, share, whole
from tui.drawing.roles import Role, Row
from tui.drawing.text import fit, shorten, wrap
from tui.job_cells import elapsed, epoch_text
from tui.snapshot import JobView
from tui.widgets.job_lines import JobLines

_ROLE: dict[str, Role] = {"ok": "text", "warning": "warn", "error": "bad"}


class VerdictLine(JobLines):
    gone = ""  # what is said where there is no job

    def rows(self, width: int, height: int) -> Sequence[Row]:
        job, say = self._job, self._look.say
        if job is None:
            return [[(self.gone, "muted")]]
        verdict = job.verdict
        role, sentence = _ROLE[verdict.severity], say(verdict.sentence)
        # A name may be cut, what is wrong with it may not.
        name = shorten(say(job.name), max(width // 3, width - 3 - cell_len(sentence)))
        first, *others = wrap(sentence, width, taken=cell_len(name) + 3)
        rows: list[Row] = [[(name, "strong"), (f" · {first}", role)]]
        rows += [[(line, role)] for line in others]
        if verdict.advice:
            rows += [[(line, "text")] for line in wrap(say(verdict.advice), width)]
        else:
            more = [f for f in verdict.findings if f not in verdict.sentence][:2]
            if more:
                rows.append([(say(" · ".join(more)), "muted")])
        if len(rows) > max(1, height - 1):
            # What to do comes before the facts; what does not fit ends in an ellipsis.
            kept = rows[:height]
            if len(rows) > height:
                text = "".join(piece for piece, _ in kept[-1])
                kept[-1] = [(fit(f"{text} …", min(width, len(text) + 2)), kept[-1][-1][1])]
            return kept
        return [*rows, [(say(facts_of(job)), "muted")]] if height > 1 else rows[:1]


def facts_of(job: JobView) -> str:
    """Everything that a narrow table leaves out, what changes first."""
    meta = job.meta
    epoch, took = epoch_text(job), elapsed(job)
    parts = [
        job.policy,
        f"skipped {share(job.skipped_lately)} of the last 100 steps"
        if job.skipped_lately
        else None,
        f"step {whole(job.step)}" if job.step else None,
        f"epoch {epoch}" if epoch else None,
        f"ran {duration(took)}" if took else None,
        ("resumed" if job.resumed == 1 else f"resumed {job.resumed}×") if job.resumed else None,
        *(f"{name} {number(value)}" for name, value in job.results.items()),
    ]
    if meta is not None:
        parts += [meta.backend, meta.device, meta.host, f"pid {meta.pid}" if meta.pid else None]
    return " · ".join(part for part in parts if part)
