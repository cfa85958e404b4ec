"""``keras-mp relay``: send the journals under a folder down a pipe; host:runs starts it there."""

import argparse
import contextlib
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from keras_mp.telemetry.relay import Relay

HELP = "send the journals under a folder to standard output as they grow (for host:runs over ssh)"

# How often the files are looked at, and how often a sign of life is sent.
POLL_SECONDS = 0.25
HEARTBEAT_SECONDS = 2.0
EXIT_WRONG_USE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUNS", help="folder of runs")
    parser.add_argument(
        "--since",
        default="{}",
        metavar="OFFSETS",
        help="JSON of file name to bytes that the other end has; - reads it from standard input, "
        "and ends when that is closed",
    )
    parser.add_argument("--once", action="store_true", help="send what there is, and exit")


def run(args: argparse.Namespace) -> int:
    from keras_mp.telemetry.relay import Relay

    waiting = args.since == "-"
    try:
        since = json.loads(sys.stdin.readline() if waiting else args.since)
        if not isinstance(since, dict) or not all(type(v) is int for v in since.values()):
            raise ValueError("expected an object of file name to bytes")
    except ValueError as error:
        print(f"keras-mp relay: --since is no JSON of offsets: {error}", file=sys.stderr)
        return EXIT_WRONG_USE
    if waiting and not args.once:
        threading.Thread(target=_end_with_input, daemon=True).start()
    relay = Relay(os.path.expanduser(args.runs), since)
    with contextlib.suppress(BrokenPipeError):
        _send(relay, args.once, _devices)
    # The reader has gone: flushing standard output at exit would complain about that.
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _devices() -> "Callable[[], bytes]":
    """Tells this host's GPUs and memory, as a frame without a body."""
    from tui.devices import DeviceReader
    from tui.far_devices import encode

    reader = DeviceReader()

    def tell() -> bytes:
        return json.dumps({"devices": encode(reader.read(time.time()))}).encode() + b"\n"

    return tell


def _send(relay: "Relay", once: bool, devices: "Callable[[], Callable[[], bytes]]") -> None:
    out = sys.stdout.buffer
    spoken, said, news = 0.0, None, True
    told, tell = 0.0, None
    while True:
        sent = 0
        for frame in relay.frames():
            out.write(frame.encode())
            sent += 1
        if relay.error != said:
            said = relay.error
            out.write(json.dumps({"error": said} if said else {}).encode() + b"\n")
        # A sign of life now and then, and at once when everything there was has been sent.
        now = time.monotonic()
        if not sent and not said and (news or now - spoken >= HEARTBEAT_SECONDS):
            out.write(b"{}\n")
        elif said and now - spoken >= HEARTBEAT_SECONDS:
            out.write(json.dumps({"error": said}).encode() + b"\n")
        else:
            now = spoken
        spoken, news = now, sent > 0
        # Only once the journals are there: they are what somebody waits for.
        if not once and not sent and time.monotonic() - told >= HEARTBEAT_SECONDS:
            tell = tell or devices()
            told = time.monotonic()
            out.write(tell())
        out.flush()
        if not sent:
            if once:
                return
            time.sleep(POLL_SECONDS)


def _end_with_input() -> None:
    """The connection is gone when standard input ends: nobody is left to send to."""
    with contextlib.suppress(OSError, ValueError):
        while sys.stdin.buffer.read(4096):
            pass
    os._exit(0)
