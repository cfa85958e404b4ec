"""Bytes that a training step takes at one batch size. Runs in the trial's child processes."""

import os
from typing import Any

import keras
import numpy as np

from keras_mp.bench.batches import Batches
from keras_mp.bench.timing import one_step

ALLOCATOR = "allocator peak"
COUNTED = "parameters + slots + saved bytes"


class UnknownMemory(Exception):
    """Nothing here tells how much memory a step takes; the message says why."""


def step_bytes(model: Any, batches: Batches, batch: int) -> tuple[str, int]:
    """(what was measured, bytes) of a training step on ``batch`` samples.

    On a GPU or TPU the peak of the allocator over a step. A CPU has no allocator that tells: there
    it is what the step must hold: parameters, the optimizer's variables, and the bytes that are
    kept for the backward pass, which are counted exactly.

    Raises:
        UnknownMemory: On tensorflow on a CPU.
    """
    x, y = batches.sized(batch)
    if on_cpu():
        return COUNTED, _counted(model, x)
    return ALLOCATOR, _allocated(model, x, y)


def on_cpu() -> bool:
    """Whether this backend computes on a CPU."""
    from keras_mp.policies.detect import current_device

    return current_device().vendor == "CPU"


def budget() -> int:
    """Bytes that this device has; of a CPU those that are free now. 0 where nothing tells."""
    if on_cpu():
        import psutil

        return int(psutil.virtual_memory().available)
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        where = keras.ops.zeros(()).device
        return int(torch.cuda.mem_get_info(where)[1]) if where.type == "cuda" else 0
    if backend == "jax":
        (device,) = keras.ops.zeros(()).devices()
        return int((device.memory_stats() or {}).get("bytes_limit", 0))
    return _nvml_total()


def _counted(model: Any, x: Any) -> int:
    if keras.backend.backend() == "tensorflow":
        raise UnknownMemory(
            "tensorflow on a CPU does not tell what it keeps for the backward pass: try "
            "KERAS_BACKEND=torch or jax"
        )
    from keras_mp.numerics.memory import saved_bytes

    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    held = [*model.weights, *model.optimizer.variables]
    return sum(_size(v) for v in held) + saved_bytes(model, x).total


def _size(variable: Any) -> int:
    dtype = keras.backend.standardize_dtype(variable.dtype)
    width = 2 if dtype in ("float16", "bfloat16") else np.dtype(dtype).itemsize
    return int(np.prod(variable.shape)) * width


def _allocated(model: Any, x: Any, y: Any) -> int:
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        if keras.ops.zeros(()).device.type != "cuda":
            raise UnknownMemory("this device's allocator does not tell its peak")
        one_step(model, x, y)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        one_step(model, x, y)
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated())
    if backend == "tensorflow":
        import tensorflow as tf

        one_step(model, x, y)
        try:
            tf.config.experimental.reset_memory_stats("GPU:0")
            one_step(model, x, y)
            return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
        except ValueError as error:
            raise UnknownMemory("this device's allocator does not tell its peak") from error
    # jax' peak is that of the whole process and only rises: sizes are measured in rising order.
    (device,) = keras.ops.zeros(()).devices()
    one_step(model, x, y)
    stats = device.memory_stats()
    if not stats or "peak_bytes_in_use" not in stats:
        raise UnknownMemory("this device's allocator does not tell its peak")
    return int(stats["peak_bytes_in_use"])


def _nvml_total() -> int:
    """Of the first GPU that this process may use, by nvidia-ml-py where it is installed."""
    try:
        import pynvml
    except ImportError:
        return 0
    try:
        pynvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        by_index = visible.isdigit()
        handle = (
            pynvml.nvmlDeviceGetHandleByIndex(int(visible))
            if by_index
            else pynvml.nvmlDeviceGetHandleByUUID(visible)
        )
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:
        return 0
