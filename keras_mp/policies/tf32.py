"""TF32: float32 products on NVIDIA's tensor cores with 10 bits of fraction, 8.0 and later."""

import os

import keras

from keras_mp.policies.switches import read_switch

OURS, NVIDIAS = "KERAS_MP_TF32", "NVIDIA_TF32_OVERRIDE"


def allow_tf32(allow: bool | None = None) -> bool:
    """Let float32 matrix products and convolutions run in TF32, or forbid it.

    Only NVIDIA GPUs of compute capability 8.0 and later have it; elsewhere the switch changes
    nothing. The layers' dtype stays float32. The backends' own defaults differ: TensorFlow allows
    TF32, torch allows it in convolutions but not in matrix products, jax leaves it to XLA.

    Args:
        allow: True or False. None takes the environment variable KERAS_MP_TF32 (1 or 0), and
            without that leaves the backend as it is.

    Returns:
        Whether TF32 is allowed now, in matrix products and in convolutions.

    Raises:
        ValueError: NVIDIA_TF32_OVERRIDE, which NVIDIA's libraries obey before any program, asks for
            the contrary; or an environment variable is neither 0 nor 1.
    """
    allow = requested_tf32(allow)
    set_it, read_it = _BACKENDS[keras.backend.backend()]
    if allow is not None:
        set_it(allow)
    return read_it()


def requested_tf32(allow: bool | None = None) -> bool | None:
    """What the argument, or else the environment, asks for; nothing is set. Errors as above."""
    asked_by = f"allow_tf32({allow})"
    if allow is None:
        allow, asked_by = read_switch(OURS), f"{OURS}={os.environ.get(OURS)}"
    override = read_switch(NVIDIAS)
    if allow is not None and override is not None and allow != override:
        raise ValueError(
            f"{asked_by} and {NVIDIAS}={os.environ[NVIDIAS]} contradict each other, and NVIDIA's "
            f"libraries obey the second. Expected one of them to go. Received: allow={allow}"
        )
    return allow


def _set_torch(allow: bool) -> None:
    import torch

    # The older of torch's two ways: the newer one (fp32_precision) makes each read by the older one
    # an error, and torch's own compiler still reads that.
    torch.backends.cuda.matmul.allow_tf32 = allow
    torch.backends.cudnn.allow_tf32 = allow


def _read_torch() -> bool:
    import torch

    return bool(torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32)


def _set_tensorflow(allow: bool) -> None:
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(allow)


def _read_tensorflow() -> bool:
    import tensorflow as tf

    return bool(tf.config.experimental.tensor_float_32_execution_enabled())


def _set_jax(allow: bool) -> None:
    import jax

    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if allow else "highest")


def _read_jax() -> bool:
    import jax

    return jax.config.jax_default_matmul_precision in ("tensorfloat32", "high")


_BACKENDS = {
    "torch": (_set_torch, _read_torch),
    "tensorflow": (_set_tensorflow, _read_tensorflow),
    "jax": (_set_jax, _read_jax),
}
