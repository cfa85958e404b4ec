"""What a device can compute in, what is recommended there, and why. Facts and rules; no backend.

Sources of the rules: NVIDIA's CUDA programming guide (throughput by compute capability) and
Transformer Engine's support matrix (bfloat16 from 8.0); AMD's ROCm precision support table, and
GPUOpen's page on WMMA for RDNA3; Apple's MPSDataType (bFloat16 from macOS 14); Google's TPU
documentation; oneDNN's cpu_isa for x86. Only the CPU's float16 was measured by this project.
"""

import re
from dataclasses import dataclass
from typing import Literal

from keras_mp.policies.choice import PolicyChoice

Support = Literal["fast", "slow", "emulated", "none", "unknown"]
Vendor = Literal["NVIDIA", "AMD", "Apple", "Google", "CPU", "unknown"]


@dataclass(frozen=True)
class Device:
    """Where a backend computes.

    Attributes:
        vendor: "CPU" stands for a processor of any maker.
        name: As the backend or the system calls it.
        compute_capability: NVIDIA's, such as (9, 0).
        architecture: AMD's, such as "gfx942"; a CPU's, such as "x86_64".
        instructions: A CPU's extensions, in Linux' spelling, such as "avx512_bf16"; None if they
            could not be read.
    """

    vendor: Vendor
    name: str
    compute_capability: tuple[int, int] | None = None
    architecture: str | None = None
    instructions: frozenset[str] | None = None

    def __str__(self) -> str:
        if self.compute_capability is None:
            return self.name
        return f"{self.name} (compute capability {'.'.join(map(str, self.compute_capability))})"


@dataclass(frozen=True)
class Precision:
    """How a device computes matrix products in one dtype; ``why`` is a clause for a sentence."""

    support: Support
    why: str


# A CPU is fast in bfloat16 with either of these; float16 is left out on purpose: even where units
# exist, Keras' backends do not use them (measured: convolutions 6 times slower than float32).
BF16_INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16"})
PRECISIONS = ("float32", "tf32", "float16", "bfloat16")


def precisions(device: Device) -> dict[str, Precision]:
    """What ``device`` does with float32, tf32, float16 and bfloat16."""
    rules = {
        "NVIDIA": _nvidia,
        "AMD": _amd,
        "Apple": _apple,
        "Google": _tpu,
        "CPU": _cpu,
    }.get(device.vendor, _unknown)
    return {"float32": Precision("fast", "supported"), **rules(device)}


def recommend_for(device: Device) -> PolicyChoice:
    """The policy for ``device``: the fastest that its units support and that needs least care.

    bfloat16 goes before float16 where both are fast, because it needs no loss scaling.
    """
    can = precisions(device)
    half = {name: can[name] for name in ("bfloat16", "float16")}
    fast = [name for name, precision in half.items() if precision.support == "fast"]
    slow = [name for name, precision in half.items() if precision.support == "slow"]
    if not fast:
        unknown = any(p.support == "unknown" for p in half.values())
        whys = list(dict.fromkeys(precision.why for precision in half.values()))
        reason = "; ".join(whys)
        if unknown:
            reason += ", so float32 is the safe choice"
        alternatives = tuple(f"mixed_{name}" for name in slow)
        return PolicyChoice("float32", reason, device.name, alternatives)
    best = fast[0]
    reason = half[best].why
    if best == "float16":
        reason += "; its gradients need loss scaling (keras_mp.LossScaleOptimizer)"
        if half["bfloat16"].support != "none":
            reason += f"; {half['bfloat16'].why}"
    else:
        reason += ", with float32's range: no loss scaling"
    alternatives = tuple(f"mixed_{name}" for name in fast[1:] + slow)
    return PolicyChoice(f"mixed_{best}", reason, device.name, (*alternatives, "float32"))


def emulation_warning(device: Device, policy: str) -> str | None:
    """What it costs to compute in ``policy`` on ``device``, if its units do not; else None."""
    compute = policy.removeprefix("mixed_")
    precision = precisions(device).get(compute)
    if precision is None or precision.support not in ("emulated", "none"):
        return None
    choice = recommend_for(device)
    return (
        f"{policy} on {device}: {precision.why}. It computes the right values, slowly. "
        f"Recommended here: {choice.policy} (keras_mp.set_policy('auto'))."
    )


