"""Every layer of Keras: how to make one, what goes in. Image layers stand in ``image_cases``."""

import numpy as np
from keras import layers as L
from sweep.cases import MAGNITUDES, Bools, Case, Floats, Given, Ints, case
from sweep.image_cases import IMAGE_LAYERS, PICTURE

VECTOR, SEQUENCE, IMAGE, VOLUME = (3, 8), (2, 6, 4), (2, 8, 8, 4), (2, 4, 6, 6, 4)
LONG = (2, 20_000, 2)  # sums of 20,000 numbers: float16 stops at 2,048 ones
STEPS = 24  # roundings of a recurrent layer over a sequence

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


def masked(make, shape, mask, *, label="", **options):
    """The same layer with a mask as it comes, one of all True, and one of all False."""
    call = options.pop("call", lambda layer, x, m: layer(x, mask=m))
    inputs = options.pop("inputs", (shape,))
    return [
        case(make, *inputs, Bools(mask, kept), call=call, label=label + name, **options)
        for name, kept in (("mask", None), ("full-mask", True), ("empty-mask", False))
    ]


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


def recurrent():
    out = {}
    for name in ("LSTM", "GRU", "SimpleRNN"):
        layer = getattr(L, name)
        make = (lambda c: lambda **k: c(5, **k))(layer)
        out[name] = [
            case(make, SEQUENCE, roundings=STEPS, magnitudes=("ordinary", "large", "tiny")),
            case(
                (lambda m: lambda: m(return_sequences=True, return_state=True, go_backwards=True))(make),
                SEQUENCE, roundings=STEPS, label="all", magnitudes=("ordinary",),
            ),
            case(
                (lambda m: lambda: m(recurrent_dropout=0.3, dropout=0.2, seed=1))(make),
                SEQUENCE, label="dropout", random=True, magnitudes=("ordinary",),
            ),
            *masked(make, SEQUENCE, (2, 6), roundings=STEPS, magnitudes=("ordinary",)),
            case(
                (lambda m: lambda: m(stateful=True))(make),
                SEQUENCE, roundings=STEPS, label="stateful", magnitudes=("ordinary",), gradient=False,
            ),
            case(make, (2, 30, 4), roundings=5 * STEPS, label="long", magnitudes=("ordinary",)),
        ]  # fmt: skip
        cell = getattr(L, f"{name}Cell")
        out[f"{name}Cell"] = [
            case((lambda c: lambda: L.RNN(c(5)))(cell), SEQUENCE, roundings=STEPS, magnitudes=("ordinary",)),
            *masked((lambda c: lambda: L.RNN(c(5)))(cell), SEQUENCE, (2, 6), roundings=STEPS,
                    magnitudes=("ordinary",)),
        ]  # fmt: skip
    out["GRU"].append(
        case(lambda: L.GRU(5, reset_after=False), SEQUENCE, roundings=STEPS, label="reset-before",
             magnitudes=("ordinary",))
    )  # fmt: skip
    for d, shape in ((1, (2, 3, 6, 2)), (2, (2, 3, 5, 5, 2)), (3, (1, 2, 4, 4, 4, 2))):
        layer = getattr(L, f"ConvLSTM{d}D")
        out[layer.__name__] = [
            case(
                (lambda c: lambda: c(2, 3))(layer),
                shape,
                roundings=STEPS,
                magnitudes=("ordinary", "large"),
            ),
        ]
    out["ConvLSTM2D"].append(
        case(lambda: L.ConvLSTM2D(2, 3, stateful=True), (2, 3, 5, 5, 2), roundings=STEPS,
             label="stateful", magnitudes=("ordinary",), gradient=False)
    )  # fmt: skip
    out["RNN"] = [
        case(
            lambda: L.RNN(L.GRUCell(5), unroll=True),
            SEQUENCE,
            roundings=STEPS,
            magnitudes=("ordinary",),
        )
    ]
    out["StackedRNNCells"] = [
        case(
            lambda: L.RNN(L.StackedRNNCells([L.LSTMCell(4), L.GRUCell(3)])),
            SEQUENCE,
            roundings=2 * STEPS,
            magnitudes=("ordinary",),
        )
    ]
    out["Bidirectional"] = [
        case(lambda: L.Bidirectional(L.GRU(3)), SEQUENCE, roundings=STEPS, magnitudes=("ordinary",)),
        *masked(lambda: L.Bidirectional(L.LSTM(3), merge_mode="sum"), SEQUENCE, (2, 6), roundings=STEPS,
                magnitudes=("ordinary",)),
    ]  # fmt: skip
    return out


