"""How much memory a job may still take before it ends for want of it. Pure functions."""

from collections.abc import Collection, Iterable
from typing import Protocol

from keras_mp.telemetry.records import End, Memory, Meta
from tui.devices import Devices, Gpu

# Below this share of the device a job is about to run out.
SCARCE = 0.05


class Measured(Protocol):
    """What is asked of a job: ``telemetry.jobs.Job`` and its view both tell it."""

    @property
    def meta(self) -> Meta | None: ...

    @property
    def memory(self) -> Memory | None: ...

    @property
    def end(self) -> End | None: ...


def here(job: Measured, devices: Devices) -> bool:
    """Whether the job runs on a machine whose devices these are."""
    return of(job, devices) is not None


def of(job: Measured, devices: Devices) -> Devices | None:
    """The devices of the job's own host; None where they are not known."""
    return devices.of(job.meta.host) if job.meta is not None else None


def gpu_of(job: Measured, pids: Collection[int], devices: Devices) -> Gpu | None:
    """The GPU that the job's process is on; None where none lists its pid."""
    own = of(job, devices)
    gpus = own.gpus if own is not None else ()
    return next((gpu for gpu in gpus if gpu.processes.keys() & set(pids)), None)


def peak(job: Measured) -> int | None:
    """Bytes that the job's allocator held at most; None off a device, or if nobody measured."""
    memory = job.memory
    if memory is None:
        return None
    return memory.device_peak if memory.device_peak is not None else memory.device_allocated


def room(job: Measured, pids: Collection[int], devices: Devices) -> tuple[int | None, int | None]:
    """(bytes left, bytes in all) for the job; None: not known.

    On a device: what is left of it above the job's own peak and what other processes hold. What the
    job's process holds beyond its peak does not count as taken: TensorFlow reserves nearly all of a
    GPU at its start. On a CPU: what the machine has available now.
    """
    memory, most = job.memory, peak(job)
    if job.end is not None or memory is None:
        return None, None
    if most is not None:
        gpu = gpu_of(job, pids, devices)
        total = gpu.total if gpu is not None and gpu.total else memory.device_total
        if total is None:
            return None, None
        return max(0, total - most - _held_by_others(pids, gpu)), total
    own = of(job, devices)
    if own is None or own.machine.used is None or own.machine.total is None:
        return None, None
    return own.machine.total - own.machine.used, own.machine.total


def _held_by_others(pids: Collection[int], gpu: Gpu | None) -> int:
    return 0 if gpu is None else others(gpu, pids) or 0


def others(gpu: Gpu, pids: Iterable[int]) -> int | None:
    """Bytes of the GPU that none of these processes holds; None where it cannot be told."""
    held = [gpu.processes[pid] for pid in gpu.processes.keys() & set(pids)]
    if gpu.used is None or None in held:
        return None
    return max(0, gpu.used - sum(x or 0 for x in held))


def scarce(left: int | None, total: int | None) -> bool:
    """Whether a job with this much room is about to run out."""
    return left is not None and bool(total) and left < SCARCE * (total or 0)
