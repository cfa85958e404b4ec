"""Every public operation of ``keras.ops`` and what goes into it; or why it is not swept."""

from functools import partial

import numpy as np
from keras import ops
from sweep.cases import Bools, Case, Floats, Given, Ints, case
from sweep.op_cases_moving import MOVING

M, ROW = (3, 5), (2, 20_000)
PLAIN = ("ordinary",)
SIZES = ("ordinary", "large", "tiny")


def _names(text: str) -> list[str]:
    return text.split()


def _op(name: str):
    """The operation of that name, looked up when it is called: a name that is gone fails there."""
    owner, _, last = name.rpartition(".")
    found = getattr(ops, owner) if owner else ops
    return getattr(found, last)


def one(name, *inputs, **options):
    """A case of an operation that takes the inputs as they are; ``with_`` are further arguments."""
    with_ = options.pop("with_", {})
    return case(partial(lambda n, k, *t: _op(n)(*t, **k), name, with_), *inputs, **options)


# Functions of single numbers, by the numbers that they take.
_ANY = _names(
    "abs absolute arcsinh arctan ceil celu conj conjugate cos deg2rad elu erf erfc exp exp2 expm1 "
    "fabs floor gelu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh i0 leaky_relu "
    "log_sigmoid nan_to_num negative rad2deg real relu relu6 round selu sigmoid sign signbit silu "
    "sin sinc sinh soft_shrink softplus softsign sparse_plus sparse_sigmoid square squareplus swish "
    "tanh tanh_shrink threshold trunc cosh cbrt isfinite isinf isnan isneginf isposinf isreal "
    "stop_gradient copy angle tan"
)
_POSITIVE = _names("log log10 log1p log2 sqrt rsqrt reciprocal")
_UNIT = _names("arccos arcsin arctanh erfinv")
_WITHOUT_GRADIENT = _names("isfinite isinf isnan isneginf isposinf isreal signbit angle i0 sign")


