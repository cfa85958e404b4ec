"""The user's own rules, which win over any reason."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from keras_mp.policies.policy import resolve
from keras_mp.policies.structure import Place, Structure

# A pattern (a path or a layer's name, or a compiled regular expression that must match the whole
# path) or a layer class -> a policy.
Rules = Mapping[str | re.Pattern | type, str]
_KINDS = (str, re.Pattern, type)


class CheckedRules:
    """The user's rules, checked: each names a policy that exists and matches some layer."""

    def __init__(self, rules: Rules, structure: Structure):
        wrong: Any = rules
        if isinstance(rules, Mapping):
            wrong = next((key for key in rules if not isinstance(key, _KINDS)), None)
        if wrong is not None:
            raise TypeError(
                "Expected rules as a dictionary: a path or layer's name, a compiled regular "
                "expression or a layer class -> a policy. "
                f"Received: rules={wrong!r} (of type {type(wrong).__name__})"
            )
        self._rules: Sequence[tuple[Any, str]] = [
            (pattern, resolve(policy, f"rules[{pattern!r}]")) for pattern, policy in rules.items()
        ]
        for pattern, _ in self._rules:
            if not any(self._matches(pattern, place) for place in structure.places):
                paths = ", ".join(place.path for place in structure.places[1:9])
                raise ValueError(
                    "A rule matches no layer. Expected a path or name, a compiled regular "
                    f"expression that matches a whole path, or a class; paths are {paths}, ... "
                    f"Received: rules={{{pattern!r}: ...}}"
                )

    def policy_of(self, place: Place) -> str | None:
        for pattern, policy in self._rules:
            if self._matches(pattern, place):
                return policy
        return None

    @staticmethod
    def _matches(pattern: Any, place: Place) -> bool:
        if isinstance(pattern, str):
            return pattern in (place.path, place.layer.name)
        if isinstance(pattern, re.Pattern):
            return pattern.fullmatch(place.path) is not None
        return isinstance(place.layer, pattern)
