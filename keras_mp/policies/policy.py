"""Which dtype a model computes in: the global policy, by name, alias or object."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_mp.policies import switches
from keras_mp.policies.choice import PolicyChoice
from keras_mp.policies.detect import current_device, device_of
from keras_mp.policies.hardware import Device, emulation_warning, recommend_for

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


def resolve(policy: Any, argument: str = "policy") -> str:
    """Keras' name for ``policy``: a name, an alias, or a Keras ``DTypePolicy``.

    ``argument`` is what errors call it.

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
            f"Received: {argument}={policy!r} (of type {type(policy).__name__})"
        )
    refuse_float8(name, argument)
    if isinstance(policy, str) and name not in POLICIES:
        raise ValueError(
            f"There is no policy of that name. Expected auto, {', '.join(POLICIES)}, or an alias: "
            f"{', '.join(f'{a} ({p})' for a, p in ALIASES.items())}. "
            f"Received: {argument}={policy!r}"
        )
    return name


def resolve_one(policy: Any) -> str:
    """``resolve``, where a map of policies is no answer.

    Raises:
        ValueError, TypeError: As ``resolve``.
    """
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        raise TypeError(
            "Expected one policy, of which exceptions are made by `rules={path: policy}`. "
            f"Received: policy={policy!r} (a map of policies)"
        )
    return resolve(policy)


def refuse_float8(name: Any, argument: str) -> None:
    """Say of a float8 policy that there is none yet.

    Raises:
        ValueError: ``name`` asks for float8.
    """
    if isinstance(name, str) and ("float8" in name or "fp8" in name):
        raise ValueError(
            "float8 is not supported yet: it needs a scale for each tensor, and layers that are "
            "made for it. Use 'mixed_bfloat16' or 'mixed_float16'. "
            f"Received: {argument}={name!r}"
        )


class EmulatedPrecisionWarning(UserWarning):
    """The device has no units for the dtype that was asked for: right values, slowly."""


def recommend(device: Device | str | None = None) -> PolicyChoice:
    """The policy that ``set_policy("auto")`` would set, without setting it.

    Args:
        device: None for the one that the backend of this process uses; or one to ask about without
            having it: a card's name ("A100"), an NVIDIA compute capability ("7.5"), "tpu", "mps" or
            "cpu".

    Returns:
        The choice with its reason and the alternatives, best first.
    """
    return recommend_for(current_device() if device is None else device_of(device))


def set_policy(policy: Any = "auto") -> PolicyChoice:
    """Set the dtype policy of every layer that is built from now on.

    Layers that exist keep theirs: call it before the model is built. Precedence: the argument, then
    the environment variable KERAS_MP_POLICY (where the argument is "auto"), then the device.

    Args:
        policy: "auto" (the default) for what suits the device; "float32", "mixed_float16",
            "mixed_bfloat16", "float16" or "bfloat16"; an alias (fp32, fp16, bf16, 16-mixed,
            bf16-mixed, O0 to O3); or a ``keras.DTypePolicy``. "fp16" and "bf16" mean the mixed
            ones, which keep variables in float32.

    Returns:
        What was set, as a ``PolicyChoice``.

    Raises:
        ValueError: The name is not known, or asks for float8; or KERAS_MP_POLICY and KERAS_FLOATX
            contradict each other.
        TypeError: ``policy`` is neither a name nor a policy.

    Warns:
        EmulatedPrecisionWarning: The device computes in that dtype slowly.

    Example:

    ```python
    keras_mp.set_policy("mixed_float16")
    model.compile(optimizer=keras_mp.LossScaleOptimizer("adamw"), loss="mse")
    ```
    """
    choice = choose(policy)
    if choice.device is None:
        trouble = emulation_warning(current_device(), choice.policy)
        if trouble:
            warnings.warn(trouble, EmulatedPrecisionWarning, stacklevel=2)
    # An object may say more than its name does (a map of policies, one for each layer).
    keras.config.set_dtype_policy(choice.policy if isinstance(policy, str) else policy)
    return choice


@contextmanager
def policy_scope(policy: Any) -> Iterator[PolicyChoice]:
    """``set_policy`` for the layers that are built inside a ``with`` block.

    The policy that was there before comes back at the end, after an exception too. Keras has one
    for each thread: other threads build under theirs, which is float32 until they set it.

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


def choose(policy: Any) -> PolicyChoice:
    """What ``set_policy(policy)`` would set: the argument, else the environment, else the device.

    Raises:
        ValueError, TypeError: As ``set_policy``.
    """
    if policy != "auto":
        alias = isinstance(policy, str) and policy in ALIASES
        return PolicyChoice(resolve(policy), f"you asked for {policy if alias else 'it'}")
    asked = switches.policy_from_environment()
    if asked is None:
        return recommend()
    name = resolve(asked, switches.POLICY)
    switches.check_against_floatx(name, keras.DTypePolicy(name).variable_dtype)
    return PolicyChoice(name, f"{switches.POLICY} asks for it")
