"""Ask a job of this machine to end: the only thing that the dashboard does to a job."""

import os
import signal

from keras_mp.telemetry.health import Alive
from keras_mp.telemetry.process import HOST
from tui.job_cells import ENDED
from tui.snapshot import JobView

# Key -> what is sent, and what that means.
SIGNALS: dict[str, tuple[signal.Signals, str]] = {
    "i": (signal.SIGINT, "interrupt it, as Ctrl-C does: Keras ends cleanly, Monitor says so"),
    "t": (signal.SIGTERM, "terminate it"),
}


def why_not(job: JobView, alive: Alive, host: str = HOST) -> str | None:
    """Why the job cannot be stopped from here, in a sentence; None if it can."""
    if job.verdict.state in ENDED:
        return f"{job.name} is over already."
    if job.meta is None or job.meta.host != host:
        where = f" ({job.meta.host})" if job.meta is not None else ""
        return f"{job.name} runs on another machine{where}: it cannot be stopped from here."
    # By its start time as well: a number may belong to another process by now.
    if alive(job.meta.pid, job.meta.process_started, job.meta.host) is not True:
        return f"Process {job.meta.pid} of {job.name} is not to be found."
    return None


def stop(job: JobView, key: str, alive: Alive, host: str = HOST) -> str:
    """Send the signal of a key; returns what happened, in a sentence."""
    problem = why_not(job, alive, host)
    if problem is not None or job.meta is None:
        return problem or f"{job.name} is not known."
    what = SIGNALS[key][0]
    try:
        os.kill(job.meta.pid, what)
    except ProcessLookupError:
        return f"Process {job.meta.pid} of {job.name} has just ended."
    except PermissionError:
        return f"Process {job.meta.pid} of {job.name} belongs to somebody else."
    return f"Sent {what.name} to {job.name} (process {job.meta.pid})."
