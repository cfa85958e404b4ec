"""Numbers as the lab writes and reads them."""

import math
import re

from keras_mp.telemetry.format import number, power_of_two

_POWER = re.compile(r"([-+]?)\s*(\d+(?:\.\d+)?)\s*(?:\*\*|\^)\s*([-+]?\d+)")
_FRACTION = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)")


def parse(typed: str) -> float:
    """A number as people type it: ``0.1``, ``3e-8``, ``2^-24``, ``1/3``, ``inf``, ``nan``.

    Raises:
        ValueError: It is none.
    """
    clean = typed.strip().replace("−", "-").replace("_", "")
    try:
        if match := _POWER.fullmatch(clean):
            return float(match[1] + "1") * float(match[2]) ** int(match[3])
        if match := _FRACTION.fullmatch(clean):
            return float(match[1]) / float(match[2])
        return float(clean)
    except (ValueError, OverflowError, ZeroDivisionError):
        raise ValueError(
            f"Expected a number such as 0.1, 3e-8, 2^-24 or 1/3. Received: {typed.strip()!r}"
        ) from None


def short(value: float, digits: int = 4) -> str:
    """A number in few cells; exact powers of two as such, where that is shorter."""
    is_power = math.isfinite(value) and value > 0 and math.frexp(value)[0] == 0.5
    if is_power and not 2.0**-6 <= value <= 2.0**16:
        return power_of_two(value)
    return number(value, digits).replace("e-0", "e-").replace("e+0", "e")


def signed(value: float, digits: int = 4) -> str:
    """With its sign: ``+1.2e-05``; plain ``0`` for zero."""
    if value == 0:
        return "0"
    written = short(abs(value), digits) if math.isfinite(value) else number(abs(value))
    return ("−" if value < 0 else "+") + written


def full(value: float, digits: int = 17) -> str:
    """As many digits as fit, without needless zeros."""
    if not math.isfinite(value):
        return number(value)
    return f"{value:.{digits}g}".replace("e-0", "e-").replace("e+0", "e")
