"""Ctrl+Z: may the dashboard be stopped, or would nobody ever bring it back?"""

import os

NO_SHELL = "There is no shell behind this dashboard that could bring it back."


def possible() -> bool:
    """Whether a shell with job control started this process.

    Such a shell is in the same session and gives each job a process group of its own. Behind
    ``docker run``, ``ssh -t host keras-mp monitor`` or a tmux window of its own there is none, and
    a stopped dashboard would hold the terminal for good.
    """
    if not hasattr(os, "getsid"):
        return False
    try:
        parent = os.getppid()
        return os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != os.getpgrp()
    except OSError:  # the parent has gone, or is not ours to ask
        return False
