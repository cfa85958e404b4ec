"""The table of the devices screen: what each job holds, and what it may still take."""

from collections.abc import Callable
from dataclasses import dataclass

from keras_mp.telemetry.format import UNKNOWN, size
from keras_mp.telemetry.records import Memory
from tui.devices import Devices
from tui.drawing.roles import Piece
from tui.job_cells import ENDED, room_cell
from tui.room import gpu_of, peak
from tui.snapshot import JobView
from tui.widgets.columns import Column

Cell = Callable[[JobView, Devices], Piece]


@dataclass(frozen=True)
class DeviceColumn:
    column: Column
    cell: Cell


def _bytes(of: Callable[[Memory], int | None]) -> Cell:
    def cell(job: JobView, devices: Devices) -> Piece:
        value = of(job.memory) if job.memory is not None else None
        return (size(value), "text") if value is not None else (UNKNOWN, "muted")

    return cell


def _device(job: JobView, devices: Devices) -> Piece:
    gpu = gpu_of(job, job.pids, devices)
    name = (job.meta.device if job.meta else None) or UNKNOWN
    text = f"GPU{gpu.index}" if gpu is not None else name
    away = job.meta is not None and job.meta.host != devices.host
    return (f"{job.meta.host}: {text}" if away and job.meta else text), "text"


def _held(job: JobView, devices: Devices) -> Piece:
    """What NVML counts for the job's processes: more than its allocator hands out."""
    gpu = gpu_of(job, job.pids, devices)
    held = [] if gpu is None else [gpu.processes.get(p) for p in job.pids if p in gpu.processes]
    if not held or None in held:
        return UNKNOWN, "muted"
    return size(sum(x or 0 for x in held)), "text"


def _room(job: JobView, devices: Devices) -> Piece:
    return room_cell(job)


def _saved(memory: Memory) -> int | None:
    return sum(memory.saved_bytes.values()) if memory.saved_bytes else None


COLUMNS: tuple[DeviceColumn, ...] = (
    DeviceColumn(Column("name", "job", 16, stretch=24, middle=True), lambda j, d: (j.name, "text")),
    DeviceColumn(Column("device", "device", 10, stretch=14, middle=True), _device),
    DeviceColumn(
        Column("allocated", "allocated", 9, right=True, rank=2),
        _bytes(lambda m: m.device_allocated),
    ),
    DeviceColumn(Column("peak", "peak", 8, right=True), _bytes(lambda m: m.device_peak)),
    DeviceColumn(
        Column("reserved", "reserved", 9, right=True, rank=3), _bytes(lambda m: m.device_reserved)
    ),
    DeviceColumn(Column("held", "by NVML", 8, right=True, rank=4), _held),
    DeviceColumn(Column("saved", "for backward", 12, right=True, rank=5), _bytes(_saved)),
    DeviceColumn(
        Column("process", "process", 8, right=True, rank=1), _bytes(lambda m: m.process_resident)
    ),
    DeviceColumn(Column("room", "room left", 9, right=True), _room),
)
BY_KEY = {c.column.key: c for c in COLUMNS}


def shown(jobs: list[JobView]) -> list[JobView]:
    """The jobs that hold memory now, those with the least room first."""
    alive = [j for j in jobs if j.verdict.state not in ENDED]

    def order(job: JobView) -> tuple[float, float, str]:
        left, total = job.room
        part = left / total if left is not None and total else 1.0
        return part, -float(peak(job) or job.memory_bytes or 0), job.name

    return sorted(alive, key=order)
