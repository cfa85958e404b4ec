"""The environment variables that choose a precision, and those of others that contradict them."""

import os

POLICY = "KERAS_MP_POLICY"
FLOATX = "KERAS_FLOATX"


def read_switch(name: str) -> bool | None:
    """An environment variable that is 1 or 0; None where it is not set or empty."""
    text = os.environ.get(name, "").strip()
    if text not in ("", "0", "1"):
        raise ValueError(f"Expected 1 or 0. Received: {name}={text!r}")
    return text == "1" if text else None


def policy_from_environment() -> str | None:
    """What KERAS_MP_POLICY asks for; None where it is not set or "auto"."""
    policy = os.environ.get(POLICY, "").strip()
    if policy in ("", "auto"):
        return None
    return policy


def check_against_floatx(policy: str, variable_dtype: str) -> None:
    """KERAS_MP_POLICY against KERAS_FLOATX, which sets the dtype of variables.

    Raises:
        ValueError: Both are set, and ask for variables in different dtypes; it names both.
    """
    floatx = os.environ.get(FLOATX, "").strip()
    if floatx and floatx != variable_dtype:
        raise ValueError(
            f"{POLICY}={os.environ[POLICY]} and {FLOATX}={floatx} contradict each other: {policy} "
            f"keeps variables in {variable_dtype}. Expected one of them to go. "
            f"Received: {FLOATX}={floatx!r}"
        )
