"""The GPUs and the machine: memory and use as bars, temperature and power, what else holds it."""

from collections.abc import Sequence

from keras_mp.telemetry.format import UNKNOWN, share, size
from tui.devices import NO_DEVICES, Devices, Gpu
from tui.drawing.bar import bar
from tui.drawing.roles import Row
from tui.drawing.text import fit, wrap
from tui.look import Look
from tui.room import others
from tui.snapshot import JobView
from tui.widgets.lines import Lines

NAME, AMOUNT, PERCENT, REST = 24, 15, 6, 34


class DeviceCards(Lines):
    """A row for each GPU and one for the machine, and why there is no GPU."""

    def __init__(self, *, id: str | None = None):
        super().__init__(id=id)
        self._devices = NO_DEVICES
        self._jobs: Sequence[JobView] = ()
        self._look = Look()

    def show(self, devices: Devices, jobs: Sequence[JobView], look: Look) -> None:
        self._devices, self._jobs, self._look = devices, jobs, look
        self.redraw()

    def needed(self, width: int) -> int:
        """Rows that all of it takes."""
        return len(self.rows(width, 0))

    def rows(self, width: int, height: int) -> Sequence[Row]:
        hosts, say = self._devices.all, self._look.say
        rows = [self._titles(width)]
        for devices in hosts:
            if len(hosts) > 1:
                rows.append([(say(devices.host), "strong")])
            rows += [self._gpu(gpu, devices.host, width) for gpu in devices.gpus]
            rows.append(self._machine(devices, width))
            if devices.reason:
                rows += [[(line, "muted")] for line in wrap(say(devices.reason), width)]
        return rows

    def _machine(self, devices: Devices, width: int) -> Row:
        machine = devices.machine
        cores = f"{machine.cores} cores" if machine.cores else ""
        rest: Row = [(f"  {cores}", "muted")]
        name = "this machine" if devices is self._devices else "its memory"
        used, total, busy = machine.used, machine.total, machine.utilisation
        return self._row(self._look.say(name), used, total, busy, rest, width)

    def _widths(self, width: int) -> tuple[int, int, bool]:
        """Cells of a name, of a bar, and whether there is room for the rest."""
        rest = width >= 100
        name = NAME if rest else 16
        left = width - name - AMOUNT - PERCENT - 3 - (REST if rest else 0)
        return name, max(4, min(left // 2, 40)), rest

    def _titles(self, width: int) -> Row:
        name, cells, rest = self._widths(width)
        memory = fit("memory", cells) + fit("used", AMOUNT, True)
        used = fit("busy", cells) + fit("", PERCENT)
        row: Row = [(f"{fit('', name)}{memory}   {used}", "muted")]
        return [*row, ("   sensors and other processes", "muted")] if rest else row

    def _gpu(self, gpu: Gpu, host: str, width: int) -> Row:
        jobs = [job for job in self._jobs if job.meta is not None and job.meta.host == host]
        pids = {pid for job in jobs for pid in job.pids}
        rest = []
        if gpu.temperature is not None:
            rest.append(f"{gpu.temperature} °C")
        if gpu.power is not None:
            rest.append(f"{gpu.power:.0f} W")
        held = others(gpu, pids)
        if held is not None and gpu.total and held > gpu.total * 0.01:
            rest.append(f"others {size(held)}")
        name = self._look.say(f"GPU{gpu.index} {gpu.name.removeprefix('NVIDIA ')}")
        said = self._look.say(" · ".join(rest))
        tail: Row = [(f"  {said}", "text")]
        return self._row(name, gpu.used, gpu.total, gpu.utilisation, tail, width)

    def _row(
        self,
        name: str,
        used: int | None,
        total: int | None,
        busy: float | None,
        rest: Row,
        width: int,
    ) -> Row:
        names, cells, room = self._widths(width)
        unicode = self._look.unicode
        part = used / total if used is not None and total else None
        row: Row = [(fit(name, names - 1) + " ", "strong")]
        row += [*bar(part, cells, unicode), (fit(of(used, total), AMOUNT, True), "text")]
        row += [("   ", "text"), *bar(busy, cells, unicode, alarm=False)]
        row.append((fit(share(busy) if busy is not None else UNKNOWN, PERCENT, True), "text"))
        return [*row, *rest] if room else row


def of(used: int | None, total: int | None) -> str:
    """``61.2/141 GB``."""
    if used is None or total is None:
        return UNKNOWN
    whole, unit = size(total).split(" ")
    amount = used / {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    return f"{amount:.3g}/{whole.removesuffix('.0')} {unit}"
