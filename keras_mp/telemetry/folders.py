"""Where the runs lie on disk: names of folders and files, and whose folder a new job takes."""

import contextlib
import errno
import os
import re
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Literal

from keras_mp.telemetry.decode import decode_meta
from keras_mp.telemetry.growing import read_start
from keras_mp.telemetry.process import is_alive

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

META_FILE = "meta.json"
MARK = "tfevents"  # in the name of each event file, as TensorBoard finds them
MAX_NAME_BYTES = 120
MAX_META_BYTES = 1 << 20  # a longer meta.json is none of ours

_EVENTS = re.compile(r"^events-(\d{1,6})(?:\.(\d{1,6}))?\.jsonl$")


def events_file(rank: int, seq: int = 0) -> str:
    """Name of the ``seq``-th journal file of a rank: ``events-0.jsonl``, ``events-0.1.jsonl``."""
    return f"events-{rank}.jsonl" if seq == 0 else f"events-{rank}.{seq}.jsonl"


def parse_events_file(name: str) -> tuple[int, int] | None:
    """``(rank, seq)`` of a journal's file name, or None if it is none."""
    match = _EVENTS.match(name)
    return None if match is None else (int(match[1]), int(match[2] or 0))


def meta_file(rank: int) -> str:
    return META_FILE if rank == 0 else f"meta-{rank}.json"


def folder_name(name: str) -> str:
    """``name`` as one folder name: separators and control signs become ``_``; the rest stays."""
    clean = re.sub(r"[/\\\x00-\x1f\x7f\ud800-\udfff]", "_", name).strip()
    clean = re.sub(r"^\.+", "_", clean)
    while len(clean.encode()) > MAX_NAME_BYTES:
        clean = clean[:-1]
    return clean or "run"


# Run folders that a writer of this process has open, each with the descriptor of its lock: a second
# job of the same name, beside the first, gets a folder of its own, while one that comes after it
# goes on in the same folder.
_open_folders: dict[str, int | None] = {}
_open_lock = threading.Lock()

LOCK_FILE = ".writer"


def _lock(folder: Path) -> int | Literal[False] | None:
    """Lock the run against other processes, until this one ends, however it ends.

    Two jobs of one name that start in the same instant cannot see it in ``meta.json`` yet. A POSIX
    lock goes with its process, is not handed to forked children, and works over NFS.

    Returns:
        The descriptor to keep; False if another process has the lock; None where it cannot be told
        (no such locks, a folder that cannot be written: the journal will say so).
    """
    if fcntl is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(folder / LOCK_FILE, flags, 0o666)
    except OSError:
        return None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except OSError as error:
        os.close(descriptor)
        return False if error.errno in (errno.EACCES, errno.EAGAIN) else None


def _held_by_other(folder: Path) -> bool:
    """Does another live process write this run? (Its own meta.json names it.)"""
    try:
        meta = decode_meta(read_start(folder / META_FILE, MAX_META_BYTES))
    except OSError:
        return False
    if meta is None or meta.pid == os.getpid():
        return False
    return is_alive(meta.pid, meta.process_started, meta.host) is True


def claim_run(
    runs: str | os.PathLike[str], name: str | None, default: str = "run", shared: bool = False
) -> Path:
    """The folder that a job called ``name`` writes to, below ``runs``.

    With a name: that folder, so that a resumed job goes on in its own journal. Without: a fresh
    one, called after ``default`` and the time. A folder that another live job is writing is never
    shared: the new one is called ``name-2``, ``name-3`` and so on. Only a lock file is created.

    With ``shared`` (the further ranks of one job) it is the folder of that name in any case.
    """
    base = folder_name(name if name else f"{default}-{time.strftime('%Y%m%d-%H%M%S')}")
    if shared:
        return Path(runs) / base
    for number in range(1, 10_000):
        folder = Path(runs) / (base if number == 1 else f"{base}-{number}")
        key = os.path.abspath(folder)
        with _open_lock:
            if key in _open_folders or (name is None and os.path.lexists(folder)):
                continue
            if name is not None and _held_by_other(folder):
                continue
            lock = _lock(folder)
            if lock is False:
                continue
            _open_folders[key] = lock
            return folder
    raise ValueError(
        f"There are already 9,999 live runs called {base!r}; expected a free name. "
        f"Received: name={name!r}"
    )


def release_run(folder: Path) -> None:
    """A later writer of this process may go on in ``folder``."""
    with _open_lock:
        lock = _open_folders.pop(os.path.abspath(folder), None)
        if lock is not None:
            with contextlib.suppress(OSError):
                os.close(lock)
