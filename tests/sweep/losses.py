"""A loss or metric of Keras and its namesake of ours on half-precision predictions."""

from collections.abc import Callable
from typing import Any

from sweep.cases import Case
from sweep.known import BF16, F16
from sweep.loss_cases import Data
from sweep.sweeping import FunctionSubject, failures

OURS_F16, OURS_BF16 = "keras_mp mixed_float16", "keras_mp mixed_bfloat16"


def wrong(data: Data, stock: Callable[..., Any], ours: Callable[..., Any], gradient: bool) -> Any:
    """Policy -> magnitude -> what is wrong, for Keras' function of (labels, predictions) and ours.

    The reference is Keras' own on the same numbers in float32.
    """
    options: dict[str, Any] = {"magnitudes": data.magnitudes, "gradient": gradient}
    inputs = (data.labels, data.predictions)
    case = Case(stock, inputs, **options)
    mine = Case(ours, inputs, **options)
    subjects = {
        F16: FunctionSubject(case, "float16"),
        BF16: FunctionSubject(case, "bfloat16"),
        OURS_F16: FunctionSubject(mine, "float16"),
        OURS_BF16: FunctionSubject(mine, "bfloat16"),
    }
    halves = {name: "bfloat16" if "bfloat16" in name else "float16" for name in subjects}
    told = failures(case, subjects, FunctionSubject(case, None), halves)
    return {name: words for name, words in told.items() if words}
