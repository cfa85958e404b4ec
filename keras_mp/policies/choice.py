"""The policy that was chosen, and why."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PolicyChoice:
    """The policy that was chosen, and why; prints as one line.

    Attributes:
        policy: Keras' name of it.
        reason: Why, as a clause.
        device: What it was chosen for; None when the choice did not depend on one.
        alternatives: Other policies that would do there, best first.
    """

    policy: str
    reason: str
    device: str | None = None
    alternatives: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" on {self.device}" if self.device else ""
        other = f" (else: {', '.join(self.alternatives)})" if self.alternatives else ""
        return f"{self.policy}{where}: {self.reason}{other}"
