"""Operations of networks and of images."""

import numpy as np
from keras import ops
from sweep.cases import Case, Floats, Given, Ints, case
from sweep.op_case import PLAIN, ROW, SIZES, M, one, operation


def _against(name, target):
    """A crossentropy of these labels, in the predictions' dtype."""
    return lambda predictions: operation(name)(ops.cast(target, predictions.dtype), predictions)


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
            one(
                "average_pool",
                (1, 64, 64, 1),
                with_={"pool_size": 64},
                label="long",
                magnitudes=wide,
            ),
        ],
        "max_pool": [one("max_pool", image, with_={"pool_size": 2}, magnitudes=wide)],
        "adaptive_average_pool": [
            one("adaptive_average_pool", image, with_={"output_size": 2}, magnitudes=wide)
        ],
        "adaptive_max_pool": [
            one("adaptive_max_pool", image, with_={"output_size": 2}, magnitudes=wide)
        ],
        "batch_normalization": [
            case(
                lambda x, m, v: ops.batch_normalization(x, m, v, axis=-1),
                Floats(M),
                Floats((5,)),
                Floats((5,), kind="positive"),
                magnitudes=PLAIN,
                roundings=8,
            )
        ],
        "layer_normalization": [one("layer_normalization", M, magnitudes=SIZES, roundings=8)],
        "rms_normalization": [one("rms_normalization", M, magnitudes=SIZES, roundings=8)],
        "one_hot": [
            case(
                lambda i: ops.one_hot(i, 5000, dtype="float16"), Ints((4,), 5000), magnitudes=PLAIN
            )
        ],
        "multi_hot": [
            case(
                lambda i: ops.multi_hot(i, 5000, dtype="float16"),
                Ints((2, 4), 5000),
                magnitudes=PLAIN,
            )
        ],
        "top_k": [one("top_k", M, with_={"k": 2}, magnitudes=SIZES, gradient=False)],
        "in_top_k": [
            case(
                lambda y, p: ops.in_top_k(y, p, k=1),
                Given(np.array([2049, 4001], "int32")),
                Given(np.eye(5000, dtype="float32")[[2048, 4000]]),
                label="classes",
                magnitudes=PLAIN,
            )
        ],
        "binary_crossentropy": [
            case(
                _against("binary_crossentropy", [1.0, 0.0]),
                Given(np.array([0.25, 0.75], "float32")),
                magnitudes=PLAIN,
            ),
            case(
                _against("binary_crossentropy", [1.0, 0.0]),
                Given(np.array([0.0, 1.0], "float32")),
                label="sure",
                magnitudes=PLAIN,
            ),
        ],
        "categorical_crossentropy": [
            case(
                _against("categorical_crossentropy", np.eye(3)),
                Floats((3, 3), kind="shares"),
                magnitudes=PLAIN,
            ),
        ],
        "sparse_categorical_crossentropy": [
            one(
                "sparse_categorical_crossentropy",
                Ints((3,), 3),
                Floats((3, 3), kind="shares"),
                magnitudes=PLAIN,
            ),
        ],
        "ctc_loss": [
            case(
                lambda y, p: ops.ctc_loss(y, p, np.array([3, 3]), np.array([9, 9])),
                Ints((2, 3), 5, 1),
                Floats((2, 9, 5)),
                magnitudes=PLAIN,
                roundings=40,
            )
        ],
        "ctc_decode": [
            case(
                lambda p: ops.ctc_decode(p, np.array([9, 9]))[0],
                Floats((2, 9, 5)),
                magnitudes=PLAIN,
                gradient=False,
            )
        ],
    }
    return out


def images() -> dict[str, list[Case]]:
    picture = Floats((2, 8, 8, 3), low=0, high=1)
    flat = {"magnitudes": PLAIN, "gradient": False, "roundings": 8}
    grid = Given(
        np.stack(np.meshgrid([0.5, 1.5], [1.0, 2.5], indexing="ij")).astype("float32"), label=True
    )
    corners = np.array([[[0, 0], [7, 0], [0, 7], [7, 7]]] * 2, "float32")
    return {
        "image.resize": [
            one(
                "image.resize",
                picture,
                with_={"size": (5, 11), "interpolation": i},
                label=i,
                **flat,
            )
            for i in ("bilinear", "nearest", "bicubic")
        ],
        "image.rgb_to_grayscale": [one("image.rgb_to_grayscale", picture, **flat)],
        "image.rgb_to_hsv": [one("image.rgb_to_hsv", picture, **flat)],
        "image.hsv_to_rgb": [one("image.hsv_to_rgb", picture, **flat)],
        "image.crop_images": [
            one(
                "image.crop_images",
                picture,
                with_={
                    "top_cropping": 1,
                    "left_cropping": 1,
                    "target_height": 4,
                    "target_width": 4,
                },
                **flat,
            )
        ],
        "image.pad_images": [
            one(
                "image.pad_images",
                picture,
                with_={
                    "top_padding": 1,
                    "left_padding": 1,
                    "target_height": 10,
                    "target_width": 10,
                },
                **flat,
            )
        ],
        "image.extract_patches": [one("image.extract_patches", picture, with_={"size": 2}, **flat)],
        "image.extract_patches_3d": [
            one("image.extract_patches_3d", (1, 4, 4, 4, 2), with_={"size": 2}, **flat)
        ],
        "image.affine_transform": [
            one(
                "image.affine_transform",
                picture,
                Given(np.array([[1, 0.1, 0, 0, 1, 0.5, 0, 0]] * 2, "float32"), label=True),
                **flat,
            )
        ],
        "image.perspective_transform": [
            case(
                lambda x: ops.image.perspective_transform(x, corners, corners + 0.5),
                picture,
                **flat,
            )
        ],
        "image.map_coordinates": [
            case(
                lambda x, c: ops.image.map_coordinates(x, c, order=1), Floats((4, 4)), grid, **flat
            )
        ],
        "image.gaussian_blur": [one("image.gaussian_blur", picture, **flat)],
        "image.elastic_transform": [
            one(
                "image.elastic_transform", picture, with_={"seed": 1}, random=True, magnitudes=PLAIN
            )
        ],
        "image.scale_and_translate": [
            case(
                lambda x: ops.image.scale_and_translate(
                    x,
                    (2, 4, 4, 3),
                    np.array([0.5, 0.5], "f"),
                    np.array([0.0, 0.0], "f"),
                    (1, 2),
                    "linear",
                ),
                picture,
                **flat,
            )
        ],
        "image.sobel_edges": [one("image.sobel_edges", picture, **flat)],
        "image.ssim": [
            one(
                "image.ssim",
                Floats((2, 16, 16, 1), low=0, high=1),
                Floats((2, 16, 16, 1), low=0, high=1),
                with_={"max_val": 1.0},
                **flat,
            )
        ],
    }
