"""What this machine's GPUs and main memory have left, read on the dashboard's side.

GPUs come from NVML (the optional package ``nvidia-ml-py``), the rest from ``/proc``. What cannot be
read is None, never 0, and ``Devices.reason`` says in a sentence why there is no GPU. One read a
second at most: NVML itself measures no more often, and monitors that ask more slow training down.
"""

import contextlib
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from keras_mp.telemetry.process import HOST
from tui.table import NO_POINTS, Table

PERIOD = 1.0
# Without a driver there is nothing to ask; one may be loaded later.
RETRY_SECONDS = 60.0
HISTORY_SECONDS = 600
# NVML's sensor of the chip's temperature, the only one that it names.
_CHIP = 0
# NVML's "not available" is the largest number of its type.
_NOT_AVAILABLE = 2**63


@dataclass(frozen=True)
class Gpu:
    """One GPU now. Memory in bytes, utilisation 0 to 1, degrees Celsius, watts.

    Attributes:
        processes: pid -> bytes it holds (None where the driver does not say).
        history: time, used (0 to 1 of total), utilisation; a point a second, ten minutes.
    """

    index: int
    name: str
    used: int | None = None
    total: int | None = None
    utilisation: float | None = None
    temperature: int | None = None
    power: float | None = None
    processes: Mapping[int, int | None] = field(default_factory=dict)
    history: Table = NO_POINTS


@dataclass(frozen=True)
class Machine:
    """The machine that the dashboard runs on: memory in bytes (within the container's limit, where
    there is one), processors 0 to 1."""

    used: int | None = None
    total: int | None = None
    utilisation: float | None = None
    cores: int | None = None
    history: Table = NO_POINTS


@dataclass(frozen=True)
class Devices:
    """All of it at one moment.

    Attributes:
        reason: Why there is no GPU, in a sentence; "" if there is one.
        host: Whose devices these are: jobs of other hosts have none of them.
        elsewhere: Those of the other hosts that are watched.
    """

    gpus: tuple[Gpu, ...] = ()
    reason: str = ""
    machine: Machine = Machine()
    host: str = HOST
    elsewhere: "tuple[Devices, ...]" = ()

    @property
    def all(self) -> "tuple[Devices, ...]":
        """Host by host, this one first."""
        return self, *self.elsewhere

    def of(self, host: str) -> "Devices | None":
        """Those of one host; None where they are not known."""
        return next((devices for devices in self.all if devices.host == host), None)


