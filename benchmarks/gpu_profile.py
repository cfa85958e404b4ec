"""Peaks of memory, kernel launches and host reads, as each backend tells them. None: it does not.

torch tells both from its profiler. jax (and tensorflow, where it writes one) tell them by a trace
file, whose rows of a GPU are its kernels and copies.
"""

import glob
import gzip
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import keras

READ_TORCH = "aten::_local_scalar_dense"  # one number to the host; ``item``, ``float``
COPY_TORCH = "Memcpy DtoH"
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx",
            "hipLaunchKernel", "hipExtModuleLaunchKernel")  # fmt: skip


def on_gpu() -> bool:
    from keras_mp.policies.detect import current_device

    return current_device().vendor in ("NVIDIA", "AMD")


class Peak:
    """The peak of the device's allocator since this was made; None on a CPU."""

    def __init__(self) -> None:
        self._backend = keras.backend.backend() if on_gpu() else None
        self._before = 0
        if self._backend == "torch":
            import torch

            torch.cuda.reset_peak_memory_stats()
        elif self._backend == "tensorflow":
            import tensorflow as tf

            tf.config.experimental.reset_memory_stats("GPU:0")
        elif self._backend == "jax":
            self._before = self._jax()

    def read(self) -> int | None:
        if self._backend == "torch":
            import torch

            return int(torch.cuda.max_memory_allocated())
        if self._backend == "tensorflow":
            import tensorflow as tf

            return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
        if self._backend == "jax":
            # jax' peak is the process' and never falls: only a new high is this one's.
            peak = self._jax()
            return peak if peak > self._before else None
        return None

    @staticmethod
    def _jax() -> int:
        import jax

        return int((jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))


def free() -> None:
    """Let the allocator forget what the last model needed."""
    keras.utils.clear_session(free_memory=True)
    if keras.backend.backend() == "torch" and on_gpu():
        import torch

        torch.cuda.empty_cache()


def of_steps(step: Callable[[], Any], steps: int) -> dict[str, Any]:
    """Per step: ``launches``, ``reads`` (copies to the host) and, on torch, ``operators``.

    On a CPU there are neither launches nor copies: what it reads, it has.
    """
    backend = keras.backend.backend()
    if backend == "torch":
        return _torch(step, steps)
    with tempfile.TemporaryDirectory() as folder:
        if backend == "jax":
            import jax

            with jax.profiler.trace(folder):
                for _ in range(steps):
                    step()
        else:
            import tensorflow as tf

            tf.profiler.experimental.start(folder)
            for _ in range(steps):
                step()
            tf.profiler.experimental.stop()
        return from_traces(_traces(folder), steps)


def _torch(step: Callable[[], Any], steps: int) -> dict[str, Any]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    with profile(activities=activities) as profiled:
        for _ in range(steps):
            step()
        if gpu:
            torch.cuda.synchronize()
    counts: dict[str, int] = {}
    for event in profiled.key_averages():
        counts[event.key] = counts.get(event.key, 0) + event.count
    return from_counts(counts, steps, gpu)


def from_counts(counts: dict[str, int], steps: int, gpu: bool) -> dict[str, Any]:
    """The same from how often torch's profiler saw each event."""
    operators = sum(count for key, count in counts.items() if key.startswith("aten::"))
    launches = sum(counts.get(name, 0) for name in LAUNCHES)
    copies = sum(count for key, count in counts.items() if key.startswith(COPY_TORCH))
    return {
        "operators": operators / steps,
        # None at all: the profiler could not look at the device (a driver may forbid it).
        "launches": launches / steps if gpu and launches else None,
        # A read of one number is an operator and a copy; other copies are no such operator.
        "reads": max(counts.get(READ_TORCH, 0), copies) / steps if gpu else None,
    }


def _traces(folder: str) -> list[dict[str, Any]]:
    found = []
    for path in glob.glob(os.path.join(folder, "**", "*.trace.json.gz"), recursive=True):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found.append(json.load(file))
    return found


def from_traces(traces: Iterable[dict[str, Any]], steps: int) -> dict[str, Any]:
    """Count a trace's events (Chrome's format) that ran on a GPU: kernels, and copies to the host.

    Only the rows of streams count: other rows of a GPU repeat the same time as modules and names.
    """
    launches = reads = 0
    seen = False
    for trace in traces:
        events = trace.get("traceEvents", [])
        gpus = {
            e["pid"]
            for e in events
            if e.get("name") == "process_name" and "GPU" in str(e.get("args", {}).get("name"))
        }
        streams = {
            (e["pid"], e.get("tid"))
            for e in events
            if e.get("name") == "thread_name" and "Stream" in str(e.get("args", {}).get("name"))
        }
        for event in events:
            if event.get("ph") != "X" or event.get("pid") not in gpus:
                continue
            if (event["pid"], event.get("tid")) not in streams:
                continue
            seen = True
            name = event.get("name", "")
            if "MemcpyD2H" in name or "Memcpy DtoH" in name:
                reads += 1
            elif not name.startswith(("Memcpy", "Memset")):
                launches += 1
    if not seen:
        return {"operators": None, "launches": None, "reads": None}
    return {"operators": None, "launches": launches / steps, "reads": reads / steps}
