"""What happens to the numbers: formats, histograms, a look inside a model, what it keeps."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """``keras_mp.numerics.memory`` by its name alone; the others are imported by who uses them."""
    if name == "memory":
        return importlib.import_module("keras_mp.numerics.memory")
    raise AttributeError(f"module 'keras_mp.numerics' has no attribute {name!r}")
