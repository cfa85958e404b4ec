"""Whether something was compiled: such steps say nothing of the pace.

The first step compiles, and so does every later one that meets a new shape (the short batch at an
epoch's end, a longer sequence). jax and torch tell of it, each in its own way. TensorFlow traces
once for all shapes of a dataset, and does not tell what XLA compiles: there only the first step is
set apart.
"""

import sys
from typing import Any

_jax_seconds = [0.0]
_jax_listens = False


class CompileWatch:
    """Asks a backend what has been compiled since it was asked last.

    Args:
        backend: Name of the backend.
    """

    def __init__(self, backend: str | None):
        self._backend = backend
        if backend == "jax":
            _listen_to_jax()
        self._before = self._now()

    def forget(self) -> None:
        """What was compiled until now was none of the training's steps."""
        self._before = self._now()

    def seconds(self, window: float) -> float | None:
        """Seconds of a window that went into compiling: None for none, all of them where only that
        it happened is known."""
        before, self._before = self._before, self._now()
        if self._before is None or before is None or self._before <= before:
            return None
        return min(window, self._before - before) if self._backend == "jax" else window

    def _now(self) -> float | None:
        """A number that grows with each compilation; on jax seconds."""
        try:
            if self._backend == "jax":
                return _jax_seconds[0]
            if self._backend == "torch":
                # Private, and there is no public counter: without it a later compilation is timed
                # as a slow step.
                dynamo = sys.modules.get("torch._dynamo.utils")
                return 0.0 if dynamo is None else float(dynamo.counters["stats"]["unique_graphs"])
        except Exception:  # an API that moved
            return None
        return None


def _listen_to_jax() -> None:
    global _jax_listens
    if _jax_listens:
        return
    _jax_listens = True
    try:
        import jax

        jax.monitoring.register_event_duration_secs_listener(_heard)
    except (ImportError, AttributeError):
        return


def _heard(event: str, seconds: float, **_: Any) -> None:
    if event.startswith("/jax/core/compile/"):
        _jax_seconds[0] += seconds
