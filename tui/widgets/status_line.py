"""The first line: what is watched, how many jobs there are, who needs a person, what time it is."""

import time
from collections.abc import Sequence

from rich.cells import cell_len

from keras_mp.telemetry.format import share
from tui.devices import Devices
from tui.drawing.roles import Row
from tui.drawing.text import fit_end
from tui.job_cells import ENDED
from tui.look import Look
from tui.snapshot import Snapshot
from tui.widgets.device_cards import of
from tui.widgets.lines import Lines

# A reader that has not answered for this long hangs in a file system.
SILENT_SECONDS = 5.0


class StatusLine(Lines):
    def __init__(self, place: str, *, id: str | None = None):
        super().__init__(id=id)
        self._place = place
        self._snapshot: Snapshot | None = None
        self._now = 0.0
        self._look = Look()
        self.extra = ""

    def show(self, snapshot: Snapshot | None, now: float, look: Look) -> None:
        self._snapshot, self._now, self._look = snapshot, now, look
        self.redraw()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        place = self._look.say(self._place)
        row: Row = [("keras-mp   ", "strong"), (place, "muted"), ("   ", "muted"), *self._counts()]
        clock = time.strftime("%H:%M:%S", time.localtime(self._now)) if self._now else ""
        devices = self._look.say(gpus(self._snapshot.devices)) if self._snapshot else ""
        used = sum(cell_len(text) for text, _ in row)
        if devices and width - used >= cell_len(devices) + len(clock) + 8:
            clock = f"{devices}      {clock}"
        room = width - sum(cell_len(text) for text, _ in row) - cell_len(clock)
        if room < 1:
            row[1] = (self._look.say(fit_end(place, cell_len(place) + room - 1)), "muted")
            room = width - sum(cell_len(text) for text, _ in row) - cell_len(clock)
        return [[*row, (" " * max(1, room) + clock, "muted")]]

    def _counts(self) -> Row:
        snapshot = self._snapshot
        if snapshot is None:
            return [("reading …", "muted")]
        jobs = snapshot.jobs
        running = sum(j.verdict.state in ("running", "slow", "starting") for j in jobs)
        trouble = sum(j.verdict.needs_you for j in jobs)
        row: Row = [(f"{len(jobs)} job{'s' if len(jobs) != 1 else ''}", "text")]
        if running:
            row.append((f" · {running} running", "text"))
        ended = sum(j.verdict.state in ENDED for j in jobs)
        if ended and not running:
            row.append((f" · {ended} ended", "muted"))
        if trouble:
            row.append((f" · {trouble} need{'s' if trouble == 1 else ''} you", "bad"))
        if self.extra:
            row.append((f" · {self.extra}", "text"))
        silent = self._now - snapshot.time
        if silent > SILENT_SECONDS:
            row.append((f" · the disk has not answered for {silent:.0f} s", "warn"))
        elif snapshot.behind:
            row.append((" · reading history …", "muted"))
        return row


def gpus(devices: Devices) -> str:
    """``GPU0 61.2/141 GB  87 %``, several together; nothing where there is none."""
    every = [gpu for host in devices.all for gpu in host.gpus]
    known = [gpu for gpu in every if gpu.used is not None and gpu.total]
    if not known:
        return ""
    name = f"GPU{known[0].index}" if len(known) == 1 else f"{len(known)} GPUs"
    text = f"{name} {of(sum(g.used or 0 for g in known), sum(g.total or 0 for g in known))}"
    busy = [gpu.utilisation for gpu in known if gpu.utilisation is not None]
    return f"{text}  {share(sum(busy) / len(busy))}" if busy else text
