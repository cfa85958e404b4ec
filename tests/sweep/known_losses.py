"""What Keras' loss functions and metrics do wrong with half-precision predictions.

Each is cured by its namesake in ``keras_mp.losses`` or ``keras_mp.metrics``, which the sweep tries
on the same data; and by a float32 output, which a plan gives every model. Keras' loss *classes*
compute in ``floatx``, and none of them stands here.
"""

from sweep.known import BF16, F16, HALF, known

_BOTH = ("torch", "tensorflow")
_TF = "tensorflow"
_SQUARES = "squares and their sums are no float16 numbers"
_LABELS = "labels past 65,504 become infinite in float16"
_EPSILON = "the predictions are clipped to 1 - 1e-7, which is 1 in half: the logarithm of 0"
_ROUNDED = (
    "labels are rounded to the predictions' dtype: class 2,049 is 2,048 (bfloat16: 257 is 256)"
)
_OURS, _OUR_METRIC = "keras_mp.losses", "keras_mp.metrics"

KNOWN_LOSSES = [
    known(
        "binary_crossentropy-sure binary_focal_crossentropy-sure",
        HALF,
        "ordinary",
        _EPSILON,
        _OURS,
        _BOTH,
    ),
    known("binary_focal_crossentropy-logits", F16, "large", _EPSILON, _OURS, _BOTH),
    known("binary_focal_crossentropy-logits", BF16, "large", _EPSILON, _OURS, "torch"),
    known(
        "categorical_crossentropy-sure categorical_focal_crossentropy-sure",
        F16,
        "ordinary",
        "1e-7 is rounded to a subnormal float16 number",
        _OURS,
        _BOTH,
    ),
    known("categorical_focal_crossentropy-logits", F16, "large", "as above", _OURS, _BOTH),
    known(
        "sparse_categorical_crossentropy-classes sparse_categorical_crossentropy-float-classes",
        F16,
        "ordinary",
        "as above",
        _OURS,
        _BOTH,
    ),
    known("cosine_similarity", F16, "large tiny zeros", _SQUARES, _OURS, _BOTH),
    known(
        "cosine_similarity-prices cosine_similarity-years cosine_similarity-long",
        F16,
        "ordinary",
        _SQUARES,
        _OURS,
        _BOTH,
    ),
    known(
        "dice-long tversky-long",
        F16,
        "ordinary",
        "sums of 90,000 pixels are no float16 numbers",
        _OURS,
        _BOTH,
    ),
    known(
        "huber-prices log_cosh-prices mean_absolute_error-prices "
        "mean_absolute_percentage_error-prices",
        F16,
        "ordinary",
        _LABELS,
        _OURS,
        _BOTH,
    ),
    known(
        "mean_absolute_percentage_error-years",
        F16,
        "ordinary",
        "the gradient divides by squares of labels",
        _OURS,
        _BOTH,
    ),
    known("kl_divergence-sure", F16, "ordinary", _EPSILON, _OURS, _BOTH),
    known("kl_divergence", F16, "ordinary", "the logarithm's gradient divides by zero", _OURS, _TF),
    known("log_cosh", HALF, "tiny", "x + softplus(-2x) - log(2) cancels", _OURS, _BOTH),
    known("poisson", F16, "large", "labels times logarithms are no float16 numbers", _OURS, _BOTH),
]

KNOWN_METRICS = [
    known(
        "MeanAbsoluteError-prices MeanAbsolutePercentageError-prices LogCoshError-prices "
        "PearsonCorrelation-prices ConcordanceCorrelation-prices pearson_correlation-prices "
        "concordance_correlation-prices",
        F16,
        "ordinary",
        _LABELS,
        _OUR_METRIC,
        _BOTH,
    ),
    known(
        "concordance_correlation-prices",
        BF16,
        "ordinary",
        "prices are rounded to 3 digits",
        _OUR_METRIC,
        _BOTH,
    ),
    known("MeanSquaredError SquaredHinge", F16, "large", _SQUARES, _OUR_METRIC, _BOTH),
    known("MeanSquaredError-prices", F16, "ordinary", _SQUARES, _OUR_METRIC, _BOTH),
    known("CosineSimilarity", F16, "large tiny zeros", _SQUARES, _OUR_METRIC, _BOTH),
    known(
        "CosineSimilarity-prices CosineSimilarity-years CosineSimilarity-long",
        F16,
        "ordinary",
        _SQUARES,
        _OUR_METRIC,
        _BOTH,
    ),
    known("LogCoshError", F16, "tiny", "cancels, as the loss", _OUR_METRIC, _BOTH),
    known("LogCoshError", BF16, "tiny", "cancels, as the loss", _OUR_METRIC, "torch"),
    known(
        "ConcordanceCorrelation concordance_correlation",
        F16,
        "large tiny",
        _SQUARES,
        _OUR_METRIC,
        _BOTH,
    ),
    known("PearsonCorrelation pearson_correlation", F16, "large tiny", _SQUARES, _OUR_METRIC, _TF),
    known(
        "PearsonCorrelation-long pearson_correlation-long",
        F16,
        "ordinary",
        _SQUARES,
        _OUR_METRIC,
        _TF,
    ),
    known(
        "Poisson",
        F16,
        "large",
        "labels times logarithms are no float16 numbers",
        _OUR_METRIC,
        _BOTH,
    ),
    known("KLDivergence-sure", F16, "ordinary", _EPSILON, _OUR_METRIC, _BOTH),
    known("BinaryCrossentropy-sure", F16, "ordinary", _EPSILON, _OUR_METRIC, _BOTH),
    known("BinaryCrossentropy-sure", BF16, "ordinary", _EPSILON, _OUR_METRIC, _TF),
    known(
        "CategoricalCrossentropy-sure SparseCategoricalCrossentropy-classes "
        "SparseCategoricalCrossentropy-float-classes",
        F16,
        "ordinary",
        "1e-7 is rounded to a subnormal float16 number",
        _OUR_METRIC,
        _BOTH,
    ),
    known(
        "CategoricalAccuracy-classes SparseCategoricalAccuracy-classes "
        "categorical_accuracy-classes SparseCategoricalAccuracy-float-classes "
        "sparse_categorical_accuracy-classes sparse_categorical_accuracy-float-classes",
        HALF,
        "ordinary",
        _ROUNDED,
        _OUR_METRIC,
        _BOTH,
    ),
    known(
        "TopKCategoricalAccuracy SparseTopKCategoricalAccuracy "
        "SparseTopKCategoricalAccuracy-classes SparseTopKCategoricalAccuracy-float-classes "
        "sparse_top_k_categorical_accuracy sparse_top_k_categorical_accuracy-classes "
        "sparse_top_k_categorical_accuracy-float-classes top_k_categorical_accuracy",
        HALF,
        "ordinary",
        "raises: its operator takes float32 alone",
        _OUR_METRIC,
        _TF,
    ),
]
