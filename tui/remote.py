"""Journals on another machine: ``host:runs``, over plain ssh.

A thread of its own keeps ``ssh host keras-mp relay runs`` running and writes what arrives into a
private folder; the reader reads that folder as any other. A host that goes away keeps its last
known state, is tried again after a while, and never makes anybody wait.
"""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import IO, Any

from keras_mp.telemetry.decode import inert
from keras_mp.telemetry.folders import MARK, parse_events_file
from keras_mp.telemetry.jobs import Job
from keras_mp.telemetry.relay import FRAME_BYTES, MAX_META_BYTES, is_event_file, is_meta
from keras_mp.telemetry.runs import RunsFolder
from tui.devices import Devices
from tui.far_devices import FarDevices

_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=2")
SSH = ("ssh", "-T", *(word for o in (*_OPTIONS, "ClearAllForwardings=yes") for word in ("-o", o)))
FIRST_RETRY, LAST_RETRY = 1.0, 60.0
# Whoever has not said a word of ours for so long (a login that hangs), or so much else, never will.
CONNECT_SECONDS, MAX_GREETING_BYTES = 60.0, 256 << 10
# The relay speaks every two seconds; after this long without a word the host is called away.
SILENT_SECONDS = 10.0
MAX_HEAD_BYTES = 64 << 10


def command(host: str, path: str) -> list[str]:
    """What is run here. The far shell sees one quoted word for the path, whatever is in it."""
    far = f"keras-mp relay --since - -- {shlex.quote(path)}"
    return [*SSH, "--", host, far]


