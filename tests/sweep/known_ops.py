"""What functions of ``keras.ops`` do wrong with half-precision tensors.

No policy reaches a function: what cures it is a cast to float32 around the call, or a layer, a loss
or a metric that does it.
"""

from sweep.known import BF16, F16, HALF, known

_TF = "tensorflow"
_BOTH = ("torch", "tensorflow")
_CAST = "cast to float32 before the call"
_SQUARES = "squares, or sums of squares, are no float16 numbers above 256 and below 2^-12"
_SIZES = "ordinary large tiny"

KNOWN_OPS = [
    # Pointwise.
    known(
        "sigmoid",
        HALF,
        "large",
        "the gradient comes from the rounded result, y (1 - y)",
        _CAST,
        _BOTH,
    ),
    known("squareplus", HALF, "large", "squares, and cancels below zero", _CAST, _BOTH),
    known("tanh_shrink", HALF, "ordinary", "x - tanh(x) cancels near zero", _CAST, _BOTH),
    known(
        "reciprocal", F16, "large", "the gradient squares the result, which vanishes", _CAST, _BOTH
    ),
    known("hypot", F16, "large", _SQUARES, _CAST, _BOTH),
    known("arcsinh", F16, "large", _SQUARES, _CAST, "torch"),
    known("sinc", HALF, "tiny", "the gradient divides by squares", _CAST, _BOTH),
    known(
        "sinc",
        F16,
        "ordinary large",
        "sin(x) / x by numbers that are not exact in half",
        _CAST,
        _TF,
    ),
    known("elu selu", F16, "tiny", "exp(x) - 1 cancels near zero", _CAST, _TF),
    known("elu selu", BF16, "ordinary tiny", "exp(x) - 1 cancels near zero", _CAST, _TF),
    known(
        "gelu hard_silu hard_swish",
        F16,
        "large",
        "the gradient's products are no float16 numbers",
        _CAST,
        _TF,
    ),
    known("log10", F16, "tiny", "the gradient divides by x log(10)", _CAST, _TF),
    known("arctan2", F16, "large tiny", _SQUARES, _CAST, _TF),
    known("i0", BF16, _SIZES, "no kernel", _CAST, _TF),
    known(
        "polar",
        HALF,
        "ordinary",
        "makes complex numbers, which have no half precision",
        _CAST,
        _BOTH,
    ),
    known(
        "binary_crossentropy-sure",
        HALF,
        "ordinary",
        "clips at 1 - 1e-7, which is 1: the logarithm of 0",
        "keras_mp.losses.binary_crossentropy",
        _BOTH,
    ),
    # Reductions.
    known("std", F16, "tiny", "the gradient divides by a result that vanished", _CAST, "torch"),
    known("std", F16, "large tiny", _SQUARES, _CAST, _TF),
    known("std-long", F16, "large", _SQUARES, _CAST, _TF),
    known("nanstd", F16, "large tiny", _SQUARES, _CAST, _BOTH),
    known("nanstd-long", F16, "large", _SQUARES, _CAST, _BOTH),
    known("nanmean-long", F16, "large", "the sum is no float16 number", _CAST, _BOTH),
    known("average-long", F16, "large", "the sum is no float16 number", _CAST, _TF),
    known(
        "logsumexp-long",
        F16,
        "large",
        "the gradient's shares come from a rounded result",
        _CAST,
        "torch",
    ),
    known("moments", BF16, "large", "cuts the variance at 65,504, float16's end", _CAST, _TF),
    known("norm", F16, "large tiny", _SQUARES, _CAST, _TF),
    known("normalize", F16, "large tiny", _SQUARES, _CAST, _BOTH),
    known(
        "cumsum-long",
        HALF,
        "ordinary",
        "sums in half precision: stops at 1,024 in bfloat16",
        _CAST,
        _TF,
    ),
    known(
        "segment_sum-long",
        HALF,
        "ordinary",
        "sums in half precision: stops at 1,024 in bfloat16",
        _CAST,
        _TF,
    ),
    known("average_pool-long", F16, "ordinary large", "sums the window in float16", _CAST, _TF),
    known(
        "log_softmax-long", F16, "ordinary", "the gradient's sum is no float16 number", _CAST, _TF
    ),
    # No kernel.
    known("histogram", HALF, "ordinary", "no kernel", _CAST, "torch"),
    known("histogram", BF16, "ordinary", "the edges of the bins are rounded", _CAST, _TF),
    known(
        "cholesky cholesky_inverse det inv logdet slogdet pinv qr lu_factor svd "
        "matrix_rank eigh solve "
        "lstsq solve_triangular",
        HALF,
        "ordinary",
        "no kernel",
        _CAST,
        "torch",
    ),
    known(
        "cholesky cholesky_inverse det logdet slogdet pinv lu_factor svd matrix_rank eigh solve "
        "lstsq solve_triangular",
        F16,
        "ordinary",
        "no kernel",
        _CAST,
        _TF,
    ),
    known(
        "cholesky cholesky_inverse det inv logdet slogdet pinv qr lu_factor svd matrix_rank eigh "
        "solve lstsq solve_triangular",
        BF16,
        "ordinary",
        "no kernel",
        _CAST,
        _TF,
    ),
    known(
        "in_top_k-classes",
        HALF,
        "ordinary",
        "raises: takes float32 alone",
        "keras_mp.metrics.SparseTopKCategoricalAccuracy, or a cast",
        _TF,
    ),
]
