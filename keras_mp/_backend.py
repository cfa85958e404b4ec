"""Which Keras backend this process uses, and what to say when it is not installed.

Imports no backend itself.
"""

import importlib.util
import json
import os
from pathlib import Path

# Backend, as KERAS_BACKEND names it -> the extra of keras-mp that installs it (the same names).
BACKENDS = ("torch", "tensorflow", "jax")


class MissingBackendError(ImportError):
    """Keras' backend is not installed."""


def chosen_backend() -> tuple[str, str]:
    """The backend that Keras will load, and what decides that; by Keras' own rule.

    The environment variable wins over the ``keras.json`` in KERAS_HOME; else it is tensorflow.
    """
    if "KERAS_BACKEND" in os.environ:
        return os.environ["KERAS_BACKEND"], "KERAS_BACKEND"
    home = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
    try:
        chosen = json.loads((home / "keras.json").read_text())["backend"]
    except (OSError, ValueError, KeyError, TypeError):
        return "tensorflow", "Keras' default"
    return str(chosen), str(home / "keras.json")


def installed(backend: str) -> bool:
    """Whether the package of a backend can be found; nothing is imported."""
    try:
        return importlib.util.find_spec(backend) is not None
    except (ImportError, ValueError):
        return False


def explain_missing(backend: str, why: str) -> MissingBackendError:
    """The sentence for a backend that cannot be imported.

    Args:
        backend: Its name, as KERAS_BACKEND has it.
        why: What chose it, such as "KERAS_BACKEND".
    """
    others = [name for name in BACKENDS if name != backend and installed(name)]
    fix = f"Install it with: pip install 'keras-mp[{backend}]'."
    if others:
        fix += f" Or use one that is installed: set KERAS_BACKEND={others[0]} before Keras loads."
    else:
        fix += " The extras torch, tensorflow and jax each bring one backend."
    return MissingBackendError(
        f"Keras needs a backend, and '{backend}' (chosen by {why}) is not installed. {fix}"
    )


def translate(error: ModuleNotFoundError) -> ModuleNotFoundError | MissingBackendError:
    """An import error of Keras' backend as a sentence with the fix; any other as it is."""
    if error.name not in BACKENDS:
        return error
    chosen, why = chosen_backend()
    return explain_missing(error.name, why if chosen == error.name else "Keras")
