"""Which device a job uses, and how much of its memory.

Only what can be measured: where there is nothing to measure, several of these APIs answer 0, and a
0 on the screen would look like a value.
"""

import os
import sys
from dataclasses import dataclass
from typing import Any

from keras_mp.telemetry.process import resident_bytes


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes in the backend's allocator on this process' device; None where not measured."""

    allocated: int | None = None
    peak: int | None = None
    reserved: int | None = None
    total: int | None = None


def memory(backend: str | None) -> DeviceMemory:
    """The allocator's numbers; all None without an accelerator. The device need not wait."""
    try:
        return _MEMORY[backend or ""]()
    except Exception:  # a driver in trouble, an API that moved: unknown, and no reason to stop
        return DeviceMemory()


def name(backend: str | None) -> str | None:
    """Such as "NVIDIA H200" or "cpu"; None if it cannot be told."""
    try:
        return _NAME[backend or ""]()
    except Exception:
        return None


def resident() -> int | None:
    """Resident set of this process in bytes."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return resident_bytes()


def _torch_memory() -> DeviceMemory:
    torch: Any = sys.modules["torch"]
    # Without this question, memory_allocated() says 0 on a machine without a GPU.
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return _mps_memory(torch)
    device = torch.cuda.current_device()
    return DeviceMemory(
        allocated=torch.cuda.memory_allocated(device),
        peak=torch.cuda.max_memory_allocated(device),
        reserved=torch.cuda.memory_reserved(device),
        total=torch.cuda.get_device_properties(device).total_memory,
    )


def _mps_memory(torch: Any) -> DeviceMemory:
    """Apple's GPUs: there is no peak to ask for."""
    if not (hasattr(torch, "mps") and torch.backends.mps.is_available()):
        return DeviceMemory()
    return DeviceMemory(
        allocated=torch.mps.current_allocated_memory(),
        reserved=torch.mps.driver_allocated_memory(),
    )


def _tensorflow_memory() -> DeviceMemory:
    tf: Any = sys.modules["tensorflow"]
    # get_memory_info("CPU:0") answers 0, which is no measurement.
    if not tf.config.list_logical_devices("GPU"):
        return DeviceMemory()
    info = tf.config.experimental.get_memory_info("GPU:0")
    return DeviceMemory(allocated=info["current"], peak=info["peak"])


def _jax_memory() -> DeviceMemory:
    jax: Any = sys.modules["jax"]
    info = jax.local_devices()[0].memory_stats() or {}
    return DeviceMemory(
        allocated=info.get("bytes_in_use"),
        peak=info.get("peak_bytes_in_use"),
        reserved=info.get("bytes_reserved"),
        total=info.get("bytes_limit"),
    )


def _torch_name() -> str:
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _tensorflow_name() -> str:
    tf: Any = sys.modules["tensorflow"]
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "cpu"
    return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", "gpu"))


def _jax_name() -> str:
    jax: Any = sys.modules["jax"]
    return str(jax.local_devices()[0].device_kind)


_MEMORY = {"torch": _torch_memory, "tensorflow": _tensorflow_memory, "jax": _jax_memory}
_NAME = {"torch": _torch_name, "tensorflow": _tensorflow_name, "jax": _jax_name}
