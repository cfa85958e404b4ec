"""GPUs and memory of another host, as its relay sends them: what is said there, checked here."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from keras_mp.telemetry.decode import inert
from tui.devices import Devices, Gpu, History, Machine

MAX_GPUS, MAX_PROCESSES = 64, 1000


def encode(devices: Devices) -> dict[str, Any]:
    """As JSON holds it, without the history: the near end keeps its own."""
    machine = devices.machine
    return {
        "host": devices.host,
        "reason": devices.reason,
        "machine": {n: getattr(machine, n) for n in ("used", "total", "utilisation", "cores")},
        "gpus": [
            {
                **{name: getattr(gpu, name) for name in _GPU},
                "processes": {str(pid): held for pid, held in gpu.processes.items()},
            }
            for gpu in devices.gpus
        ],
    }


_GPU = ("index", "name", "used", "total", "utilisation", "temperature", "power")


class FarDevices:
    """What one host has, with the last ten minutes of it."""

    def __init__(self) -> None:
        self._history: dict[str, History] = {}

    def take(self, said: Any, now: float) -> Devices | None:
        """The devices that a relay told at ``now``; None where it is none of ours."""
        if not isinstance(said, dict) or not isinstance(said.get("host"), str):
            return None
        listed = said.get("gpus")
        gpus = [self._gpu(g, now) for g in listed[:MAX_GPUS]] if isinstance(listed, list) else []
        reason, machine = said.get("reason"), said.get("machine")
        return Devices(
            gpus=tuple(gpu for gpu in gpus if gpu is not None),
            reason=inert(reason) if isinstance(reason, str) else "",
            machine=self._machine(machine if isinstance(machine, dict) else {}, now),
            host=inert(said["host"]),
        )

    def _gpu(self, said: Any, now: float) -> Gpu | None:
        if not isinstance(said, dict) or _whole(said.get("index")) is None:
            return None
        name = said.get("name")
        gpu = Gpu(
            index=said["index"],
            name=inert(name) if isinstance(name, str) else "GPU",
            used=_whole(said.get("used")),
            total=_whole(said.get("total")),
            utilisation=_share(said.get("utilisation")),
            temperature=_whole(said.get("temperature")),
            power=_number(said.get("power")),
            processes=_processes(said.get("processes")),
        )
        past = self._history.setdefault(f"gpu{gpu.index}", History())
        return replace(gpu, history=past.add(now, gpu.used, gpu.total, gpu.utilisation))

    def _machine(self, said: Mapping[str, Any], now: float) -> Machine:
        used, total = _whole(said.get("used")), _whole(said.get("total"))
        busy = _share(said.get("utilisation"))
        past = self._history.setdefault("machine", History())
        cores = _whole(said.get("cores"))
        return Machine(used, total, busy, cores, past.add(now, used, total, busy))


def _processes(said: Any) -> dict[int, int | None]:
    if not isinstance(said, dict):
        return {}
    pairs = list(said.items())[:MAX_PROCESSES]
    return {int(pid): _whole(held) for pid, held in pairs if pid.isdecimal() and len(pid) < 12}


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def _number(value: Any) -> float | None:
    good = type(value) in (int, float) and math.isfinite(value) and 0 <= value < 1e9
    return float(value) if good else None


def _share(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and number <= 1 else None
