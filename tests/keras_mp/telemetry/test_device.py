"""Memory of the device: each backend's own numbers, and nothing where nothing was measured.

No machine of the tests has a GPU: the allocators' public functions are played by others, with the
answers that they give there.
"""

import os
import sys
from types import SimpleNamespace

import pytest

from keras_mp.telemetry import device
from keras_mp.telemetry.device import DeviceMemory, memory

pytestmark = pytest.mark.backend
BACKEND = os.environ["KERAS_BACKEND"]


def test_without_an_accelerator_nothing_is_measured_and_nothing_is_zero():
    import keras  # noqa: F401  (loads the backend)

    assert memory(BACKEND) == DeviceMemory(None, None, None, None)
    assert device.resident() > 10_000_000


@pytest.mark.parametrize("backend", [None, "numpy", "tpu"])
def test_an_unknown_backend_is_unknown(backend):
    assert memory(backend) == DeviceMemory() and device.name(backend) is None


def cuda(initialized=True):
    return SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: initialized,
        current_device=lambda: 1,
        memory_allocated=lambda d: {1: 100}[d],
        max_memory_allocated=lambda d: {1: 300}[d],
        memory_reserved=lambda d: {1: 400}[d],
        get_device_properties=lambda d: SimpleNamespace(total_memory=8000),
    )


def test_torch_s_allocator(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda()))
    assert memory("torch") == DeviceMemory(100, 300, 400, 8000)


def test_a_cuda_context_is_not_made_to_look_at_it(monkeypatch):
    no_mps = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=cuda(initialized=False), backends=no_mps)
    )
    assert memory("torch") == DeviceMemory()


def test_torch_on_apple_s_gpu_has_no_peak(monkeypatch):
    fake = SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: False),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True)),
        mps=SimpleNamespace(
            current_allocated_memory=lambda: 100, driver_allocated_memory=lambda: 150
        ),
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    assert memory("torch") == DeviceMemory(100, None, 150, None)


@pytest.mark.parametrize(("gpus", "expected"), [(1, DeviceMemory(10, 30)), (0, DeviceMemory())])
def test_tensorflow_s_allocator(monkeypatch, gpus, expected):
    config = SimpleNamespace(
        list_logical_devices=lambda kind: ["GPU:0"][:gpus] if kind == "GPU" else ["CPU:0"],
        experimental=SimpleNamespace(
            get_memory_info=lambda name: {
                "GPU:0": {"current": 10, "peak": 30}, "CPU:0": {"current": 0, "peak": 0}
            }[name]
        ),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    assert memory("tensorflow") == expected


@pytest.mark.parametrize(
    ("stats", "expected"),
    [(None, DeviceMemory()),
     ({"bytes_in_use": 5, "peak_bytes_in_use": 9, "bytes_limit": 80}, DeviceMemory(5, 9, None, 80)),
     ({"bytes_in_use": 5, "bytes_reserved": 7}, DeviceMemory(5, None, 7))],
)  # fmt: skip
def test_jax_s_allocator(monkeypatch, stats, expected):
    fake = SimpleNamespace(local_devices=lambda: [SimpleNamespace(memory_stats=lambda: stats)])
    monkeypatch.setitem(sys.modules, "jax", fake)
    assert memory("jax") == expected


def test_a_driver_in_trouble_stops_nobody(monkeypatch):
    def broken(d):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    fake = cuda()
    fake.max_memory_allocated = broken
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=fake))
    assert memory("torch") == DeviceMemory()
