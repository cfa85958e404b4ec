"""Every layer of Keras: how to make one, what goes in. Further tables come together here."""

from functools import partial

from keras import layers as L
from sweep.cases import Case, Ints, case
from sweep.image_cases import IMAGE_LAYERS
from sweep.layer_cases_features import features, normalizations, others
from sweep.layer_cases_sequences import attention, recurrent
from sweep.layer_shapes import IMAGE, LONG, SEQUENCE, VECTOR, VOLUME, masked

# Names of the module that are no layers, and layers that compute nothing that a dtype could change.
NOT_LAYERS = {
    "Layer": "the base class",
    "Wrapper": "a base class",
    "Input": "makes a symbolic tensor",
    "InputLayer": "holds a symbolic tensor",
    "InputSpec": "describes an input",
    "serialize": "a function over configs",
    "deserialize": "a function over configs",
    "Equalization": "hands its symbolic input on as its output: no functional model can hold it",
    "FlaxLayer": "needs flax, a package that nothing else here needs; it is a JaxLayer",
    "TFSMLayer": "runs a SavedModel, with the dtypes that were saved in it",
    "TorchModuleWrapper": "foreign: tests/keras_mp/layers/test_foreign.py",
    "JaxLayer": "foreign: tests/keras_mp/layers/test_foreign.py",
}


def merging(name):
    layer = getattr(L, name)
    function = getattr(L, name.lower())
    return {
        name: [case(layer, VECTOR, VECTOR, each=True)],
        name.lower(): [
            case(lambda: None, VECTOR, VECTOR, call=lambda _, *t: function(list(t)), each=True)
        ],
    }


def pooled(stem, sizes, **options):
    """A kind of pooling in one, two and three dimensions."""
    shapes = {1: SEQUENCE, 2: IMAGE, 3: VOLUME}
    return {
        f"{stem}{d}D": [
            case((lambda c, a: lambda: c(*a))(getattr(L, f"{stem}{d}D"), sizes), shapes[d])
        ]
        for d in (1, 2, 3)
    }


def convolutions():
    out = {}
    for d, shape in ((1, SEQUENCE), (2, IMAGE), (3, VOLUME)):
        for stem in ("Conv{}D", "Conv{}DTranspose", "DepthwiseConv{}D", "SeparableConv{}D"):
            layer = getattr(L, stem.format(d), None)
            if layer is None:
                continue
            arguments = (3,) if stem.startswith("Depth") else (5, 3)
            roundings = 8 if stem.startswith("Separable") else 4
            make = (lambda c, a: lambda **k: c(*a, **k))(layer, arguments)
            out[stem.format(d)] = [
                case(make, shape, roundings=roundings),
                case(
                    (lambda m: lambda: m(padding="same", activation="relu"))(make),
                    shape,
                    label="same",
                    roundings=roundings,
                    magnitudes=("ordinary",),
                ),
            ]
    return out


def resampling():
    out = {}
    for d, shape in ((1, SEQUENCE), (2, IMAGE), (3, VOLUME)):
        for stem in ("Cropping", "UpSampling", "ZeroPadding"):
            name = f"{stem}{d}D"
            out[name] = [
                case(
                    (lambda c: lambda: c(1 if "Up" not in c.__name__ else 2))(getattr(L, name)),
                    shape,
                )
            ]
        out[f"SpatialDropout{d}D"] = [
            case(
                (lambda c: lambda: c(0.5, seed=1))(getattr(L, f"SpatialDropout{d}D")),
                shape,
                random=True,
            )
        ]
    out["UpSampling2D"] += [
        case(
            lambda i=i: L.UpSampling2D(2, interpolation=i),
            IMAGE,
            label=i,
            roundings=8,
            backends=("tensorflow", "jax") if i == "lanczos3" else ("torch", "tensorflow", "jax"),
        )
        for i in ("bilinear", "bicubic", "lanczos3")
    ]
    return out