class RemoteRuns:
    """Looks like a ``RunsFolder``: ``jobs``, ``error``, ``loading``, ``poll``.

    Args:
        host, path: Where the journals are.
        start: Starts the relay; tests may take another. Defaults to ssh.

    Attributes:
        last_heard: When the host last spoke (seconds since the epoch); None if it never did.
    """

    def __init__(
        self, host: str, path: str, start: Callable[[], subprocess.Popen[bytes]] | None = None
    ):
        self.host, self.path = host, path
        self.last_heard: float | None = None
        self._start = start or self._ssh
        self._mirror = Path(tempfile.mkdtemp(prefix="keras-mp-"))
        self._folder = RunsFolder(self._mirror)
        self._far = FarDevices()
        self._devices: Devices | None = None
        self._said: str | None = None
        self._trouble: str | None = "connecting"
        self._connected = False
        self._began = self._retry_at = 0.0
        self._stop = threading.Event()
        self._caught_up = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name=f"relay {host}", daemon=True)
        self._thread.start()

    # What the reader sees.

    @property
    def jobs(self) -> list[Job]:
        return self._folder.jobs

    @property
    def where(self) -> str:
        return f"{self.host}:{self.path}"

    @property
    def loading(self) -> bool:
        return self._folder.loading

    @property
    def devices(self) -> Devices | None:
        """The host's GPUs and memory; None while it is away or does not tell."""
        return None if self.away else self._devices

    @property
    def catching_up(self) -> bool:
        return self._folder.catching_up

    @property
    def away(self) -> bool:
        """Whether the host does not answer now."""
        heard = self.last_heard
        return not self._connected or heard is None or time.time() - heard > SILENT_SECONDS

    @property
    def error(self) -> str | None:
        where = self.where
        if not self.away:
            return f"{self.host}: {self._said}" if self._said else None
        if self._trouble == "connecting":
            return f"{where}: connecting …"
        if self._connected:
            return f"{where} is unreachable: it has stopped answering"
        wait = max(0, round(self._retry_at - time.monotonic()))
        again = f"next try in {wait} s" if wait else "trying again"
        return f"{where} is unreachable: {inert(self._trouble or '')}; {again}"

    def settle(self, seconds: float) -> None:
        """Wait until the host has sent what it has, or for ``seconds``; then read it all."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._caught_up.wait(0.1):
            if self._trouble not in (None, "connecting") and not self._connected:
                break
        if self._trouble == "connecting" and not self._connected:
            self._trouble = f"no answer within {seconds:.0f} s"
        self._folder.poll(None)

    def poll(
        self,
        seconds: float | None = 0.2,
        hurry: bool = False,
        only: Container[str] | None = None,
    ) -> list[Job]:
        child, waited = self._child, time.monotonic() - self._began
        if child is not None and not self._connected and waited > CONNECT_SECONDS:
            child.kill()  # which ends the thread's wait for it
        return self._folder.poll(seconds, hurry, only)

    def close(self) -> None:
        """End the relay and forget the copy."""
        self._stop.set()
        child = self._child
        if child is not None and child.poll() is None:
            child.terminate()
        self._thread.join(timeout=3.0)
        shutil.rmtree(self._mirror, ignore_errors=True)

    # The thread.

    def _ssh(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command(self.host, self.path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the dashboard is not for it
        )

    def _run(self) -> None:
        wait = FIRST_RETRY
        while not self._stop.is_set():
            before = self.last_heard
            self._trouble = self._follow()
            self._connected = False
            if self.last_heard != before:
                wait = FIRST_RETRY
            self._retry_at = time.monotonic() + wait
            self._stop.wait(wait)
            wait = min(wait * 2, LAST_RETRY)

    def _follow(self) -> str:
        """One connection, to its end. Returns why it ended."""
        self._began = time.monotonic()
        try:
            child = self._child = self._start()
        except OSError as error:
            return f"ssh cannot be started ({error.strerror})"
        noise: list[bytes] = []
        listener = threading.Thread(target=_drain, args=(child.stderr, noise), daemon=True)
        listener.start()
        reason = ""
        try:
            if child.stdin is not None:
                child.stdin.write(json.dumps(self._have()).encode() + b"\n")
                child.stdin.flush()
            if child.stdout is not None:
                self._receive(child.stdout)
        except (OSError, ValueError) as error:
            reason = str(error)
        finally:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            child.terminate()
            try:
                child.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            listener.join(timeout=1.0)
            if child.stderr is not None:
                child.stderr.close()
        if not self._connected and time.monotonic() - self._began > CONNECT_SECONDS:
            reason = f"no answer within {CONNECT_SECONDS:.0f} s"
        said = b"".join(noise).decode(errors="replace").strip().splitlines()
        return said[-1] if said else reason or f"the connection ended (status {child.returncode})"

    def _have(self) -> dict[str, int]:
        files = [*self._mirror.glob("*/events-*.jsonl"), *self._mirror.glob(f"**/*{MARK}*")]
        return {p.relative_to(self._mirror).as_posix(): p.stat().st_size for p in files}

    def _receive(self, pipe: IO[bytes]) -> None:
        greeting = 0
        while not self._stop.is_set():
            line = pipe.readline(MAX_HEAD_BYTES)
            if not line:
                return
            try:
                head = json.loads(line)
            except ValueError:
                head = None
            if not isinstance(head, dict):  # a greeting of the far shell, before the first frame
                greeting += len(line)
                if greeting > MAX_GREETING_BYTES:
                    raise ValueError("what answers there is no relay of keras-mp's")
                continue
            self._connected, self.last_heard = True, time.time()
            if "file" in head:
                self._take(head, pipe)
            elif "devices" in head:
                self._devices = self._far.take(head["devices"], time.time())
            elif "error" in head:
                self._said = inert(str(head["error"]))
                self._caught_up.set()
            else:  # a sign of life: nothing is waiting to be sent
                self._said = None
                self._caught_up.set()

    def _take(self, head: dict[str, Any], pipe: IO[bytes]) -> None:
        name, offset, size = head.get("file"), head.get("offset"), head.get("size")
        if not isinstance(name, str) or type(offset) is not int or type(size) is not int:
            raise ValueError("the far end sent a frame that is none")
        if not 0 <= size <= max(FRAME_BYTES, MAX_META_BYTES) or offset < 0:
            raise ValueError("the far end sent a frame of an impossible size")
        data = pipe.read(size + 1)[:-1]
        if len(data) < size:
            return  # the connection broke within the frame: what arrived is asked for again
        path = self._place(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_meta(path.name):
            scratch = path.with_name(f".{path.name}")
            scratch.write_bytes(data)
            os.replace(scratch, path)
            return
        mode = "r+b" if path.exists() and offset else "wb"
        with open(path, mode) as file:
            if offset and os.fstat(file.fileno()).st_size < offset:
                raise ValueError("the far end left out a part of a journal")
            file.seek(offset)
            file.write(data)

    def _place(self, name: str) -> Path:
        """Where a file of the far end goes: a run's folder and a journal's name, or another
        program's event file in it or one folder deeper; nothing else."""
        if is_event_file(name):
            return self._mirror / name
        run, slash, file = name.partition("/")
        good = run not in ("", ".", "..") and "\0" not in name and "/" not in file
        if not slash or not good or not (parse_events_file(file) or is_meta(file)):
            raise ValueError("the far end sent a file that is no journal")
        return self._mirror / run / file


def _drain(pipe: IO[bytes] | None, into: list[bytes]) -> None:
    """Keep the last of what ssh complains about."""
    if pipe is None:
        return
    with contextlib.suppress(ValueError, OSError):  # closed under the reader's hands
        for line in pipe:
            into.append(line[:500])
            del into[:-5]
