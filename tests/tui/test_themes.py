"""Colours that can be read, and in the safe theme told apart by colour-blind eyes."""

import itertools

import numpy as np
import pytest

from tui.themes import SAFE, THEMES

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
VISION = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
# What stands side by side and means different things: states in words, lines of a comparison.
MEANINGS = ("success", "warning", "error")
LINES = ("primary", "line2", "line3", "line4")


def linear(colour):
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    to_xyz = [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def luminance(colour):
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def colour(theme, name):
    return theme.variables.get(name) or getattr(theme, name)


@pytest.mark.parametrize("names", [MEANINGS, LINES], ids=["states", "lines"])
@pytest.mark.parametrize("vision", VISION)
def test_the_safe_theme_is_told_apart(vision, names):
    seen = {n: lab(np.array(VISION[vision]) @ linear(colour(SAFE, n))) for n in names}
    for a, b in itertools.combinations(names, 2):
        # A just noticeable difference is about 2.3; thin lines of dots need several times that.
        assert np.linalg.norm(seen[a] - seen[b]) > 15, (a, b)


@pytest.mark.parametrize("theme", THEMES.values(), ids=lambda theme: theme.name)
def test_every_text_stands_out_from_its_ground(theme):
    for name in ("foreground", "strong", "error", "warning", "success", "primary", "accent"):
        assert contrast(colour(theme, name), theme.background) >= 4.5, name
        assert contrast(colour(theme, name), colour(theme, "cursor-row")) >= 4.0, name
    assert contrast(colour(theme, "muted"), theme.background) >= 4.5