def attention():
    """Logits of up to 36 * 9 * 8 stand under "large" inputs: 2^13 squared is no float16 number."""
    out = {}
    query, keys = Floats((2, 4, 8)), Floats((2, 5, 8))
    sharp = Floats((2, 4, 8), fixed=True, low=-30, high=30)
    plain = ("ordinary", "zeros")
    for name, make in (("Attention", L.Attention), ("AdditiveAttention", L.AdditiveAttention)):
        own = dict(roundings=8, magnitudes=plain)
        out[name] = [
            case(make, query, keys, **own),
            case(make, sharp, Floats((2, 5, 8), fixed=True, low=-8, high=8), label="sharp",
                 roundings=8, magnitudes=("ordinary",)),
            *masked(make, None, (2, 5), inputs=(query, keys), roundings=8, magnitudes=("ordinary", "large"),
                    call=lambda a, q, v, m: a([q, v], mask=[None, m])),
        ]  # fmt: skip
    out["Attention"].append(
        case(lambda: L.Attention(use_scale=True), query, keys, label="causal", roundings=8, magnitudes=plain,
             call=lambda a, q, v: a([q, v], use_causal_mask=True))
    )  # fmt: skip
    for name, make in (
        ("MultiHeadAttention", lambda **k: L.MultiHeadAttention(2, 4, **k)),
        ("GroupQueryAttention", lambda **k: L.GroupQueryAttention(4, 4, 2, **k)),
    ):
        call = lambda a, q, v: a(q, v)  # noqa: E731
        bias = dict(roundings=16, vanishing=(5,))  # the keys' bias moves all logits of a row
        out[name] = [
            case(make, query, keys, call=call, **bias, magnitudes=plain),
            case(make, sharp, sharp, call=call, **bias, label="sharp", magnitudes=("ordinary",)),
            case(make, query, query, **bias, label="causal", magnitudes=("ordinary",),
                 call=lambda a, q, v: a(q, v, use_causal_mask=True)),
            case(make, query, keys, **bias, label="scores", magnitudes=("ordinary",),
                 call=lambda a, q, v: a(q, v, return_attention_scores=True)),
            *masked(make, None, (2, 4, 5), inputs=(query, keys), **bias, magnitudes=("ordinary",),
                    call=lambda a, q, v, m: a(q, v, attention_mask=m)),
            *masked(make, None, (2, 5), inputs=(query, keys), **bias, magnitudes=("ordinary",),
                    label="value-", call=lambda a, q, v, m: a(q, v, value_mask=m)),
        ]  # fmt: skip
    return out


def normalizations():
    squeezed = (2, 3, 3, 8)
    every = {"magnitudes": MAGNITUDES}
    out = {
        "BatchNormalization": [
            case(L.BatchNormalization, squeezed, **every),
            case(L.BatchNormalization, squeezed, label="inference", training=False),
            case(L.BatchNormalization, (20_000, 2), label="long", magnitudes=("ordinary", "large")),
            *masked(L.BatchNormalization, SEQUENCE, (2, 6), magnitudes=("ordinary", "large")),
        ],
        "LayerNormalization": [
            case(L.LayerNormalization, VECTOR, **every),
            case(L.LayerNormalization, (2, 20_000), label="long", magnitudes=("ordinary", "large")),
            case(lambda: L.LayerNormalization(epsilon=1e-12), VECTOR, label="small-epsilon", **every),
        ],
        "RMSNormalization": [
            case(L.RMSNormalization, VECTOR, **every),
            case(L.RMSNormalization, (2, 20_000), label="long", magnitudes=("ordinary", "large")),
            case(lambda: L.RMSNormalization(epsilon=1e-12), VECTOR, label="small-epsilon", **every),
        ],
        "GroupNormalization": [
            case(lambda: L.GroupNormalization(2), squeezed, **every),
            case(lambda: L.GroupNormalization(1, epsilon=1e-12), squeezed, label="small-epsilon", **every),
            case(lambda: L.GroupNormalization(1), (2, 5000, 4), label="long", magnitudes=("ordinary", "large")),
        ],
        "UnitNormalization": [
            case(L.UnitNormalization, VECTOR, **every),
            case(L.UnitNormalization, (2, 20_000), label="long", magnitudes=("ordinary",)),
        ],
        "SpectralNormalization": [
            case(lambda: L.SpectralNormalization(L.Dense(3)), VECTOR, roundings=16),
            case(lambda: L.SpectralNormalization(L.Dense(4000)), VECTOR, roundings=16, label="long",
                 magnitudes=("ordinary",)),
        ],
    }  # fmt: skip
    return out