def pointwise():
    out = {
        "Activation": [
            case(partial(L.Activation, a), VECTOR, label=a, each=True, roundings=8)
            for a in (
                "sigmoid",
                "tanh",
                "gelu",
                "silu",
                "softplus",
                "mish",
                "exponential",
                "log_sigmoid",
                "hard_sigmoid",
                "selu",
                "softsign",
                "celu",
                "squareplus",
                "tanh_shrink",
            )
        ],
        "ActivityRegularization": [
            case(lambda: L.ActivityRegularization(0.1, 0.1), VECTOR, each=True)
        ],
        "PReLU": [case(L.PReLU, VECTOR, each=True)],
        "ReLU": [case(lambda: L.ReLU(6.0, 0.1, 0.5), VECTOR, each=True)],
        "Identity": [case(L.Identity, VECTOR, each=True)],
        "Lambda": [case(lambda: L.Lambda(lambda x: x * 2), VECTOR, each=True)],
        "Softmax": [
            case(L.Softmax, VECTOR, roundings=6),
            case(L.Softmax, (2, 20_000), label="long", magnitudes=("ordinary",)),
            *masked(L.Softmax, VECTOR, VECTOR, magnitudes=("ordinary", "large")),
        ],
        "Masking": [case(L.Masking, SEQUENCE, each=True)],
        "Dropout": [case(lambda: L.Dropout(0.5, seed=1), VECTOR, random=True)],
        "AlphaDropout": [case(lambda: L.AlphaDropout(0.5, seed=1), VECTOR, random=True)],
        "GaussianDropout": [case(lambda: L.GaussianDropout(0.5, seed=1), VECTOR, random=True)],
        "GaussianNoise": [case(lambda: L.GaussianNoise(0.5, seed=1), VECTOR, random=True)],
        "Concatenate": [case(L.Concatenate, VECTOR, VECTOR, each=True)],
        "concatenate": [
            case(lambda: None, VECTOR, VECTOR, each=True, call=lambda _, *t: L.concatenate(list(t)))
        ],
        "Flatten": [case(L.Flatten, IMAGE, each=True)],
        "Permute": [case(lambda: L.Permute((2, 1)), SEQUENCE, each=True)],
        "RepeatVector": [case(lambda: L.RepeatVector(3), VECTOR, each=True)],
        "Reshape": [case(lambda: L.Reshape((4, 2)), VECTOR, each=True)],
        "TimeDistributed": [
            case(lambda: L.TimeDistributed(L.Dense(3)), SEQUENCE),
            *masked(
                lambda: L.TimeDistributed(L.Dense(3)), SEQUENCE, (2, 6), magnitudes=("ordinary",)
            ),
        ],
    }
    for name in ("ELU", "LeakyReLU"):
        out[name] = [case(getattr(L, name), VECTOR, each=True, roundings=8)]
    for name in ("Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract"):
        out |= merging(name)
    out["Average"].append(case(L.Average, *[VECTOR] * 5, label="many", roundings=8))
    out["Dot"] = [
        case(lambda: L.Dot(1), VECTOR, VECTOR),
        case(lambda: L.Dot(1, normalize=True), VECTOR, VECTOR, label="normalize", roundings=8),
    ]
    out["dot"] = [case(lambda: None, VECTOR, VECTOR, call=lambda _, *t: L.dot(list(t), 1))]
    return out


def products():
    return {
        "Dense": [
            case(lambda: L.Dense(5, "tanh"), VECTOR),
            case(lambda: L.Dense(2), (2, 20_000), label="long", magnitudes=("ordinary",)),
            case(lambda: L.Dense(5000), VECTOR, label="classes", magnitudes=("ordinary",)),
        ],
        "EinsumDense": [
            case(lambda: L.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d"), SEQUENCE)
        ],
        "Embedding": [
            case(lambda: L.Embedding(5000, 3), Ints((2, 7), 5000), label="classes"),
            case(
                lambda: L.Embedding(70_000, 2), Ints((2, 7), 70_000, 60_000), label="more-classes"
            ),
        ],
        "ReversibleEmbedding": [
            case(lambda: L.ReversibleEmbedding(5000, 3), Ints((2, 7), 5000), label="classes"),
            case(
                lambda: L.ReversibleEmbedding(3000, 4),
                SEQUENCE,
                label="reverse",
                keeps_dtype=True,
                call=lambda e, x: (e.build(), e(x, reverse=True))[1],
            ),
        ],
    }


def pooling():
    out = {}
    for stem, sizes in (
        ("AveragePooling", (2,)),
        ("MaxPooling", (2,)),
        ("GlobalAveragePooling", ()),
        ("GlobalMaxPooling", ()),
        ("AdaptiveAveragePooling", (2,)),
        ("AdaptiveMaxPooling", (2,)),
    ):
        out |= pooled(stem, sizes)
    wide = ("ordinary", "large")
    out["GlobalAveragePooling1D"] += [
        case(L.GlobalAveragePooling1D, LONG, label="long", magnitudes=wide),
        *masked(L.GlobalAveragePooling1D, SEQUENCE, (2, 6)),
        *masked(L.GlobalAveragePooling1D, LONG, LONG[:2], label="long-", magnitudes=wide),
    ]
    out["GlobalAveragePooling2D"].append(
        case(L.GlobalAveragePooling2D, (1, 150, 150, 2), label="long", magnitudes=wide)
    )
    out["AveragePooling1D"].append(
        case(lambda: L.AveragePooling1D(5000), LONG, label="long", magnitudes=wide)
    )
    out["AveragePooling2D"].append(
        case(lambda: L.AveragePooling2D(64), (1, 128, 64, 2), label="long", magnitudes=wide)
    )
    return out


LAYERS: dict[str, list[Case]] = {
    **products(),
    **convolutions(),
    **pooling(),
    **resampling(),
    **recurrent(),
    **attention(),
    **normalizations(),
    **pointwise(),
    **features(),
    **others(),
    **IMAGE_LAYERS,
}
