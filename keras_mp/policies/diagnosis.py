"""What this machine and its environment mean for mixed precision: the substance of ``doctor``."""

import importlib
import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from keras_mp._backend import BACKENDS, chosen_backend, explain_missing, installed
from keras_mp.policies import switches
from keras_mp.policies.cards import Card, device_named, find_card
from keras_mp.policies.choice import PolicyChoice
from keras_mp.policies.hardware import Device, Precision, precisions, recommend_for

Severity = Literal["warning", "error"]
SWITCHES = (switches.POLICY, switches.FLOATX, "KERAS_MP_TF32", "NVIDIA_TF32_OVERRIDE")


@dataclass(frozen=True)
class Trouble:
    """Something to act on, with the action in the sentence."""

    severity: Severity
    message: str


@dataclass
class Diagnosis:
    """What was found.

    Attributes:
        backend, chosen_by, version: Keras' backend; None where only a device was asked about.
        others: Further backends that are installed.
        precisions: By dtype, what the device does with it.
        choice: What ``set_policy("auto")`` sets.
        card: Published peak figures, where the device is in our table.
        switches: Environment variables that choose a precision, as they are set.
    """

    backend: str | None = None
    chosen_by: str | None = None
    version: str | None = None
    others: tuple[str, ...] = ()
    device: Device | None = None
    precisions: dict[str, Precision] = field(default_factory=dict)
    choice: PolicyChoice | None = None
    card: Card | None = None
    switches: dict[str, str] = field(default_factory=dict)
    troubles: list[Trouble] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        """0 well, 1 a warning, 2 something that will not work."""
        severities = {trouble.severity for trouble in self.troubles}
        return 2 if "error" in severities else 1 if severities else 0

    def as_json(self) -> dict[str, Any]:
        """The same as JSON's types; what is not known is None."""
        device, choice, card = self.device, self.choice, self.card
        capability = device.compute_capability if device else None
        return {
            "backend": self.backend,
            "chosen_by": self.chosen_by,
            "version": self.version,
            "other_backends": list(self.others),
            "device": device
            and {
                "vendor": device.vendor,
                "name": device.name,
                "compute_capability": capability and ".".join(map(str, capability)),
                "architecture": device.architecture,
            },
            "precisions": {
                name: {"support": precision.support, "why": precision.why}
                for name, precision in self.precisions.items()
            },
            "policy": choice and choice.policy,
            "reason": choice and choice.reason,
            "alternatives": list(choice.alternatives) if choice else [],
            "peak_tflops": card and card.tflops,
            "peak_source": card and card.source,
            "switches": self.switches,
            "troubles": [{"severity": t.severity, "message": t.message} for t in self.troubles],
            "exit_status": self.exit_status,
        }


def diagnose_device(name: str) -> Diagnosis:
    """A device that need not be here.

    Raises:
        ValueError: There is no such device in our tables.
    """
    return _about(Diagnosis(), device_named(name))


def diagnose() -> Diagnosis:
    """The backend, the device and the environment of this process."""
    backend, why = chosen_backend()
    others = tuple(name for name in BACKENDS if name != backend and installed(name))
    found = Diagnosis(backend, why, others=others)
    found.switches = {name: os.environ[name] for name in SWITCHES if os.environ.get(name)}
    if backend not in BACKENDS:
        found.troubles.append(
            Trouble("error", f"keras-mp works on {', '.join(BACKENDS)}, not on {backend!r}")
        )
        return found
    if not installed(backend):
        found.troubles.append(Trouble("error", str(explain_missing(backend, why))))
        return found

    from keras_mp.policies.detect import current_device

    found.version = getattr(importlib.import_module(backend), "__version__", None)
    _about(found, current_device())
    _check_switches(found)
    _check_idle_gpu(found)
    return found


def _about(found: Diagnosis, device: Device) -> Diagnosis:
    found.device = device
    found.precisions = precisions(device)
    found.choice = recommend_for(device)
    found.card = find_card(device.name)
    return found


def _check_switches(found: Diagnosis) -> None:
    """Try each switch as the library does, so that the words are the library's."""
    from keras_mp.policies.policy import policy_scope
    from keras_mp.policies.tf32 import requested_tf32

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with policy_scope("auto") as choice:
                found.choice = choice
        except ValueError as error:
            found.troubles.append(Trouble("error", str(error)))
        try:
            requested_tf32()
        except ValueError as error:
            found.troubles.append(Trouble("error", str(error)))
    found.troubles += [Trouble("warning", str(warning.message)) for warning in caught]


def _check_idle_gpu(found: Diagnosis) -> None:
    if found.device is None or found.device.vendor != "CPU" or not nvidia_driver():
        return
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        hint = f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} may hide it"
    else:
        hint = f"install a build of {found.backend} with CUDA"
    message = f"There is an NVIDIA GPU, and {found.backend} computes on the processor: {hint}."
    found.troubles.append(Trouble("warning", message))


def nvidia_driver() -> bool:
    """Whether NVIDIA's kernel driver is loaded here."""
    return Path("/proc/driver/nvidia/version").exists()
