"""What the dashboard is told to watch: folders of this machine, and of others."""

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keras_mp.telemetry.runs import RunsFolder

if TYPE_CHECKING:
    from tui.remote import RemoteRuns

# What ssh takes as a host: a name, user@name, or an alias of its own settings; C:\runs is none.
_REMOTE = re.compile(
    r"^(?!.:\\)(?P<host>(?!-)[A-Za-z0-9_.@%-]+|\[[0-9a-fA-F:.]+\]):(?P<path>.+)$", re.S
)


def parse(place: str) -> tuple[str, str] | None:
    """``(host, path)`` of ``host:path``; None for a folder of this machine."""
    if os.path.exists(place):
        return None
    match = _REMOTE.match(place)
    return (match["host"].strip("[]"), match["path"]) if match else None


def open_places(places: Sequence[str]) -> "dict[str, RunsFolder | RemoteRuns]":
    """Each place, opened: a folder of this machine, or one of another."""
    opened: dict[str, RunsFolder | RemoteRuns] = {}
    for place in places:
        remote = parse(place)
        if remote is None:
            opened[place] = RunsFolder(place)
        else:
            from tui import remote as ssh  # starts processes: only for those who need it

            opened[place] = ssh.RemoteRuns(*remote)
    return opened
