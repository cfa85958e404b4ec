"""Which dtype a model computes in: the global policy, by name, alias or object."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_mp.policies.choice import PolicyChoice

# Alias -> Keras' name. The aliases are the spellings of other toolkits: Lightning's "16-mixed",
# Apex's optimization levels (O2 is float16 with float32 master weights, which is what Keras'
# mixed_float16 does too; O3 is float16 throughout).
ALIASES = {
    "fp32": "float32",
    "fp16": "mixed_float16",
    "bf16": "mixed_bfloat16",
    "16-mixed": "mixed_float16",
    "bf16-mixed": "mixed_bfloat16",
    "O0": "float32",
    "O1": "mixed_float16",
    "O2": "mixed_float16",
    "O3": "float16",
}
POLICIES = ("float32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16")


def resolve(policy: Any) -> str:
    """Keras' name for ``policy``: a name, an alias, or a Keras ``DTypePolicy``.

    Raises:
        ValueError: The name is not known, or asks for float8.
        TypeError: Neither a name nor a policy.
    """
    if isinstance(policy, str):
        name = ALIASES.get(policy, policy)
    elif isinstance(policy, keras.DTypePolicy):
        name = policy.name
    else:
        raise TypeError(
            "A policy is a name or a keras.DTypePolicy. "
            f"Received: policy={policy!r} (of type {type(policy).__name__})"
        )
    if "float8" in name or "fp8" in name:
        raise ValueError(
            "float8 is not supported yet: it needs a scale for each tensor, and layers that are "
            "made for it. Use 'mixed_bfloat16' or 'mixed_float16'. "
            f"Received: policy={policy!r}"
        )
    if isinstance(policy, str) and name not in POLICIES:
        raise ValueError(
            f"There is no policy of that name. Expected one of {', '.join(POLICIES)}, or an alias: "
            f"{', '.join(f'{a} ({p})' for a, p in ALIASES.items())}. "
            f"Received: policy={policy!r}"
        )
    return name


def set_policy(policy: Any) -> PolicyChoice:
    """Set the dtype policy of every layer that is built from now on.

    Layers that exist keep theirs: call it before the model is built.

    Args:
        policy: "float32", "mixed_float16", "mixed_bfloat16", "float16" or "bfloat16"; an alias
            (fp32, fp16, bf16, 16-mixed, bf16-mixed, O0 to O3); or a ``keras.DTypePolicy``. "fp16"
            and "bf16" mean the mixed ones, which keep variables in float32.

    Returns:
        What was set, as a ``PolicyChoice``.

    Raises:
        ValueError: The name is not known, or asks for float8.
        TypeError: ``policy`` is neither a name nor a policy.

    Example:

    ```python
    keras_mp.set_policy("mixed_float16")
    model.compile(optimizer=keras_mp.LossScaleOptimizer("adamw"), loss="mse")
    ```
    """
    choice = PolicyChoice(resolve(policy), _reason(policy))
    # An object may say more than its name does (a map of policies, one for each layer).
    keras.config.set_dtype_policy(choice.policy if isinstance(policy, str) else policy)
    return choice


@contextmanager
def policy_scope(policy: Any) -> Iterator[PolicyChoice]:
    """``set_policy`` for the layers that are built inside a ``with`` block.

    The policy that was there before comes back at the end, after an exception too.

    Example:

    ```python
    with keras_mp.policy_scope("float32"):
        head = keras.layers.Dense(10, activation="softmax")
    ```
    """
    previous = keras.config.dtype_policy()
    try:
        yield set_policy(policy)
    finally:
        keras.config.set_dtype_policy(previous)


def _reason(policy: Any) -> str:
    if isinstance(policy, str) and policy in ALIASES:
        return f"you asked for {policy}"
    return "you asked for it"
