"""Reductions and products: the first two categories of the 2018 paper."""

import numpy as np
from keras import ops
from sweep.cases import Case, Floats, Given, Ints, case
from sweep.op_case import PLAIN, ROW, SIZES, M, names, one

_SUMS = names("sum mean std var logsumexp nansum nanmean nanstd nanvar")
_SELECTIONS = names("max min amax amin nanmax nanmin ptp median nanmedian")
_PICKS = names("argmax argmin nanargmax nanargmin argsort count_nonzero")


def reductions() -> dict[str, list[Case]]:
    """The paper's second category: sums in float32. Long ones tell."""
    out = {}
    for name in _SUMS:
        out[name] = [
            one(name, M, with_={"axis": -1}, magnitudes=SIZES, roundings=6),
            one(
                name,
                ROW,
                with_={"axis": -1},
                label="long",
                magnitudes=("ordinary", "large"),
                roundings=6,
            ),
            one(
                name,
                Floats(ROW, kind="positive"),
                with_={"axis": -1},
                label="long-positive",
                magnitudes=PLAIN,
                roundings=6,
            ),
        ]
    for name in _SELECTIONS:
        out[name] = [
            one(name, M, with_={"axis": -1}, magnitudes=SIZES, gradient=name not in ("ptp",))
        ]
    for name in _PICKS:
        out[name] = [
            one(name, M, with_={"axis": -1}, magnitudes=SIZES),
            one(name, ROW, with_={"axis": -1}, label="long", magnitudes=PLAIN),
        ][: 1 if name == "argsort" else 2]
    out["prod"] = [one("prod", M, with_={"axis": -1}, magnitudes=PLAIN)]
    out["nanprod"] = [one("nanprod", M, with_={"axis": -1}, magnitudes=PLAIN)]
    for name in names("cumsum nancumsum cumprod nancumprod"):
        out[name] = [one(name, M, with_={"axis": -1}, magnitudes=PLAIN)]
    out["cumsum"].append(
        one(
            "cumsum",
            Floats((1, 5000), kind="positive"),
            with_={"axis": -1},
            label="long",
            magnitudes=PLAIN,
        )
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
    for name, q in (
        ("quantile", 0.3),
        ("nanquantile", 0.3),
        ("percentile", 30),
        ("nanpercentile", 30),
    ):
        out[name] = [one(name, M, with_={"q": q, "axis": -1}, magnitudes=PLAIN, gradient=False)]
    out["trapezoid"] = [one("trapezoid", M, magnitudes=PLAIN)]
    out["corrcoef"] = [one("corrcoef", M, magnitudes=PLAIN, roundings=8)]
    out["trace"] = [one("trace", M, magnitudes=PLAIN)]
    out["all"] = [one("all", M, magnitudes=PLAIN)]
    out["any"] = [one("any", M, magnitudes=PLAIN)]
    out["segment_sum"] = [
        one("segment_sum", M, Given(np.array([0, 0, 1], "int32")), magnitudes=PLAIN),
        one(
            "segment_sum",
            Floats((20_000,), kind="positive"),
            Given(np.zeros(20_000, "int32")),
            label="long",
            magnitudes=PLAIN,
        ),
    ]
    for name in names("segment_max segment_min segment_prod"):
        out[name] = [
            one(name, M, Given(np.array([0, 0, 1], "int32")), magnitudes=PLAIN, gradient=False)
        ]
    out["histogram"] = [
        one("histogram", Floats((50,), kind="unit"), magnitudes=PLAIN, gradient=False)
    ]
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
        "einsum": [
            case(
                lambda a, b: ops.einsum("ij,jk->ik", a, b),
                Floats(M),
                Floats((5, 4)),
                magnitudes=SIZES,
            )
        ],
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
            one(
                "conv_transpose", (2, 4, 4, 3), (3, 3, 5, 3), with_={"strides": 2}, magnitudes=PLAIN
            )
        ],
        "depthwise_conv": [one("depthwise_conv", (2, 8, 8, 3), (3, 3, 3, 1), magnitudes=PLAIN)],
        "separable_conv": [
            one(
                "separable_conv",
                (2, 8, 8, 3),
                (3, 3, 3, 1),
                (1, 1, 3, 4),
                magnitudes=PLAIN,
                roundings=8,
            )
        ],
        "dot_product_attention": [
            one(
                "dot_product_attention",
                (2, 4, 2, 8),
                (2, 5, 2, 8),
                (2, 5, 2, 8),
                magnitudes=PLAIN,
                roundings=8,
            )
        ],
    }
    for name in names(
        "cholesky cholesky_inverse det inv logdet slogdet pinv qr lu_factor svd matrix_rank"
    ):
        definite = _SYMMETRIC if name.startswith("cholesky") else _DOMINANT
        out[name] = [one(name, definite, magnitudes=PLAIN, gradient=False, roundings=16)]
    out["eigh"] = [
        case(lambda a: ops.eigh(a)[0], _SYMMETRIC, magnitudes=PLAIN, gradient=False, roundings=16)
    ]
    out["solve"] = [one("solve", _DOMINANT, (4, 2), magnitudes=PLAIN, gradient=False, roundings=16)]
    out["lstsq"] = [one("lstsq", _DOMINANT, (4, 2), magnitudes=PLAIN, gradient=False, roundings=16)]
    out["solve_triangular"] = [
        one(
            "solve_triangular",
            Given(np.tril(_DEFINITE)),
            (4, 2),
            with_={"lower": True},
            magnitudes=PLAIN,
            gradient=False,
            roundings=16,
        )
    ]
    return out
