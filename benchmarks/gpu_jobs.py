"""What ``gpu.py`` times: a model with one batch on the device, in Keras or in torch alone."""

import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

import gpu_models
import gpu_profile

WARM_UP = 3  # steps: they compile, choose kernels, and fill the allocator
LONGEST, FEWEST = 5.0, 3  # seconds of timed steps, but not fewer steps than this


class Keras:
    """A Keras model in a precision, stock or ours, with one batch on the device."""

    def __init__(self, model: str, precision: str, whose: str, size: gpu_models.Size):
        import keras

        import keras_mp

        self.samples = 0
        keras_mp.allow_tf32(precision == "tf32")
        policy = "float32" if precision == "tf32" else precision
        policy = policy if policy == "float32" else f"mixed_{policy}"
        # Ours: the plan on a float32 model. Keras': its global policy, its loss scale in float16.
        keras_mp.set_policy("float32" if whose == "ours" else policy)
        keras.utils.set_random_seed(0)
        self.model, loss = gpu_models.keras_model(model, size)
        optimizer = keras.optimizers.AdamW(1e-4)
        if whose == "ours":
            keras_mp.plan(self.model, policy).apply(self.model)
            optimizer = keras_mp.LossScaleOptimizer(optimizer)
        # "auto": Keras puts its own loss scale around the optimizer where its policy is float16.
        self.model.compile(optimizer, loss, auto_scale_loss=whose == "Keras")
        if whose == "ours":
            optimizer.bind(self.model)
        x, y = gpu_models.data(model, size)
        self.samples = len(x)
        self._x, self._y = keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(y)
        self.parameters = self.model.count_params()

    def step(self) -> float:
        # Returns Python numbers: the step is done when they are there.
        return float(self.model.train_on_batch(self._x, self._y, return_dict=True)["loss"])


class Native:
    """The same model in torch alone: autocast, GradScaler, fused AdamW."""

    def __init__(self, model: str, precision: str, size: gpu_models.Size):
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        tf32 = precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        torch.manual_seed(0)
        module, self._loss = gpu_models.torch_model(model, size)
        self._module = module.to(device)
        self._optimizer = torch.optim.AdamW(self._module.parameters(), 1e-4, fused=True)
        self._scaler = torch.amp.GradScaler(device, enabled=precision == "float16")
        half = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(precision)
        self._cast = lambda: torch.autocast(device, half, enabled=half is not None)
        x, y = gpu_models.data(model, size)
        self.samples = len(x)
        if x.ndim == 4:
            x = x.transpose(0, 3, 1, 2).copy()
        self._x, self._y = torch.from_numpy(x).to(device), torch.from_numpy(y.copy()).to(device)
        self.parameters = sum(p.numel() for p in self._module.parameters())

    def step(self) -> float:
        self._optimizer.zero_grad(set_to_none=True)
        with self._cast():
            loss = self._loss(self._module(self._x), self._y)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return loss.item()


def timed(job: Keras | Native, steps: int) -> dict[str, float]:
    """Median and quartiles of a step's seconds, after a few that warm up.

    On a slow card as many steps as fit into ``LONGEST``.
    """
    for _ in range(WARM_UP):
        job.step()
    took: list[float] = []
    while len(took) < steps and (len(took) < FEWEST or sum(took) < LONGEST):
        began = time.perf_counter()
        job.step()
        took.append(time.perf_counter() - began)
    low, _, high = quantiles(took, n=4) if steps > 1 else (took[0],) * 3
    return {"seconds": median(took), "low": low, "high": high, "steps": len(took)}


def measured(make: Callable[[], Keras | Native], steps: int) -> dict[str, Any]:
    """Samples a second, and the peak of memory since before the model was made."""
    memory = gpu_profile.Peak()
    job = make()
    step = timed(job, steps)
    return {
        "parameters": job.parameters,
        "batch": job.samples,
        "samples_per_s": job.samples / step["seconds"],
        "step_seconds": step,
        "peak_bytes": memory.read(),
    }


def profiled(make: Callable[[], Keras | Native], steps: int) -> dict[str, Any]:
    """Kernel launches and host reads of a step, from the backend's own profiler."""
    job = make()
    for _ in range(WARM_UP):
        job.step()
    return gpu_profile.of_steps(job.step, min(steps, 5))
