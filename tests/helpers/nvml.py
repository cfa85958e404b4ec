"""A fake of nvidia-ml-py: as much of its interface as the dashboard uses, with what a test says."""

from dataclasses import dataclass, field
from types import SimpleNamespace


class NVMLError(Exception):
    pass


@dataclass
class FakeGpu:
    """One GPU; None is what a card or driver cannot tell."""

    name: str = "NVIDIA H200"
    used: int | None = 61_200_000_000
    total: int | None = 141_000_000_000
    busy: int | None = 87
    temperature: int | None = 61
    milliwatts: int | None = 412_000
    processes: dict[int, int | None] = field(default_factory=dict)
    lost: bool = False  # fallen off the bus


class FakeNvml:
    """What ``import pynvml`` gives."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *gpus: FakeGpu, broken: str | None = None):
        self.gpus, self.broken = gpus, broken
        self.calls = 0
        self.open = False

    def __call__(self) -> "FakeNvml":
        return self

    def nvmlInit(self) -> None:
        if self.broken:
            raise NVMLError(self.broken)
        self.open = True

    def nvmlShutdown(self) -> None:
        self.open = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        if self.gpus[index].lost:
            raise NVMLError("GPU is lost")
        return self.gpus[index]

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> bytes:
        return gpu.name.encode()  # as older versions return it

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> SimpleNamespace:
        self.calls += 1
        return SimpleNamespace(used=_told(gpu.used), total=_told(gpu.total))

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(gpu=_told(gpu.busy), memory=0)

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:
        return _told(gpu.temperature)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        return _told(gpu.milliwatts)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=p, usedGpuMemory=u) for p, u in gpu.processes.items()]


def _told(value: int | None) -> int:
    if value is None:
        raise NVMLError("Not Supported")
    return value
