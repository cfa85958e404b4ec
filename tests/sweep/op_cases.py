"""Every public operation of ``keras.ops`` and what goes into it; or why it is not swept."""

from functools import partial

from keras import ops
from sweep.cases import Bools, Case, Floats, Ints, case
from sweep.op_case import PLAIN, SIZES, M, names, one, operation
from sweep.op_cases_moving import MOVING
from sweep.op_cases_networks import images, networks
from sweep.op_cases_sums import products, reductions

_ANY = names(
    "abs absolute arcsinh arctan ceil celu conj conjugate cos deg2rad elu erf erfc exp exp2 expm1 "
    "fabs floor gelu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh i0 leaky_relu "
    "log_sigmoid nan_to_num negative rad2deg real relu relu6 round selu sigmoid sign signbit silu "
    "sin sinc sinh soft_shrink softplus softsign sparse_plus sparse_sigmoid square "
    "squareplus swish "
    "tanh tanh_shrink threshold trunc cosh cbrt isfinite isinf isnan isneginf isposinf isreal "
    "stop_gradient copy angle tan"
)
_POSITIVE = names("log log10 log1p log2 sqrt rsqrt reciprocal")
_UNIT = names("arccos arcsin arctanh erfinv")
_WITHOUT_GRADIENT = names("isfinite isinf isnan isneginf isposinf isreal signbit angle i0 sign")


def pointwise() -> dict[str, list[Case]]:
    out = {}
    for name in _ANY:
        more = {"with_": {"threshold": 0.5, "default_value": 0.0}} if name == "threshold" else {}
        out[name] = [
            one(
                name, M, each=True, magnitudes=SIZES, gradient=name not in _WITHOUT_GRADIENT, **more
            )
        ]
    for name in _POSITIVE:
        out[name] = [one(name, Floats(M, kind="positive"), each=True, magnitudes=SIZES)]
    for name in _UNIT:
        out[name] = [one(name, Floats(M, kind="unit"), each=True, magnitudes=PLAIN)]
    out["arccosh"] = [one("arccosh", Floats(M, low=1.5, high=9), each=True, magnitudes=PLAIN)]
    out["clip"] = [one("clip", M, with_={"x_min": -0.5, "x_max": 1.0}, each=True, magnitudes=SIZES)]
    out["saturate_cast"] = [one("saturate_cast", M, with_={"dtype": "int32"}, magnitudes=PLAIN)]
    out["cast"] = [one("cast", M, with_={"dtype": "float32"}, each=True, magnitudes=SIZES)]
    return out


_BINARY = names(
    "add subtract multiply maximum minimum fmax fmin equal not_equal greater greater_equal less "
    "less_equal arctan2 hypot logaddexp logaddexp2 isclose divide true_divide divide_no_nan"
)


def binary() -> dict[str, list[Case]]:
    flat = names("equal not_equal greater greater_equal less less_equal isclose")
    out = {
        name: [one(name, M, M, each=True, magnitudes=SIZES, gradient=name not in flat)]
        for name in _BINARY
    }
    for name in names("floor_divide mod fmod"):
        out[name] = [
            one(name, M, Floats(M, kind="positive"), each=True, magnitudes=PLAIN, gradient=False)
        ]
    out["power"] = [
        one(
            "power", Floats(M, kind="positive"), Floats(M), each=True, magnitudes=PLAIN, roundings=8
        )
    ]
    out["heaviside"] = [one("heaviside", M, M, each=True, magnitudes=PLAIN, gradient=False)]
    out["nextafter"] = [one("nextafter", M, M, each=True, magnitudes=PLAIN, gradient=False)]
    out["ldexp"] = [one("ldexp", M, Ints(M), each=True, magnitudes=PLAIN, gradient=False)]
    out["allclose"] = [one("allclose", M, M, magnitudes=PLAIN)]
    out["select"] = [
        case(
            lambda a, b: ops.select([a > 0, b > 0], [a, b], 0.5),
            Floats(M),
            Floats(M),
            each=True,
            magnitudes=PLAIN,
        )
    ]
    out["where"] = [one("where", Bools(M), M, M, each=True, magnitudes=SIZES)]
    out["polar"] = [one("polar", Floats(M, kind="unit"), M, magnitudes=PLAIN, gradient=False)]
    return out


def gathered() -> dict[str, list[Case]]:
    """Operations that take a list of tensors."""
    return {
        name: [
            case(
                partial(lambda n, a, b: operation(n)([a, b]), name),
                Floats(M),
                Floats(M),
                magnitudes=PLAIN,
            )
        ]
        for name in names("concatenate dstack hstack meshgrid stack vstack")
        if name != "meshgrid"
    } | {"meshgrid": [one("meshgrid", (3,), (4,), magnitudes=PLAIN)]}


OPS: dict[str, list[Case]] = {
    **gathered(),
    **pointwise(),
    **binary(),
    **reductions(),
    **products(),
    **networks(),
    **images(),
    **{
        # XLA's update of a slice, on tensorflow, has no gradient in any dtype.
        name: [one(name, *inputs, with_=with_, magnitudes=PLAIN, gradient=name != "slice_update")]
        for name, (inputs, with_) in MOVING.items()
    },
}


def _why(text: str, why: str) -> dict[str, str]:
    return dict.fromkeys(names(text), why)


NOT_OPS = {
    **_why(
        "bitwise_and bitwise_invert bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift "
        "bitwise_xor left_shift right_shift gcd lcm unravel_index",
        "whole numbers alone",
    ),
    **_why("logical_and logical_not logical_or logical_xor", "truth values alone"),
    **_why(
        "arange array bartlett blackman empty empty_like eye full full_like geomspace hamming "
        "hanning identity kaiser linspace logspace ones ones_like tri zeros zeros_like",
        "makes a tensor of the dtype that it is asked for",
    ),
    **_why(
        "cond custom_gradient fori_loop scan associative_scan switch while_loop map vectorize "
        "vectorized_map jvp",
        "calls a function of the user's",
    ),
    **_why(
        "convert_to_numpy convert_to_tensor dtype is_tensor ndim shape size",
        "tells about a tensor, or hands it on",
    ),
    **_why(
        "fft fft2 ifft2 irfft rfft stft istft imag view_as_complex view_as_real eig "
        "extract_sequences",
        "complex numbers, which have no half precision in Keras",
    ),
    **_why("image linalg nn numpy", "a module: its functions are swept by their own names"),
    **_why(
        "view isin searchsorted digitize unique argpartition",
        "looks at bits or order alone, in whole numbers",
    ),
}
