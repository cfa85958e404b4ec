"""One file a backend: check, unscale, step or skip."""

from typing import Any

import keras


def kernel_for(optimizer: Any) -> Any:
    """The kernel for the current backend and this (built) optimizer."""
    backend = keras.backend.backend()
    if backend == "torch":
        from keras_mp.scaling.kernels.torch import TorchKernel

        return TorchKernel(optimizer)
    if backend == "tensorflow":
        from keras_mp.scaling.kernels.tensorflow import TensorFlowKernel

        return TensorFlowKernel(optimizer)
    if backend == "jax":
        from keras_mp.scaling.kernels.jax import JaxKernel

        return JaxKernel(optimizer)
    raise RuntimeError(
        "keras_mp.LossScaleOptimizer trains on the torch, tensorflow and jax backends. "
        f"Received: KERAS_BACKEND={backend!r}"
    )
