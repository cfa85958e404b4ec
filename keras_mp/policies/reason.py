"""Why a layer has its policy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """A code that never changes, and the sentence."""

    code: str
    sentence: str
