"""What the widgets that tell of one job share: the job, the look, and drawing anew."""

from tui.look import Look
from tui.snapshot import JobView
from tui.widgets.lines import Lines


class JobLines(Lines):
    """Lines about the job that ``show`` was given last; None before the first."""

    def __init__(self, *, id: str | None = None):
        super().__init__(id=id)
        self._job: JobView | None = None
        self._look = Look()

    def show(self, job: JobView | None, look: Look) -> None:
        self._job, self._look = job, look
        self.redraw()