class History:
    """Ten minutes of what a device had in use, a point a second."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float, float]] = deque(maxlen=HISTORY_SECONDS)

    def add(self, now: float, used: int | None, total: int | None, busy: float | None) -> Table:
        nan = float("nan")
        share = used / total if used is not None and total else nan
        self._points.append((now, share, nan if busy is None else busy))
        time, used_share, utilisation = np.array(self._points, dtype=np.float64).T
        return Table({"step": time, "time": time, "used": used_share, "utilisation": utilisation})


NO_DEVICES = Devices()


def find_nvml() -> Any:
    """The module ``pynvml`` of nvidia-ml-py. Raises ImportError without it."""
    import pynvml

    return pynvml


class DeviceReader:
    """Reads the devices, at most once a second. For one thread.

    Args:
        nvml: Gives the NVML module; tests give a fake.
        root: Where ``proc`` and ``sys`` are. host: What this machine is called.
    """

    def __init__(
        self,
        nvml: Callable[[], Any] = find_nvml,
        root: str | os.PathLike[str] = "/",
        host: str = HOST,
    ):
        self._find, self._root, self._host = nvml, Path(root), host
        self._nvml: Any = None
        self._handles: list[tuple[int, Any, str]] = []
        self._reason = ""
        self._try_at = float("-inf")
        self._read_at = float("-inf")
        self._busy: tuple[int, int] | None = None
        self._history: dict[str, History] = {}
        self._last = NO_DEVICES

    def read(self, now: float) -> Devices:
        """The devices at ``now`` (seconds since the epoch): fresh, or of up to a second ago."""
        if 0 <= now - self._read_at < PERIOD:
            return self._last
        self._read_at = now
        if self._nvml is None and not 0 <= now - self._try_at < RETRY_SECONDS:
            self._try_at = now
            self._open()
        gpus = tuple(self._gpu(*known, now) for known in self._handles)
        self._last = Devices(gpus, self._reason, self._machine(now), self._host)
        return self._last

    def close(self) -> None:
        if self._nvml is not None:
            self._ask("nvmlShutdown")
            self._nvml, self._handles = None, []

    def _open(self) -> None:
        try:
            nvml = self._find()
        except ImportError:
            self._reason = (
                "GPUs cannot be read: the package nvidia-ml-py is not installed here "
                "(pip install 'keras-mp[gpu]')."
            )
            return
        try:
            nvml.nvmlInit()
        except Exception as error:
            self._reason = f"No GPU of NVIDIA's can be read here ({error})."
            return
        self._nvml, self._reason = nvml, ""
        for index in range(self._ask("nvmlDeviceGetCount") or 0):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                name = self._ask("nvmlDeviceGetName", handle) or "GPU"
                name = name.decode(errors="replace") if isinstance(name, bytes) else name
                self._handles.append((index, handle, name))
        if not self._handles:
            self._reason = "The driver of NVIDIA is loaded here, but it knows no GPU."

    def _ask(self, name: str, *arguments: Any) -> Any:
        """What NVML answers; None where this GPU or driver cannot tell.

        The package adds errors of its own: a name that is no UTF-8, a function that an older one
        lacks. None of them may end the watch over the jobs.
        """
        try:
            return getattr(self._nvml, name)(*arguments)
        except Exception:
            return None

    def _gpu(self, index: int, handle: Any, name: str, now: float) -> Gpu:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        milliwatts = self._ask("nvmlDeviceGetPowerUsage", handle)
        running = self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        used = memory.used if memory is not None else None
        total = memory.total if memory is not None else None
        busy = rates.gpu / 100 if rates is not None else None
        return Gpu(
            index=index,
            name=name,
            used=used,
            total=total,
            utilisation=busy,
            temperature=self._ask("nvmlDeviceGetTemperature", handle, _CHIP),
            power=milliwatts / 1000 if milliwatts is not None else None,
            processes=MappingProxyType({p.pid: _bytes(p.usedGpuMemory) for p in running}),
            history=self._remember(f"gpu{index}", now, used, total, busy),
        )

    def _machine(self, now: float) -> Machine:
        total, available = self._memory()
        busy = self._processors()
        used = total - available if total is not None and available is not None else None
        return Machine(
            used=used,
            total=total,
            utilisation=busy,
            cores=os.cpu_count(),
            history=self._remember("machine", now, used, total, busy),
        )

    def _memory(self) -> tuple[int | None, int | None]:
        """(total, available) of this machine, or of the container's share of it."""
        known: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError):
            for line in self._text("proc/meminfo").splitlines():
                name, _, value = line.partition(":")
                if name in ("MemTotal", "MemAvailable"):
                    known[name] = int(value.split()[0]) * 1024
        total, available = known.get("MemTotal"), known.get("MemAvailable")
        group = "sys/fs/cgroup/memory"
        with contextlib.suppress(OSError, ValueError):
            limit, held = int(self._text(f"{group}.max")), int(self._text(f"{group}.current"))
            with contextlib.suppress(OSError, ValueError, StopIteration):
                # Pages of files that are given back when somebody needs the memory.
                lines = self._text(f"{group}.stat").splitlines()
                held -= int(next(x for x in lines if x.startswith("inactive_file ")).split()[1])
            if total is None or limit < total:
                total, available = limit, max(0, limit - held)
        return total, available

    def _processors(self) -> float | None:
        """Share of the processors' time that was used since the last read."""
        try:
            fields = [int(x) for x in self._text("proc/stat").split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return None
        idle = sum(fields[3:5])
        before, self._busy = self._busy, (sum(fields) - idle, sum(fields))
        if before is None or self._busy[1] <= before[1]:
            return None
        return (self._busy[0] - before[0]) / (self._busy[1] - before[1])

    def _text(self, path: str) -> str:
        return (self._root / path).read_text()

    def _remember(
        self, key: str, now: float, used: int | None, total: int | None, busy: float | None
    ) -> Table:
        return self._history.setdefault(key, History()).add(now, used, total, busy)


def _bytes(value: int | None) -> int | None:
    return None if value is None or value >= _NOT_AVAILABLE else value
