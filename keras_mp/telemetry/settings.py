"""What Monitor and Run are both told: checked once, before a training depends on it."""

import math
import os
from dataclasses import dataclass
from typing import Any

from keras_mp.telemetry import about
from keras_mp.telemetry.alerts import OnAlert

Folder = str | os.PathLike[str]


@dataclass(frozen=True)
class Settings:
    """Where and how a job writes about itself; Monitor's docstring has the words for each.

    Attributes:
        every: Steps between two looks at the device; None decides by what a look costs.
        rank, world: Which process of the job, of how many.
    """

    runs: Folder
    name: str | None
    every: int | None
    on_alert: OnAlert | None
    rank: int
    world: int
    buffer: float
    tensorboard: Folder | None


def checked(
    runs: Any, name: Any, every: Any, on_alert: Any, rank: Any, buffer: Any, tensorboard: Any
) -> Settings:
    """The settings that a user's arguments mean.

    Raises:
        ValueError: One of them is out of range.
    """
    _folder("runs", runs)
    if name is not None and not isinstance(name, str):
        raise ValueError(f"`name` must be a text or None. Received: name={name!r}")
    if on_alert is not None and not callable(on_alert):
        raise ValueError(
            f"`on_alert` must be a function of one alert. Received: on_alert={on_alert!r}"
        )
    if rank is not None and not (_whole(rank) and rank >= 0):
        raise ValueError(f"`rank` must be a number from 0 on. Received: rank={rank!r}")
    seconds = isinstance(buffer, int | float) and not isinstance(buffer, bool)
    if not seconds or not 0 <= buffer < math.inf:
        raise ValueError(f"`buffer` must be seconds from 0 on. Received: buffer={buffer!r}")
    if tensorboard is not None:
        _folder("tensorboard", tensorboard)
    own, world = about.rank_and_world()
    return Settings(
        runs,
        name,
        check_every(every),
        on_alert,
        own if rank is None else rank,
        world,
        float(buffer),
        tensorboard,
    )


def check_loop(optimizer: Any, policy: Any, planned_steps: Any, initial_step: Any) -> None:
    """What only a loop of one's own is told.

    Raises:
        ValueError: One of the arguments is out of range.
    """
    if isinstance(optimizer, str | list | tuple):
        raise ValueError(
            "`optimizer` must be an optimizer, or several in a dict by name. Received: "
            f"optimizer={optimizer!r}"
        )
    if policy is not None and not isinstance(policy, str):
        raise ValueError(f"`policy` must be a policy's name. Received: policy={policy!r}")
    for name, value in (("planned_steps", planned_steps), ("initial_step", initial_step)):
        if value is not None and not (_whole(value) and value >= 0):
            raise ValueError(f"`{name}` must be a number from 0 on. Received: {name}={value!r}")


def check_every(every: Any) -> int | None:
    """``every`` as a number of steps; None for "auto"."""
    if every == "auto":
        return None
    if not _whole(every) or every < 1:
        raise ValueError(
            f'`every` must be "auto" or a number of steps from 1 on. Received: every={every!r}'
        )
    return int(every)


def _whole(value: Any) -> bool:
    """Whether it is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def _folder(name: str, value: Any) -> None:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError(f"`{name}` must be a folder's path. Received: {name}={value!r}")
