"""Published peak figures of accelerators, from ``devices.csv``: each with the place it stands.

Only figures that at least one public source confirms; none was measured by this project.
"""

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from keras_mp.policies.hardware import Device, Vendor

_COLUMNS = {
    "fp32_tflops": "float32",
    "tf32_tflops": "tf32",
    "fp16_tflops": "float16",
    "bf16_tflops": "bfloat16",
    "fp8_tflops": "float8",
}


@dataclass(frozen=True)
class Card:
    """One accelerator; a figure that is not known is absent (or None).

    Attributes:
        tflops: Peak TFLOPS by precision: dense, with float32 accumulation.
        bandwidth: GB/s. memory: GB. source: Where the figures stand.
    """

    device: Device
    tflops: dict[str, float]
    bandwidth: float | None
    memory: float | None
    source: str


@cache
def cards() -> tuple[Card, ...]:
    """Every card of the table."""
    text = (resources.files(__package__) / "devices.csv").read_text(encoding="utf-8")
    return tuple(_card(row) for row in csv.DictReader(text.splitlines()))


def find_card(name: str) -> Card | None:
    """The card that a device's name means, or None.

    All words of the card's name must stand in it: "NVIDIA A100-SXM4-80GB" is "A100 SXM 80GB".
    """
    have = _words(name)
    matches = [
        card
        for card in cards()
        if all(any(word.startswith(want) for word in have) for want in _words(card.device.name))
    ]
    return max(matches, key=lambda card: len(_words(card.device.name)), default=None)


def device_named(text: str) -> Device:
    """A device to ask about without having it.

    Args:
        text: A card's name or part of it ("A100"), an NVIDIA compute capability ("7.5", "sm_75"),
            an AMD architecture ("gfx90a"), "tpu", "mps", or "cpu" for a processor without bfloat16
            instructions.

    Raises:
        ValueError: Nothing of that name is known; the message lists what is.
    """
    if match := re.fullmatch(r"(?:sm_?)?(\d{1,2})\.?(\d)", text.strip().lower()):
        capability = (int(match[1]), int(match[2]))
        return Device("NVIDIA", "NVIDIA GPU", compute_capability=capability)
    generic = {
        "tpu": Device("Google", "TPU"),
        "mps": Device("Apple", "Apple GPU"),
        "cpu": Device("CPU", "CPU", instructions=frozenset()),
    }
    if re.fullmatch(r"gfx[0-9a-f]{3,4}", text.strip().lower()):
        architecture = text.strip().lower()
        return Device("AMD", f"AMD {architecture}", architecture=architecture)
    if text.strip().lower() in generic:
        return generic[text.strip().lower()]
    wanted = _words(text)
    for card in cards():
        if wanted and wanted <= _words(card.device.name):
            return card.device
    if match := re.fullmatch(r"(?:amd )?(?:instinct )?(mi[23]\d\d[a-z]?)", text.strip().lower()):
        return Device("AMD", match[1].upper())  # known by its family, whether or not in the table
    names = ", ".join(card.device.name for card in cards())
    raise ValueError(
        f"There is no device of that name. Expected part of one of these names: {names}; or an "
        "NVIDIA compute capability such as 7.5; an AMD architecture such as gfx90a; or cpu, mps, "
        f"tpu. Received: device={text!r}"
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", text.lower()))


def _card(row: dict[str, str]) -> Card:
    capability = row["compute_capability"]
    vendor: Vendor = row["vendor"]  # type: ignore[assignment]  # the table is tested against it
    device = Device(
        vendor,
        row["name"],
        compute_capability=_capability(capability) if vendor == "NVIDIA" else None,
        architecture=capability if capability.startswith("gfx") else None,
    )
    tflops = {name: float(row[column]) for column, name in _COLUMNS.items() if row[column]}
    return Card(
        device,
        tflops,
        bandwidth=float(row["bandwidth_gb_s"]) if row["bandwidth_gb_s"] else None,
        memory=float(row["memory_gb"]) if row["memory_gb"] else None,
        source=row["source"],
    )


def _capability(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)