def pointwise() -> dict[str, list[Case]]:
    out = {}
    for name in _ANY:
        more = {"with_": {"threshold": 0.5, "default_value": 0.0}} if name == "threshold" else {}
        out[name] = [
            one(name, M, each=True, magnitudes=SIZES, gradient=name not in _WITHOUT_GRADIENT, **more)
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


_BINARY = _names(
    "add subtract multiply maximum minimum fmax fmin equal not_equal greater greater_equal less "
    "less_equal arctan2 hypot logaddexp logaddexp2 isclose divide true_divide divide_no_nan"
)


def binary() -> dict[str, list[Case]]:
    flat = _names("equal not_equal greater greater_equal less less_equal isclose")
    out = {
        name: [one(name, M, M, each=True, magnitudes=SIZES, gradient=name not in flat)]
        for name in _BINARY
    }
    for name in _names("floor_divide mod fmod"):
        out[name] = [
            one(name, M, Floats(M, kind="positive"), each=True, magnitudes=PLAIN, gradient=False)
        ]
    out["power"] = [
        one("power", Floats(M, kind="positive"), Floats(M), each=True, magnitudes=PLAIN, roundings=8)
    ]
    out["heaviside"] = [one("heaviside", M, M, each=True, magnitudes=PLAIN, gradient=False)]
    out["nextafter"] = [one("nextafter", M, M, each=True, magnitudes=PLAIN, gradient=False)]
    out["ldexp"] = [one("ldexp", M, Ints(M), each=True, magnitudes=PLAIN, gradient=False)]
    out["allclose"] = [one("allclose", M, M, magnitudes=PLAIN)]
    out["select"] = [
        case(lambda a, b: ops.select([a > 0, b > 0], [a, b], 0.5), Floats(M), Floats(M), each=True,
             magnitudes=PLAIN)
    ]  # fmt: skip
    out["where"] = [one("where", Bools(M), M, M, each=True, magnitudes=SIZES)]
    out["polar"] = [one("polar", Floats(M, kind="unit"), M, magnitudes=PLAIN, gradient=False)]
    return out


_SUMS = _names("sum mean std var logsumexp nansum nanmean nanstd nanvar")
_SELECTIONS = _names("max min amax amin nanmax nanmin ptp median nanmedian")
_PICKS = _names("argmax argmin nanargmax nanargmin argsort count_nonzero")


def reductions() -> dict[str, list[Case]]:
    """The paper's second category: sums in float32. Long ones tell."""
    out = {}
    for name in _SUMS:
        more = {} if name == "logsumexp" else {}
        out[name] = [
            one(name, M, with_={"axis": -1}, magnitudes=SIZES, roundings=6, **more),
            one(name, ROW, with_={"axis": -1}, label="long", magnitudes=("ordinary", "large"), roundings=6),
            one(name, Floats(ROW, kind="positive"), with_={"axis": -1}, label="long-positive",
                magnitudes=PLAIN, roundings=6),
        ]  # fmt: skip
    for name in _SELECTIONS:
        out[name] = [one(name, M, with_={"axis": -1}, magnitudes=SIZES, gradient=name not in ("ptp",))]
    for name in _PICKS:
        out[name] = [
            one(name, M, with_={"axis": -1}, magnitudes=SIZES),
            one(name, ROW, with_={"axis": -1}, label="long", magnitudes=PLAIN),
        ][: 1 if name == "argsort" else 2]
    out["prod"] = [one("prod", M, with_={"axis": -1}, magnitudes=PLAIN)]
    out["nanprod"] = [one("nanprod", M, with_={"axis": -1}, magnitudes=PLAIN)]
    for name in _names("cumsum nancumsum cumprod nancumprod"):
        out[name] = [one(name, M, with_={"axis": -1}, magnitudes=PLAIN)]
    out["cumsum"].append(
        one("cumsum", Floats((1, 5000), kind="positive"), with_={"axis": -1}, label="long", magnitudes=PLAIN)
    )
    out["average"] = [
        one("average", M, with_={"axis": -1}, magnitudes=SIZES),
        one("average", ROW, with_={"axis": -1}, label="long", magnitudes=("ordinary", "large")),
    ]
    out["moments"] = [
        one("moments", M, with_={"axes": [-1]}, magnitudes=SIZES, roundings=6),
        one("moments", ROW, with_={"axes": [-1]}, label="long", magnitudes=PLAIN, roundings=6),
    ]
    out["norm"] = [
        one("norm", M, with_={"axis": -1}, magnitudes=SIZES),
        one("norm", ROW, with_={"axis": -1}, label="long", magnitudes=("ordinary", "large")),
    ]
    out["normalize"] = [one("normalize", M, magnitudes=SIZES, roundings=6)]
    for name, q in (("quantile", 0.3), ("nanquantile", 0.3), ("percentile", 30), ("nanpercentile", 30)):
        out[name] = [one(name, M, with_={"q": q, "axis": -1}, magnitudes=PLAIN, gradient=False)]
    out["trapezoid"] = [one("trapezoid", M, magnitudes=PLAIN)]
    out["corrcoef"] = [one("corrcoef", M, magnitudes=PLAIN, roundings=8)]
    out["trace"] = [one("trace", M, magnitudes=PLAIN)]
    out["all"] = [one("all", M, magnitudes=PLAIN)]
    out["any"] = [one("any", M, magnitudes=PLAIN)]
    out["segment_sum"] = [
        one("segment_sum", M, Given(np.array([0, 0, 1], "int32")), magnitudes=PLAIN),
        one("segment_sum", Floats((20_000,), kind="positive"), Given(np.zeros(20_000, "int32")),
            label="long", magnitudes=PLAIN),
    ]  # fmt: skip
    for name in _names("segment_max segment_min segment_prod"):
        out[name] = [one(name, M, Given(np.array([0, 0, 1], "int32")), magnitudes=PLAIN, gradient=False)]
    out["histogram"] = [one("histogram", Floats((50,), kind="unit"), magnitudes=PLAIN, gradient=False)]
    out["bincount"] = [one("bincount", Ints((9,), 5), magnitudes=PLAIN)]
    out["psnr"] = [one("psnr", M, M, with_={"max_val": 1.0}, magnitudes=PLAIN, gradient=False)]
    return out


SQUARE = (4, 4)
_DEFINITE = (np.eye(4) * 8 + np.arange(16).reshape(4, 4) % 5 / 8).astype("float32")
_SYMMETRIC = Given(((_DEFINITE + _DEFINITE.T) / 2).astype("float32"))
_DOMINANT = Given(_DEFINITE)


def products() -> dict[str, list[Case]]:
    out = {
        "matmul": [
            one("matmul", M, (5, 4), magnitudes=SIZES),
            one("matmul", ROW, (20_000, 3), label="long", magnitudes=PLAIN),
        ],
        "dot": [one("dot", M, (5, 4), magnitudes=PLAIN)],
        "einsum": [case(lambda a, b: ops.einsum("ij,jk->ik", a, b), Floats(M), Floats((5, 4)), magnitudes=SIZES)],
        "tensordot": [one("tensordot", M, (5, 4), with_={"axes": 1}, magnitudes=PLAIN)],
        "vdot": [
            one("vdot", (5,), (5,), magnitudes=PLAIN),
            one("vdot", (20_000,), (20_000,), label="long", magnitudes=PLAIN),
        ],
        "inner": [one("inner", M, M, magnitudes=PLAIN)],
        "outer": [one("outer", (3,), (4,), magnitudes=PLAIN)],
        "cross": [one("cross", (2, 3), (2, 3), magnitudes=PLAIN)],
        "kron": [one("kron", (2, 2), (2, 3), magnitudes=PLAIN)],
        "correlate": [one("correlate", (5,), (3,), magnitudes=PLAIN)],
        "cdist": [one("cdist", M, (4, 5), magnitudes=PLAIN, gradient=False)],
        "vander": [one("vander", (4,), magnitudes=PLAIN, gradient=False)],
        "conv": [one("conv", (2, 8, 8, 3), (3, 3, 3, 4), magnitudes=PLAIN)],
        "conv_transpose": [
            one("conv_transpose", (2, 4, 4, 3), (3, 3, 5, 3), with_={"strides": 2}, magnitudes=PLAIN)
        ],
        "depthwise_conv": [one("depthwise_conv", (2, 8, 8, 3), (3, 3, 3, 1), magnitudes=PLAIN)],
        "separable_conv": [
            one("separable_conv", (2, 8, 8, 3), (3, 3, 3, 1), (1, 1, 3, 4), magnitudes=PLAIN, roundings=8)
        ],
        "dot_product_attention": [
            one("dot_product_attention", (2, 4, 2, 8), (2, 5, 2, 8), (2, 5, 2, 8), magnitudes=PLAIN, roundings=8)
        ],
    }
    for name in _names("cholesky cholesky_inverse det inv logdet slogdet pinv qr lu_factor svd matrix_rank"):
        definite = _SYMMETRIC if name.startswith("cholesky") else _DOMINANT
        out[name] = [one(name, definite, magnitudes=PLAIN, gradient=False, roundings=16)]
    out["eigh"] = [case(lambda a: ops.eigh(a)[0], _SYMMETRIC, magnitudes=PLAIN, gradient=False, roundings=16)]
    out["solve"] = [one("solve", _DOMINANT, (4, 2), magnitudes=PLAIN, gradient=False, roundings=16)]
    out["lstsq"] = [one("lstsq", _DOMINANT, (4, 2), magnitudes=PLAIN, gradient=False, roundings=16)]
    out["solve_triangular"] = [
        one("solve_triangular", Given(np.tril(_DEFINITE)), (4, 2), with_={"lower": True}, magnitudes=PLAIN,
            gradient=False, roundings=16)
    ]  # fmt: skip
    return out


def _against(name, target):
    """A crossentropy of these labels, in the predictions' dtype."""
    return lambda predictions: _op(name)(ops.cast(target, predictions.dtype), predictions)


def networks() -> dict[str, list[Case]]:
    image = (2, 6, 6, 3)
    wide = ("ordinary", "large")
    out = {
        "softmax": [
            one("softmax", M, magnitudes=SIZES, roundings=6),
            one("softmax", ROW, label="long", magnitudes=PLAIN, roundings=6),
        ],
        "log_softmax": [
            one("log_softmax", M, magnitudes=SIZES, roundings=6),
            one("log_softmax", ROW, label="long", magnitudes=PLAIN, roundings=6),
        ],
        "sparsemax": [one("sparsemax", M, magnitudes=PLAIN, roundings=8)],
        "glu": [one("glu", (3, 6), magnitudes=PLAIN)],
        "average_pool": [
            one("average_pool", image, with_={"pool_size": 2}, magnitudes=wide),
            one("average_pool", (1, 64, 64, 1), with_={"pool_size": 64}, label="long", magnitudes=wide),
        ],
        "max_pool": [one("max_pool", image, with_={"pool_size": 2}, magnitudes=wide)],
        "adaptive_average_pool": [
            one("adaptive_average_pool", image, with_={"output_size": 2}, magnitudes=wide)
        ],
        "adaptive_max_pool": [one("adaptive_max_pool", image, with_={"output_size": 2}, magnitudes=wide)],
        "batch_normalization": [
            case(lambda x, m, v: ops.batch_normalization(x, m, v, axis=-1), Floats(M), Floats((5,)),
                 Floats((5,), kind="positive"), magnitudes=PLAIN, roundings=8)
        ],
        "layer_normalization": [one("layer_normalization", M, magnitudes=SIZES, roundings=8)],
        "rms_normalization": [one("rms_normalization", M, magnitudes=SIZES, roundings=8)],
        "one_hot": [
            case(lambda i: ops.one_hot(i, 5000, dtype="float16"), Ints((4,), 5000), magnitudes=PLAIN)
        ],
        "multi_hot": [
            case(lambda i: ops.multi_hot(i, 5000, dtype="float16"), Ints((2, 4), 5000), magnitudes=PLAIN)
        ],
        "top_k": [one("top_k", M, with_={"k": 2}, magnitudes=SIZES, gradient=False)],
        "in_top_k": [
            case(lambda y, p: ops.in_top_k(y, p, k=1), Given(np.array([2049, 4001], "int32")),
                 Given(np.eye(5000, dtype="float32")[[2048, 4000]]), label="classes", magnitudes=PLAIN)
        ],
        "binary_crossentropy": [
            case(_against("binary_crossentropy", [1.0, 0.0]), Given(np.array([0.25, 0.75], "float32")),
                 magnitudes=PLAIN),
            case(_against("binary_crossentropy", [1.0, 0.0]), Given(np.array([0.0, 1.0], "float32")),
                 label="sure", magnitudes=PLAIN),
        ],
        "categorical_crossentropy": [
            case(_against("categorical_crossentropy", np.eye(3)), Floats((3, 3), kind="shares"),
                 magnitudes=PLAIN),
        ],
        "sparse_categorical_crossentropy": [
            one("sparse_categorical_crossentropy", Ints((3,), 3), Floats((3, 3), kind="shares"), magnitudes=PLAIN),
        ],
        "ctc_loss": [
            case(lambda y, p: ops.ctc_loss(y, p, np.array([3, 3]), np.array([9, 9])), Ints((2, 3), 5, 1),
                 Floats((2, 9, 5)), magnitudes=PLAIN, roundings=40)
        ],
        "ctc_decode": [
            case(lambda p: ops.ctc_decode(p, np.array([9, 9]))[0], Floats((2, 9, 5)), magnitudes=PLAIN,
                 gradient=False)
        ],
    }  # fmt: skip
    return out


def images() -> dict[str, list[Case]]:
    picture = Floats((2, 8, 8, 3), low=0, high=1)
    flat = {"magnitudes": PLAIN, "gradient": False, "roundings": 8}
    grid = Given(np.stack(np.meshgrid([0.5, 1.5], [1.0, 2.5], indexing="ij")).astype("float32"), label=True)
    corners = np.array([[[0, 0], [7, 0], [0, 7], [7, 7]]] * 2, "float32")
    return {
        "image.resize": [
            one("image.resize", picture, with_={"size": (5, 11), "interpolation": i}, label=i, **flat)
            for i in ("bilinear", "nearest", "bicubic")
        ],
        "image.rgb_to_grayscale": [one("image.rgb_to_grayscale", picture, **flat)],
        "image.rgb_to_hsv": [one("image.rgb_to_hsv", picture, **flat)],
        "image.hsv_to_rgb": [one("image.hsv_to_rgb", picture, **flat)],
        "image.crop_images": [
            one("image.crop_images", picture, with_={"top_cropping": 1, "left_cropping": 1, "target_height": 4,
                                                     "target_width": 4}, **flat)
        ],
        "image.pad_images": [
            one("image.pad_images", picture, with_={"top_padding": 1, "left_padding": 1, "target_height": 10,
                                                    "target_width": 10}, **flat)
        ],
        "image.extract_patches": [one("image.extract_patches", picture, with_={"size": 2}, **flat)],
        "image.extract_patches_3d": [
            one("image.extract_patches_3d", (1, 4, 4, 4, 2), with_={"size": 2}, **flat)
        ],
        "image.affine_transform": [
            one("image.affine_transform", picture,
                Given(np.array([[1, 0.1, 0, 0, 1, 0.5, 0, 0]] * 2, "float32"), label=True), **flat)
        ],
        "image.perspective_transform": [
            case(lambda x: ops.image.perspective_transform(x, corners, corners + 0.5), picture, **flat)
        ],
        "image.map_coordinates": [
            case(lambda x, c: ops.image.map_coordinates(x, c, order=1), Floats((4, 4)), grid, **flat)
        ],
        "image.gaussian_blur": [one("image.gaussian_blur", picture, **flat)],
        "image.elastic_transform": [
            one("image.elastic_transform", picture, with_={"seed": 1}, random=True, magnitudes=PLAIN)
        ],
        "image.scale_and_translate": [
            case(lambda x: ops.image.scale_and_translate(x, (2, 4, 4, 3), np.array([0.5, 0.5], "f"),
                                                         np.array([0.0, 0.0], "f"), (1, 2), "linear"),
                 picture, **flat)
        ],
        "image.sobel_edges": [one("image.sobel_edges", picture, **flat)],
        "image.ssim": [
            one("image.ssim", Floats((2, 16, 16, 1), low=0, high=1), Floats((2, 16, 16, 1), low=0, high=1),
                with_={"max_val": 1.0}, **flat)
        ],
    }  # fmt: skip


def gathered() -> dict[str, list[Case]]:
    """Operations that take a list of tensors."""
    return {
        name: [case(partial(lambda n, a, b: _op(n)([a, b]), name), Floats(M), Floats(M), magnitudes=PLAIN)]
        for name in _names("concatenate dstack hstack meshgrid stack vstack")
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
    return dict.fromkeys(_names(text), why)


NOT_OPS = {
    **_why("bitwise_and bitwise_invert bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift "
           "bitwise_xor left_shift right_shift gcd lcm unravel_index", "whole numbers alone"),
    **_why("logical_and logical_not logical_or logical_xor", "truth values alone"),
    **_why("arange array bartlett blackman empty empty_like eye full full_like geomspace hamming hanning "
           "identity kaiser linspace logspace ones ones_like tri zeros zeros_like", "makes a tensor of the "
           "dtype that it is asked for"),
    **_why("cond custom_gradient fori_loop scan associative_scan switch while_loop map vectorize "
           "vectorized_map jvp", "calls a function of the user's"),
    **_why("convert_to_numpy convert_to_tensor dtype is_tensor ndim shape size", "tells about a tensor, or "
           "hands it on"),
    **_why("fft fft2 ifft2 irfft rfft stft istft imag view_as_complex view_as_real eig extract_sequences",
           "complex numbers, which have no half precision in Keras"),
    **_why("image linalg nn numpy", "a module: its functions are swept by their own names"),
    **_why("view isin searchsorted digitize unique argpartition", "looks at bits or order alone, in whole "
           "numbers"),
}  # fmt: skip
