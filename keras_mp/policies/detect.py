"""The device that the backend of this process really uses.

TensorFlow is asked for its list only, which sets up no device: afterwards ``set_memory_growth`` and
its like would be forbidden. torch and jax are asked by where a new tensor lies.
"""

import platform
import re
from pathlib import Path
from typing import Any

import keras

from keras_mp.policies.cards import device_named
from keras_mp.policies.hardware import Device


def current_device() -> Device:
    """Where layers that are built now will compute."""
    backend = keras.backend.backend()
    if backend == "torch":
        return _torch_device()
    if backend == "tensorflow":
        return _tensorflow_device()
    if backend == "jax":
        return _jax_device()
    return cpu_device()


def device_of(asked: Device | str | None) -> Device:
    """The device that an argument means: a name, a description, or None for where layers compute.

    Raises:
        ValueError: No device of that name is known.
        TypeError: It is neither.
    """
    if not isinstance(asked, Device | str | None):
        raise TypeError(
            "Expected a device's name, such as 'A100', '7.5' or 'cpu', or None for the one here. "
            f"Received: device={asked!r} (of type {type(asked).__name__})"
        )
    if asked is None:
        return current_device()
    return device_named(asked) if isinstance(asked, str) else asked


def cpu_device() -> Device:
    """This machine's processor, with the instructions that decide about bfloat16."""
    flags, name = None, platform.processor() or platform.machine() or "CPU"
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Device("CPU", name, architecture=platform.machine())
    fields = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", info.partition("\n\n")[0], re.MULTILINE))
    if "flags" in fields:  # x86; other processors call them "Features" and mean others by them
        flags = frozenset(fields["flags"].split())
    name = fields.get("model name", name)
    return Device("CPU", name, architecture=platform.machine(), instructions=flags)


def _torch_device() -> Device:
    import torch

    where = keras.ops.zeros(()).device
    if where.type == "cuda":
        properties = torch.cuda.get_device_properties(where)
        if torch.version.hip:
            return Device("AMD", properties.name, architecture=properties.gcnArchName)
        capability = (properties.major, properties.minor)
        return Device("NVIDIA", properties.name, compute_capability=capability)
    if where.type == "mps":
        return Device("Apple", "Apple GPU")
    if where.type == "cpu":
        return cpu_device()
    return Device("unknown", str(where))


def _tensorflow_device() -> Device:
    import tensorflow as tf

    visible = tf.config.get_visible_devices()
    if any(device.device_type == "TPU" for device in visible):
        return Device("Google", "TPU")
    gpus = [device for device in visible if device.device_type == "GPU"]
    if not gpus:
        return cpu_device()
    details: dict[str, Any] = tf.config.experimental.get_device_details(gpus[0])
    name = str(details.get("device_name", gpus[0].name))
    if details.get("compute_capability"):
        return Device("NVIDIA", name, compute_capability=tuple(details["compute_capability"]))
    if tf.sysconfig.get_build_info().get("is_rocm_build"):
        return Device("AMD", name)
    if "METAL" in name.upper():
        return Device("Apple", "Apple GPU")
    return Device("unknown", name)


def _jax_device() -> Device:
    (where,) = keras.ops.zeros(()).devices()
    if where.platform == "cpu":
        return cpu_device()
    if where.platform == "tpu":
        return Device("Google", where.device_kind)
    if where.platform == "METAL":
        return Device("Apple", "Apple GPU")
    if where.platform in ("gpu", "cuda", "rocm"):
        capability = str(getattr(where, "compute_capability", ""))
        if capability.startswith("gfx"):
            return Device("AMD", where.device_kind, architecture=capability)
        if "." in capability:
            major, minor = map(int, capability.split("."))
            return Device("NVIDIA", where.device_kind, compute_capability=(major, minor))
    return Device("unknown", where.device_kind)