def _nvidia(device: Device) -> dict[str, Precision]:
    if device.compute_capability is None:
        return _unknown(device)
    capability = device.compute_capability
    if capability >= (8, 0):
        return {
            "tf32": Precision("fast", "tensor cores compute TF32"),
            "float16": Precision("fast", "tensor cores compute float16"),
            "bfloat16": Precision("fast", "tensor cores compute bfloat16 as fast as float16"),
        }
    no_bf16 = Precision(
        "emulated", "bfloat16 is emulated through float32: memory is saved, speed is lost"
    )
    no_tf32 = Precision("none", "TF32 needs compute capability 8.0")
    if capability >= (7, 0):
        float16 = Precision("fast", "tensor cores compute float16 and add in float32")
    elif capability == (6, 0):
        float16 = Precision("slow", "there are no tensor cores, and float16 would save memory only")
    elif capability == (6, 1):
        float16 = Precision("emulated", "float16 runs at 1/64 of float32's rate")
    else:
        float16 = Precision("emulated", "there are no tensor cores, and float16 gains no speed")
    return {"tf32": no_tf32, "float16": float16, "bfloat16": no_bf16}


def _amd(device: Device) -> dict[str, Precision]:
    # TensorFlow and jax may give the architecture as the name, torch beside it.
    gfx = re.search(r"\bgfx[0-9a-f]+", f"{device.architecture or ''} {device.name}")
    known = gfx[0] if gfx else ""
    no_tf32 = Precision("unknown", "TF32 on this AMD device is not known")
    if known == "gfx908" or "MI100" in device.name:
        return {
            "tf32": no_tf32,
            "float16": Precision("fast", "matrix cores compute float16"),
            "bfloat16": Precision("slow", "bfloat16 runs at half of float16's rate"),
        }
    if known in ("gfx90a", "gfx942", "gfx950") or re.search(r"\bMI(2\d\d|3\d\d)", device.name):
        unit = "matrix cores compute"
    elif known.startswith("gfx11"):
        unit = "WMMA instructions compute"
    else:
        return _unknown(device)
    return {
        "tf32": no_tf32,
        "float16": Precision("fast", f"{unit} float16"),
        "bfloat16": Precision("fast", f"{unit} bfloat16 as fast as float16"),
    }


def _apple(device: Device) -> dict[str, Precision]:
    return {
        "tf32": Precision("none", "TF32 is NVIDIA's"),
        "float16": Precision("fast", "Apple's GPU computes float16"),
        "bfloat16": Precision("unknown", "bfloat16 needs macOS 14 and Apple's own GPU: try first"),
    }


def _tpu(device: Device) -> dict[str, Precision]:
    return {
        "tf32": Precision("none", "TF32 is NVIDIA's"),
        "float16": Precision("emulated", "a TPU has no float16 units"),
        "bfloat16": Precision("fast", "a TPU's matrix units compute bfloat16"),
    }


def _cpu(device: Device) -> dict[str, Precision]:
    float16 = Precision(
        "emulated", "float16 on a CPU is converted at each step: convolutions take 6 times as long"
    )
    if device.instructions is None:
        bfloat16 = Precision("unknown", "this CPU's instructions could not be read")
    elif found := sorted(BF16_INSTRUCTIONS & device.instructions):
        names = {"avx512_bf16": "AVX512_BF16", "amx_bf16": "AMX-BF16"}
        have = " and ".join(names[flag] for flag in found)
        bfloat16 = Precision("fast", f"this CPU multiplies bfloat16 itself ({have})")
    else:
        bfloat16 = Precision(
            "emulated", "this CPU has no bfloat16 instructions (AVX512_BF16, AMX): it emulates them"
        )
    return {
        "tf32": Precision("none", "TF32 is NVIDIA's"),
        "float16": float16,
        "bfloat16": bfloat16,
    }


def _unknown(device: Device) -> dict[str, Precision]:
    why = f"what {device.name} computes fast is not known"
    return {name: Precision("unknown", why) for name in ("tf32", "float16", "bfloat16")}
