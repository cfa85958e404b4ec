"""Normalizations, and layers that take raw features: how to make one, what goes in."""

from functools import partial

import numpy as np
from keras import layers as L
from sweep.cases import MAGNITUDES, Floats, Given, Ints, case
from sweep.image_cases import PICTURE
from sweep.layer_shapes import SEQUENCE, VECTOR, masked


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
            case(
                lambda: L.LayerNormalization(epsilon=1e-12), VECTOR, label="small-epsilon", **every
            ),
        ],
        "RMSNormalization": [
            case(L.RMSNormalization, VECTOR, **every),
            case(L.RMSNormalization, (2, 20_000), label="long", magnitudes=("ordinary", "large")),
            case(lambda: L.RMSNormalization(epsilon=1e-12), VECTOR, label="small-epsilon", **every),
        ],
        "GroupNormalization": [
            case(lambda: L.GroupNormalization(2), squeezed, **every),
            case(
                lambda: L.GroupNormalization(1, epsilon=1e-12),
                squeezed,
                label="small-epsilon",
                **every,
            ),
            case(
                lambda: L.GroupNormalization(1),
                (2, 5000, 4),
                label="long",
                magnitudes=("ordinary", "large"),
            ),
        ],
        "UnitNormalization": [
            case(L.UnitNormalization, VECTOR, **every),
            case(L.UnitNormalization, (2, 20_000), label="long", magnitudes=("ordinary",)),
        ],
        "SpectralNormalization": [
            case(lambda: L.SpectralNormalization(L.Dense(3)), VECTOR, roundings=16),
            case(
                lambda: L.SpectralNormalization(L.Dense(4000)),
                VECTOR,
                roundings=16,
                label="long",
                magnitudes=("ordinary",),
            ),
        ],
    }
    return out


def features():
    """Layers that take raw features: numbers of any size, ids, strings."""
    prices = Floats((8, 2), raw=True, fixed=True, low=80_000, high=160_000)
    plain = ("ordinary",)
    word = Given(np.array([["a"], ["c"], ["?"]]))
    return {
        "Normalization": [
            case(lambda: L.Normalization(mean=[0.5, 1.0], variance=[2.0, 1.0]), (4, 2)),
            case(
                lambda: L.Normalization(mean=[120_000.0, 1e5], variance=[4e8, 1e8]),
                prices,
                label="prices",
                magnitudes=plain,
            ),
            case(
                lambda: L.Normalization(mean=[2000.0, 2010.0], variance=[100.0, 50.0]),
                Floats((8, 2), raw=True, fixed=True, low=1980, high=2030),
                label="years",
                magnitudes=plain,
            ),
            case(
                lambda: L.Normalization(mean=[1e-5, 1e-5], variance=[1e-10, 1e-10]),
                Floats((8, 2), raw=True, fixed=True, low=1e-6, high=3e-5),
                label="small",
                magnitudes=plain,
            ),
        ],
        "Discretization": [
            case(lambda: L.Discretization([0.0, 0.5, 1.0]), (4, 3), gradient=False),
            case(
                lambda: L.Discretization(list(np.arange(0, 5000.0))),
                Floats((8, 2), raw=True, fixed=True, low=0, high=5000),
                label="classes",
                magnitudes=plain,
            ),
            case(
                lambda: L.Discretization([100_000.0, 120_000.0]),
                prices,
                label="prices",
                magnitudes=plain,
            ),
        ],
        "CategoryEncoding": [
            case(
                lambda: L.CategoryEncoding(5, output_mode="multi_hot"),
                Ints((3, 4), 5),
                magnitudes=plain,
                keeps_dtype=True,
            ),
            case(
                lambda: L.CategoryEncoding(3000, output_mode="one_hot"),
                Ints((3,), 3000),
                label="classes",
                magnitudes=plain,
                keeps_dtype=True,
            ),
            case(
                lambda: L.CategoryEncoding(5, output_mode="count"),
                Ints((2, 5000), 2),
                label="long",
                magnitudes=plain,
                keeps_dtype=True,
            ),
            case(
                lambda: L.CategoryEncoding(3000, output_mode="count"),
                Ints((3, 4), 3000),
                Floats((3, 4)),
                call=lambda e, x, w: e(x, count_weights=w),
                label="weights",
                gradient=False,
                keeps_dtype=True,
            ),
        ],
        "Hashing": [case(lambda: L.Hashing(5000), Ints((8, 1), 1 << 20), magnitudes=plain)],
        "HashedCrossing": [
            case(
                lambda: L.HashedCrossing(5000),
                Ints((8,), 1 << 20),
                Ints((8,), 1 << 20),
                magnitudes=plain,
            ),
            case(
                lambda: L.HashedCrossing(50, output_mode="one_hot"),
                Ints((8,), 100),
                Ints((8,), 100),
                magnitudes=plain,
                label="one-hot",
                keeps_dtype=True,
            ),
        ],
        "IntegerLookup": [
            case(
                lambda: L.IntegerLookup(vocabulary=list(range(5000))),
                Ints((8, 1), 6000),
                magnitudes=plain,
            ),
            case(
                lambda: L.IntegerLookup(vocabulary=list(range(9)), output_mode="multi_hot"),
                Ints((3, 4), 9),
                magnitudes=plain,
                label="multi-hot",
                keeps_dtype=True,
            ),
        ],
        "StringLookup": [
            case(
                lambda: L.StringLookup(vocabulary=["a", "b", "c"]),
                word,
                magnitudes=plain,
                backends=("tensorflow",),
                keeps_dtype=True,
            )
        ],
        "TextVectorization": [
            case(
                lambda: L.TextVectorization(vocabulary=["a", "b", "c"]),
                word,
                magnitudes=plain,
                backends=("tensorflow",),
                keeps_dtype=True,
            ),
        ],
        "STFTSpectrogram": [
            case(
                partial(L.STFTSpectrogram, mode=m, frame_length=32, frame_step=16),
                (2, 128, 1),
                label=m,
                roundings=16,
            )
            for m in ("log", "magnitude", "real")
        ],
    }


def boxed(layer, images, boxes, labels):
    return layer({"images": images, "bounding_boxes": {"boxes": boxes, "labels": labels}})[
        "bounding_boxes"
    ]["boxes"]


def others():
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
