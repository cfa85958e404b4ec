"""Is the process of a job still there? Told apart from a later process that got the same number.

psutil is imported where it is asked something: those who look at ended jobs alone never do.
"""

import socket

# A process' start time comes from the kernel in hundredths of a second relative to the boot, whose
# own wall clock time moves by a second or so when the clock is set.
START_TOLERANCE = 5.0

HOST = socket.gethostname()


def own_start() -> float | None:
    """Start time of this process, seconds since the epoch."""
    import psutil

    try:
        return psutil.Process().create_time()
    except psutil.Error:
        return None


def start_of(pid: int) -> float | None:
    """Start time of a living process of this machine; None if there is none (or it is hidden)."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except (psutil.Error, ValueError, OverflowError):
        return None


def is_alive(pid: int, started: float | None, host: str | None = None) -> bool | None:
    """Whether that very process runs on this machine.

    Args:
        pid: Its number.
        started: Its start time (seconds since the epoch), None if not known.
        host: The machine it ran on, None for this one.

    Returns:
        None if that cannot be told (another machine, or not permitted to look).
    """
    if host is not None and host != HOST:
        return None
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return started is None or abs(process.create_time() - started) <= START_TOLERANCE
    except psutil.AccessDenied:
        return None
    except (psutil.Error, ValueError, OverflowError):
        return False


def resident_bytes() -> int | None:
    """Resident set of this process in bytes, None where it cannot be read."""
    import psutil

    try:
        return int(psutil.Process().memory_info().rss)
    except psutil.Error:
        return None
