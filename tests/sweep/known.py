"""How what is known to be wrong is written down: each with the reason, and what cures it."""

from collections.abc import Iterable
from dataclasses import dataclass

F16, BF16 = "mixed_float16", "mixed_bfloat16"
PLAN_F16, PLAN_BF16 = "plan mixed_float16", "plan mixed_bfloat16"
HALF = (F16, BF16)
PLANS = (PLAN_F16, PLAN_BF16)
EVERY = (*HALF, *PLANS)
ALL = ("torch", "tensorflow", "jax")


@dataclass(frozen=True)
class Known:
    """Something that goes wrong in half precision.

    Attributes:
        cases: Names of cases, as the sweep has them ("Dense", "Softmax-mask").
        policies: Under which.
        magnitudes: In which; a case that goes wrong in others, or no longer in one of these, fails.
        backends: Where.
        why: What happens.
        cure: What makes it right: the plan, a class of ours, or what the user can do.
        always: Otherwise it goes wrong in some runs alone (memory that nobody set).
    """

    cases: tuple[str, ...]
    policies: tuple[str, ...]
    magnitudes: tuple[str, ...]
    backends: tuple[str, ...]
    why: str
    cure: str
    always: bool = True


def known(
    cases: str,
    policies: str | Iterable[str],
    magnitudes: str,
    why: str,
    cure: str,
    backends: str | Iterable[str] = ALL,
    always: bool = True,
) -> Known:
    """One entry; several cases or magnitudes are written with spaces between them."""
    policies = (policies,) if isinstance(policies, str) else tuple(policies)
    backends = (backends,) if isinstance(backends, str) else tuple(backends)
    magnitudes_ = tuple(magnitudes.split())
    return Known(tuple(cases.split()), policies, magnitudes_, backends, why, cure, always)


def surprises(
    entries: Iterable[Known],
    name: str,
    backend: str,
    wrong: dict[str, dict[str, str]],
    tried: Iterable[str] | None = None,
) -> list[str]:
    """What is wrong and not known, and what is known and has become right.

    Args:
        tried: The magnitudes that were tried; all of them if not given.
    """
    must: dict[tuple[str, str], str] = {}
    may = set()
    for entry in entries:
        if name in entry.cases and backend in entry.backends:
            magnitudes = [m for m in entry.magnitudes if tried is None or m in tried]
            keys = [(p, m) for p in entry.policies for m in magnitudes]
            may.update(keys)
            if entry.always:
                must |= dict.fromkeys(keys, entry.why)
    found = {(policy, m): words for policy, told in wrong.items() for m, words in told.items()}
    new = [f"{p}, {m}: {words}" for (p, m), words in found.items() if (p, m) not in may]
    mended = [
        f"{p}, {m}: right by now, take it off the list ({why})"
        for (p, m), why in must.items()
        if (p, m) not in found
    ]
    return new + mended


def unused(entries: Iterable[Known], names: set[str]) -> list[str]:
    """Cases in the list that the sweep has not."""
    return [name for entry in entries for name in entry.cases if name not in names]
