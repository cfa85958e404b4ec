"""Layers for images and sound: the random ones must run and be sane."""

from functools import partial

from keras import layers as L
from sweep.cases import Case, Floats, case

PICTURE = Floats((2, 8, 8, 3), raw=True, low=0, high=255)
PLAIN = ("ordinary",)

_RANDOM = {
    "AugMix": (),
    "CutMix": None,
    "MixUp": None,
    "RandAugment": (),
    "RandomBrightness": (0.2,),
    "RandomColorDegeneration": (0.5,),
    "RandomColorJitter": (),
    "RandomContrast": (0.2,),
    "RandomCrop": (4, 4),
    "RandomElasticTransform": (),
    "RandomErasing": (),
    "RandomFlip": (),
    "RandomGaussianBlur": (),
    "RandomGrayscale": (),
    "RandomHue": (0.5,),
    "RandomInvert": (),
    "RandomPerspective": (),
    "RandomPosterization": (4,),
    "RandomRotation": (0.2,),
    "RandomSaturation": (0.5,),
    "RandomSharpness": (0.5,),
    "RandomShear": (0.2, 0.2),
    "Solarization": (0.1, 0.5),
    "RandomTranslation": (0.2, 0.2),
    "RandomZoom": (0.2,),
}


def _random(name: str, arguments: tuple | None) -> list[Case]:
    layer = getattr(L, name)
    if arguments is None:
        labels = Floats((2, 2), fixed=True, low=0, high=1, label=True)
        return [
            case(
                lambda: layer(seed=1),
                PICTURE,
                labels,
                random=True,
                magnitudes=PLAIN,
                keeps_dtype=True,
                call=lambda mix, images, y: mix({"images": images, "labels": y}),
            )
        ]
    return [case(lambda: layer(*arguments, seed=1), PICTURE, random=True, magnitudes=PLAIN)]


def _deterministic() -> dict[str, list[Case]]:
    plain = {"magnitudes": PLAIN, "gradient": False}
    return {
        "Rescaling": [
            case(lambda: L.Rescaling(1 / 255.0, -0.5), PICTURE, label="bytes", magnitudes=PLAIN),
            case(
                lambda: L.Rescaling(1e-5),
                Floats((4, 2), raw=True, low=1e5, high=2e5),
                label="prices",
                magnitudes=PLAIN,
            ),
        ],
        "Resizing": [
            case(partial(L.Resizing, 5, 11, interpolation=i), PICTURE, label=i, **plain)
            for i in ("bilinear", "nearest", "bicubic")
        ],
        "CenterCrop": [case(lambda: L.CenterCrop(4, 4), PICTURE, **plain)],
        "AutoContrast": [case(L.AutoContrast, PICTURE, **plain)],
        "ContrastLimitedAdaptiveHistogramEqualization": [
            case(
                lambda: L.ContrastLimitedAdaptiveHistogramEqualization(tile_grid_size=(2, 2)),
                PICTURE,
                **plain,
            )
        ],
        "MelSpectrogram": [
            case(
                lambda: L.MelSpectrogram(64, 32, sampling_rate=800, num_mel_bins=8, max_freq=300),
                (2, 512),
                roundings=16,
            )
        ],
    }


IMAGE_LAYERS: dict[str, list[Case]] = {
    **{name: _random(name, arguments) for name, arguments in _RANDOM.items()},
    **_deterministic(),
}
