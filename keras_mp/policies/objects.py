"""Keras' dtype policies as values: what they lack for that is made right here.

Keras 3.15's ``DTypePolicy`` compares by name but cannot be hashed, and its fields can be assigned.
``DTypePolicyMap`` cannot even be compared; an assignment to the ``dtype_policy`` of a layer that
has one changes the map for every layer of that path; and ``get_config`` of a map without a default
takes the names away from the live policies in it. The classes here are equal by value, can be
hashed, never change, and write what Keras' own write: plain Keras reads a file that was saved with
them, and gives Keras' own objects for them.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, NoReturn

import keras

from keras_mp.policies.policy import ALIASES, refuse_float8


def _refuse(what: str, fix: str) -> NoReturn:
    raise AttributeError(f"{what} never changes. Expected {fix}")


class _Frozen:
    """Neither assignment nor deletion once ``_frozen`` is set; copies are the object itself."""

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_frozen"):
            _refuse(
                f"A keras_mp policy ({name}={value!r} was assigned)",
                "a new policy; or, in a keras DTypePolicyMap, one with a `default_policy`, as "
                "Keras changes the policies of a map without",
            )
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        _refuse(f"A keras_mp policy (del {name})", "a new policy")

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class Policy(_Frozen, keras.DTypePolicy):
    """A ``keras.DTypePolicy`` that is a value: hashable, immutable, equal to Keras' of that name.

    Args:
        name: A name or alias that ``set_policy`` takes, "auto" excepted; or any float dtype that
            Keras takes.

    Raises:
        ValueError: Keras knows no such policy, or it asks for float8.

    Example:

    ```python
    layer = keras.layers.Dense(4, dtype=keras_mp.Policy("bf16"))
    ```
    """

    def __init__(self, name: str):
        refuse_float8(name, "name")
        super().__init__(ALIASES.get(name, name))
        self._frozen = True

    # What Keras' serializer looks at: a file holds Keras' own class, and needs no keras_mp.
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return keras.DTypePolicy

    def __eq__(self, other: object) -> bool:
        kinds = (Policy, keras.DTypePolicy, keras.dtype_policies.FloatDTypePolicy)
        if type(other) not in kinds:
            return NotImplemented
        return bool(self.name == other.name)  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> Any:
        return Policy, (self.name,)

    def __repr__(self) -> str:
        return f"Policy({self.name!r})"


@cache
def policy_named(name: str) -> Policy:
    """The one ``Policy`` of that name: layers may share it, as it never changes."""
    return Policy(name)


@cache
def widening(variable_dtype: str) -> Policy:
    """Float32 for a layer whose variables are in half precision: it computes with float32 copies.

    In files it is plain "float32".
    """
    policy = Policy("float32")
    policy.__dict__["_variable_dtype"] = variable_dtype
    return policy


class PolicyMap(_Frozen, keras.dtype_policies.DTypePolicyMap):
    """A ``DTypePolicyMap`` that is a value: hashable, immutable, equal where its content is.

    Args:
        default_policy: For the layers that no key matches. A name or a policy; always said, so that
            no later change of the global policy reaches the layers, and ``get_config`` has nothing
            to take away.
        policies: Path, or regular expression that must match a whole path -> policy.

    Raises:
        ValueError: A policy is not known.
        TypeError: ``policies`` is no mapping.
    """

    def __init__(self, default_policy: Any, policies: Mapping[str, Any] | None = None):
        if policies is not None and not isinstance(policies, Mapping):
            raise TypeError(
                "Expected a mapping of paths to policies. "
                f"Received: policies={policies!r} (of type {type(policies).__name__})"
            )
        held = {key: _value(policy) for key, policy in (policies or {}).items()}
        super().__init__(_value(default_policy), held)
        self._frozen = True

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return keras.dtype_policies.DTypePolicyMap

    def __setitem__(self, key: str, policy: Any) -> None:
        _refuse(
            f"A keras_mp.PolicyMap (key {key!r} was assigned)",
            "a new map; or `keras_mp.plan(model, ..., rules=...).apply(model)` for one layer",
        )

    def __delitem__(self, key: str) -> None:
        _refuse(f"A keras_mp.PolicyMap (del {key!r})", "a new map")

    def _content(self) -> tuple[Any, Any]:
        return self.default_policy, frozenset((key, self[key]) for key in self)

    def __eq__(self, other: object) -> bool:
        if type(other) is not PolicyMap:
            return NotImplemented
        return self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def __reduce__(self) -> Any:
        return PolicyMap, (self.default_policy, {key: self[key] for key in self})


def _value(policy: Any) -> Policy:
    name = policy if isinstance(policy, str) else getattr(policy, "name", policy)
    return policy_named(name)