def pointwise():
    out = {
        "Activation": [
            case((lambda a: lambda: L.Activation(a))(a), VECTOR, label=a, each=True, roundings=8)
            for a in ("sigmoid", "tanh", "gelu", "silu", "softplus", "mish", "exponential", "log_sigmoid",
                      "hard_sigmoid", "selu", "softsign", "celu", "squareplus", "tanh_shrink")
        ],
        "ActivityRegularization": [case(lambda: L.ActivityRegularization(0.1, 0.1), VECTOR, each=True)],
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
        "concatenate": [case(lambda: None, VECTOR, VECTOR, each=True, call=lambda _, *t: L.concatenate(list(t)))],
        "Flatten": [case(L.Flatten, IMAGE, each=True)],
        "Permute": [case(lambda: L.Permute((2, 1)), SEQUENCE, each=True)],
        "RepeatVector": [case(lambda: L.RepeatVector(3), VECTOR, each=True)],
        "Reshape": [case(lambda: L.Reshape((4, 2)), VECTOR, each=True)],
        "TimeDistributed": [
            case(lambda: L.TimeDistributed(L.Dense(3)), SEQUENCE),
            *masked(lambda: L.TimeDistributed(L.Dense(3)), SEQUENCE, (2, 6), magnitudes=("ordinary",)),
        ],
    }  # fmt: skip
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
        "EinsumDense": [case(lambda: L.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d"), SEQUENCE)],
        "Embedding": [
            case(lambda: L.Embedding(5000, 3), Ints((2, 7), 5000), label="classes"),
            case(lambda: L.Embedding(70_000, 2), Ints((2, 7), 70_000, 60_000), label="more-classes"),
        ],
        "ReversibleEmbedding": [
            case(lambda: L.ReversibleEmbedding(5000, 3), Ints((2, 7), 5000), label="classes"),
            case(lambda: L.ReversibleEmbedding(3000, 4), SEQUENCE, label="reverse", keeps_dtype=True,
                 call=lambda e, x: (e.build(), e(x, reverse=True))[1]),
        ],
    }  # fmt: skip


def pooling():
    out = {}
    for stem, sizes in (
        ("AveragePooling", (2,)), ("MaxPooling", (2,)), ("GlobalAveragePooling", ()),
        ("GlobalMaxPooling", ()), ("AdaptiveAveragePooling", (2,)), ("AdaptiveMaxPooling", (2,)),
    ):  # fmt: skip
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


def features():
    """Layers that take raw features: numbers of any size, ids, strings."""
    prices = Floats((8, 2), raw=True, fixed=True, low=80_000, high=160_000)
    plain = ("ordinary",)
    word = Given(np.array([["a"], ["c"], ["?"]]))
    return {
        "Normalization": [
            case(lambda: L.Normalization(mean=[0.5, 1.0], variance=[2.0, 1.0]), (4, 2)),
            case(lambda: L.Normalization(mean=[120_000.0, 1e5], variance=[4e8, 1e8]), prices,
                 label="prices", magnitudes=plain),
            case(lambda: L.Normalization(mean=[2000.0, 2010.0], variance=[100.0, 50.0]),
                 Floats((8, 2), raw=True, fixed=True, low=1980, high=2030), label="years", magnitudes=plain),
            case(lambda: L.Normalization(mean=[1e-5, 1e-5], variance=[1e-10, 1e-10]),
                 Floats((8, 2), raw=True, fixed=True, low=1e-6, high=3e-5), label="small", magnitudes=plain),
        ],
        "Discretization": [
            case(lambda: L.Discretization([0.0, 0.5, 1.0]), (4, 3), gradient=False),
            case(lambda: L.Discretization(list(np.arange(0, 5000.0))), label="classes", magnitudes=plain,
                 *[Floats((8, 2), raw=True, fixed=True, low=0, high=5000)]),
            case(lambda: L.Discretization([100_000.0, 120_000.0]), prices, label="prices", magnitudes=plain),
        ],
        "CategoryEncoding": [
            case(lambda: L.CategoryEncoding(5, output_mode="multi_hot"), Ints((3, 4), 5), magnitudes=plain, keeps_dtype=True),
            case(lambda: L.CategoryEncoding(3000, output_mode="one_hot"), Ints((3,), 3000), label="classes",
                 magnitudes=plain, keeps_dtype=True),
            case(lambda: L.CategoryEncoding(5, output_mode="count"),
                 Ints((2, 5000), 2), label="long", magnitudes=plain, keeps_dtype=True),
            case(lambda: L.CategoryEncoding(3000, output_mode="count"), Ints((3, 4), 3000),
                 Floats((3, 4)), call=lambda e, x, w: e(x, count_weights=w), label="weights",
                 gradient=False, keeps_dtype=True),
        ],
        "Hashing": [case(lambda: L.Hashing(5000), Ints((8, 1), 1 << 20), magnitudes=plain)],
        "HashedCrossing": [
            case(lambda: L.HashedCrossing(5000), Ints((8,), 1 << 20), Ints((8,), 1 << 20), magnitudes=plain),
            case(lambda: L.HashedCrossing(50, output_mode="one_hot"), Ints((8,), 100), Ints((8,), 100),
                 magnitudes=plain, label="one-hot", keeps_dtype=True),
        ],
        "IntegerLookup": [
            case(lambda: L.IntegerLookup(vocabulary=list(range(5000))), Ints((8, 1), 6000), magnitudes=plain),
            case(lambda: L.IntegerLookup(vocabulary=list(range(9)), output_mode="multi_hot"), Ints((3, 4), 9),
                 magnitudes=plain, label="multi-hot", keeps_dtype=True),
        ],
        "StringLookup": [case(lambda: L.StringLookup(vocabulary=["a", "b", "c"]), word, magnitudes=plain, backends=("tensorflow",), keeps_dtype=True)],
        "TextVectorization": [
            case(lambda: L.TextVectorization(vocabulary=["a", "b", "c"]), word, magnitudes=plain, backends=("tensorflow",), keeps_dtype=True),
        ],
        "STFTSpectrogram": [
            case((lambda m: lambda: L.STFTSpectrogram(mode=m, frame_length=32, frame_step=16))(m), (2, 128, 1), label=m,
                 roundings=16)
            for m in ("log", "magnitude", "real")
        ],
    }  # fmt: skip


def boxed(layer, images, boxes, labels):
    return layer({"images": images, "bounding_boxes": {"boxes": boxes, "labels": labels}})[
        "bounding_boxes"
    ]["boxes"]


def _others() -> dict[str, list[Case]]:
    return {
        "Pipeline": [
            case(
                lambda: L.Pipeline([L.Rescaling(1 / 255.0)]), Floats((2, 4, 4, 3), low=0, high=255)
            )
        ],
        "MaxNumBoundingBoxes": [
            case(
                lambda: L.MaxNumBoundingBoxes(5, bounding_box_format="xyxy"),
                PICTURE,
                Floats((2, 3, 4), fixed=True, low=0, high=8),
                Ints((2, 3)),
                magnitudes=("ordinary",),
                gradient=False,
                keeps_dtype=True,
                call=boxed,
            )
        ],
    }


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
    **_others(),
    **IMAGE_LAYERS,
}
