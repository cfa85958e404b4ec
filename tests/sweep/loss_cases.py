"""Every loss and metric of Keras: what it takes, and predictions of every kind."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sweep.cases import ORDINARY, SCALES, Floats, Given, Ints

# Loss class -> its function.
LOSSES = {
    "BinaryCrossentropy": "binary_crossentropy",
    "BinaryFocalCrossentropy": "binary_focal_crossentropy",
    "CTC": "ctc",
    "CategoricalCrossentropy": "categorical_crossentropy",
    "CategoricalFocalCrossentropy": "categorical_focal_crossentropy",
    "CategoricalGeneralizedCrossEntropy": "categorical_generalized_cross_entropy",
    "CategoricalHinge": "categorical_hinge",
    "Circle": "circle",
    "CosineSimilarity": "cosine_similarity",
    "Dice": "dice",
    "Hinge": "hinge",
    "Huber": "huber",
    "KLDivergence": "kl_divergence",
    "LogCosh": "log_cosh",
    "MeanAbsoluteError": "mean_absolute_error",
    "MeanAbsolutePercentageError": "mean_absolute_percentage_error",
    "MeanSquaredError": "mean_squared_error",
    "MeanSquaredLogarithmicError": "mean_squared_logarithmic_error",
    "Poisson": "poisson",
    "SparseCategoricalCrossentropy": "sparse_categorical_crossentropy",
    "SquaredHinge": "squared_hinge",
    "Tversky": "tversky",
}
NOT_LOSSES = {
    "Loss": "the base class",
    "deserialize": "a function over configs",
    "get": "looks a name up",
    "serialize": "a function over configs",
}
NOT_METRICS = {
    "Metric": "the base class",
    "MeanMetricWrapper": "takes a function: swept with those of Keras",
    **{name: why for name, why in NOT_LOSSES.items() if name != "Loss"},
}


@dataclass(frozen=True)
class Data:
    """Labels and predictions.

    Attributes:
        magnitudes: Those that make sense for both.
        arguments: What the loss or metric must be told about them.
    """

    labels: Any
    predictions: Any
    magnitudes: tuple[str, ...] = (ORDINARY,)
    arguments: dict[str, Any] = field(default_factory=dict)


def label(shape, **options):
    return Floats(shape, label=True, **options)


def ids(*values):
    return Given(np.array(values, "int32"))


_SURE = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.99951171875, 0.0004882]], "float32")
_TRUTH = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], "float32")
_ONE_HOT = Given(np.eye(5, dtype="float32")[[0, 3, 4, 1]], label=True)
_CLASSES = np.zeros((2, 5000), "float32")
_CLASSES[0, 2048] = _CLASSES[1, 4000] = 1.0  # wrong, by one class
_BINARY = Given(np.random.default_rng(2).integers(0, 2, (4, 3)).astype("float32"), label=True)

# Regression: of every magnitude; prices past float16's end; years; many positions.
REGRESSION = {
    "": Data(label((4, 3)), Floats((4, 3)), (*SCALES, "zeros")),
    "prices": Data(label((4, 3), low=9e4, high=1.2e5, raw=True), Floats((4, 3), low=3e4, high=6e4)),
    "years": Data(
        label((4, 3), low=1900, high=2030, raw=True), Floats((4, 3), low=1900, high=2030)
    ),
    "long": Data(label((2, 70_000)), Floats((2, 70_000))),
}
POSITIVE = {
    "": Data(label((4, 3), kind="positive"), Floats((4, 3), kind="positive"), tuple(SCALES)),
    "long": Data(label((2, 70_000), kind="positive"), Floats((2, 70_000), kind="positive")),
}
BINARY = {
    "": Data(_BINARY, Floats((4, 3), kind="unit")),
    "sure": Data(Given(_TRUTH, label=True), Given(_SURE)),
    "long": Data(
        Given(np.random.default_rng(2).integers(0, 2, (2, 70_000)).astype("float32"), label=True),
        Floats((2, 70_000), kind="unit"),
    ),
}
LOGITS = {
    "logits": Data(_BINARY, Floats((4, 3)), tuple(SCALES), {"from_logits": True}),
    "smoothing": Data(_BINARY, Floats((4, 3), kind="unit"), (ORDINARY,), {"label_smoothing": 0.1}),
}
CATEGORICAL = {
    "": Data(_ONE_HOT, Floats((4, 5), kind="shares")),
    "sure": Data(Given(_TRUTH, label=True), Given(_SURE)),
}
CATEGORICAL_LOGITS = {
    "logits": Data(_ONE_HOT, Floats((4, 5)), tuple(SCALES), {"from_logits": True}),
    "smoothing": Data(
        _ONE_HOT, Floats((4, 5), kind="shares"), (ORDINARY,), {"label_smoothing": 0.1}
    ),
}
SPARSE = {
    "": Data(Ints((4,), 5), Floats((4, 5), kind="shares")),
    "classes": Data(ids(2049, 4001), Given(_CLASSES)),
    "float-classes": Data(
        Given(np.array([2049.0, 4001.0], "float32"), label=True), Given(_CLASSES)
    ),
}
SPARSE_LOGITS = {
    "logits": Data(Ints((4,), 5), Floats((4, 5)), tuple(SCALES), {"from_logits": True}),
    "classes-logits": Data(ids(2049, 4001), Floats((2, 5000)), (ORDINARY,), {"from_logits": True}),
}
SEGMENTS = {
    "": Data(_BINARY, Floats((4, 3), kind="unit")),
    "long": Data(
        Given(np.random.default_rng(2).integers(0, 2, (2, 300, 300)).astype("float32"), label=True),
        Floats((2, 300, 300), kind="unit"),
    ),
}

LOSS_DATA: dict[str, dict[str, Data]] = {
    **dict.fromkeys(
        (
            *("cosine_similarity", "huber", "log_cosh", "mean_absolute_error"),
            *("mean_absolute_percentage_error", "mean_squared_error"),
        ),
        REGRESSION,
    ),
    **dict.fromkeys(("mean_squared_logarithmic_error", "poisson"), POSITIVE),
    "kl_divergence": {**CATEGORICAL, "long": POSITIVE["long"]},
    "binary_crossentropy": {**BINARY, **LOGITS},
    "binary_focal_crossentropy": {**BINARY, **LOGITS},
    "hinge": {"": Data(_BINARY, Floats((4, 3)), tuple(SCALES))},
    "squared_hinge": {"": Data(_BINARY, Floats((4, 3)), tuple(SCALES))},
    "categorical_hinge": {"": Data(_ONE_HOT, Floats((4, 5)), tuple(SCALES))},
    "categorical_crossentropy": {**CATEGORICAL, **CATEGORICAL_LOGITS},
    "categorical_focal_crossentropy": {**CATEGORICAL, **CATEGORICAL_LOGITS},
    "sparse_categorical_crossentropy": {
        **SPARSE,
        **SPARSE_LOGITS,
        "ignored": Data(
            ids(1, -1, 2, 0), Floats((4, 5), kind="shares"), (ORDINARY,), {"ignore_class": -1}
        ),
    },
    "categorical_generalized_cross_entropy": {
        name: Data(d.labels, d.predictions, d.magnitudes, {"q": 0.5}) for name, d in SPARSE.items()
    },
    "dice": SEGMENTS,
    "tversky": SEGMENTS,
    "circle": {
        "": Data(ids(1, 1, 2, 2, 3, 3), Floats((6, 4), low=-0.5, high=0.5)),
    },
    "ctc": {"": Data(Ints((2, 4), 6, 1), Floats((2, 14, 6)), (ORDINARY, "tiny"))},
}

METRIC_DATA: dict[str, dict[str, Data]] = {
    **dict.fromkeys(
        ("MeanAbsoluteError", "MeanSquaredError", "MeanAbsolutePercentageError"), REGRESSION
    ),
    **dict.fromkeys(("RootMeanSquaredError", "CosineSimilarity", "LogCoshError"), REGRESSION),
    **dict.fromkeys(("R2Score", "PearsonCorrelation", "ConcordanceCorrelation"), REGRESSION),
    **dict.fromkeys(("MeanSquaredLogarithmicError", "Poisson"), POSITIVE),
    "KLDivergence": LOSS_DATA["kl_divergence"],
    "BinaryCrossentropy": {**BINARY, **LOGITS},
    **dict.fromkeys(("BinaryAccuracy", "AUC", "TruePositives", "TrueNegatives"), BINARY),
    **dict.fromkeys(("FalsePositives", "FalseNegatives", "Precision", "Recall"), BINARY),
    **{
        name: {n: Data(d.labels, d.predictions, d.magnitudes, arguments) for n, d in BINARY.items()}
        for name, arguments in {
            "SensitivityAtSpecificity": {"specificity": 0.5},
            "SpecificityAtSensitivity": {"sensitivity": 0.5},
            "PrecisionAtRecall": {"recall": 0.5},
            "RecallAtPrecision": {"precision": 0.5},
            "BinaryIoU": {},
        }.items()
    },
    "Hinge": LOSS_DATA["hinge"],
    "SquaredHinge": LOSS_DATA["hinge"],
    "CategoricalHinge": LOSS_DATA["categorical_hinge"],
    "CategoricalCrossentropy": {**CATEGORICAL, **CATEGORICAL_LOGITS},
    "CategoricalAccuracy": {
        **CATEGORICAL,
        "classes": Data(
            Given(np.eye(5000, dtype="float32")[[2049, 4001]], label=True), Given(_CLASSES)
        ),
    },
    "TopKCategoricalAccuracy": {
        "": Data(_ONE_HOT, Floats((4, 5), kind="shares"), (ORDINARY,), {"k": 2})
    },
    "SparseCategoricalCrossentropy": {**SPARSE, **SPARSE_LOGITS},
    "SparseCategoricalAccuracy": SPARSE,
    "SparseTopKCategoricalAccuracy": {
        name: Data(d.labels, d.predictions, d.magnitudes, {"k": 1}) for name, d in SPARSE.items()
    },
    "FBetaScore": CATEGORICAL,
    "F1Score": CATEGORICAL,
    "Accuracy": {
        "": Data(ids(0, 1, 2, 1), Given(np.array([0, 1, 1, 1], "float32"))),
        "classes": Data(ids(2049, 4001), Given(np.array([2048.0, 4000.0], "float32"))),
    },
    **{
        name: {
            "": Data(ids(0, 1, 2, 1), Given(np.array([0, 1, 1, 1], "float32")), (ORDINARY,), more),
            "classes": Data(
                ids(0, 2049, 2),
                Given(np.array([0.0, 2048.0, 2.0], "float32")),
                (ORDINARY,),
                {**more, "num_classes": 2100},
            ),
        }
        for name, more in {
            "IoU": {"num_classes": 3, "target_class_ids": [1]},
            "MeanIoU": {"num_classes": 3},
        }.items()
    },
    **{
        name: {"": Data(_ONE_HOT, Floats((4, 5), kind="shares"), (ORDINARY,), more)}
        for name, more in {
            "OneHotIoU": {"num_classes": 5, "target_class_ids": [1]},
            "OneHotMeanIoU": {"num_classes": 5},
        }.items()
    },
}
# Those of one argument.
VALUE_METRICS = {
    "Mean": {"": Floats((4, 3)), "long": Floats((70_000,), low=0.5, high=1.5)},
    "Sum": {"": Floats((4, 3)), "long": Floats((70_000,), low=0.5, high=1.5)},
}
# Metric functions, by the class whose data they take.
METRIC_FUNCTIONS = {
    "binary_accuracy": "BinaryAccuracy",
    "categorical_accuracy": "CategoricalAccuracy",
    "sparse_categorical_accuracy": "SparseCategoricalAccuracy",
    "sparse_top_k_categorical_accuracy": "SparseTopKCategoricalAccuracy",
    "top_k_categorical_accuracy": "TopKCategoricalAccuracy",
    "pearson_correlation": "PearsonCorrelation",
    "concordance_correlation": "ConcordanceCorrelation",
}
