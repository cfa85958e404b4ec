"""What ``trial`` takes, checked before anything is started."""

import math
import operator
from collections.abc import Sequence
from typing import Any

VARIANTS = ("float32", "mixed_bfloat16", "mixed_float16", "planned")


def checked_variants(variants: Sequence[str]) -> list[str]:
    """The variants, float32 first. Raises ValueError if they are not some of ``VARIANTS``."""
    names = [variants] if isinstance(variants, str) else list(variants)
    if not names or not set(names) <= set(VARIANTS) or len(set(names)) != len(names):
        raise ValueError(
            f"`variants` must be some of {', '.join(VARIANTS)}, each once. "
            f"Received: variants={names}"
        )
    return sorted(names, key=lambda name: name != "float32")


def whole(name: str, value: Any, least: int) -> int:
    """A whole number, of NumPy's too. Raises ValueError for anything else."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ValueError(
            f"`{name}` must be a whole number from {least} on. Received: {name}={value!r}"
        )
    return number


def check_sizes(seconds: float, headroom: float, memory: float | None) -> None:
    """Raises ValueError for what is out of range."""
    if not 0 < seconds < math.inf:
        raise ValueError(f"`seconds` must be more than 0. Received: seconds={seconds}")
    if not 0 <= headroom < 1:
        raise ValueError(f"`headroom` must be from 0 to below 1. Received: headroom={headroom}")
    if memory is not None and not 0 < memory < math.inf:
        raise ValueError(f"`memory` must be more than 0 bytes. Received: memory={memory}")
