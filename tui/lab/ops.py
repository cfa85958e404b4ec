"""Ops: the three categories of the paper, the Keras layers in each, and why they stand there."""

import textwrap
from collections.abc import Sequence
from typing import ClassVar

from keras_mp.policies.categories import CATEGORIES, FLOAT32_INSIDE, Category
from tui.drawing.roles import Role, Row
from tui.keys import Key
from tui.lab.page import Page, press, text, turn
from tui.look import Look

# Keras' base classes, and the layers that inherit their category, as people know them.
FAMILIES = {
    "BaseConv": "Conv1D Conv2D Conv3D",
    "BaseConvTranspose": "Conv1DTranspose Conv2DTranspose Conv3DTranspose",
    "BaseDepthwiseConv": "DepthwiseConv1D DepthwiseConv2D",
    "BaseSeparableConv": "SeparableConv1D SeparableConv2D",
    "GroupedQueryAttention": "GroupQueryAttention",
    "IndexLookup": "StringLookup IntegerLookup",
    "RNN": "LSTM GRU SimpleRNN RNN",
    "ConvLSTMCell": "ConvLSTM1D ConvLSTM2D ConvLSTM3D",
    "BaseAdaptiveAveragePooling": (
        "AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D"
    ),
    "BaseAdaptiveMaxPooling": "AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D",
    "Merge": "Add Average Concatenate Maximum Minimum Multiply Subtract",
    "DataLayer": "Normalization Rescaling Resizing CenterCrop RandomFlip RandomRotation",
    "Wrapper": "TimeDistributed SpectralNormalization",
    "Model": "Model Sequential",
}

# Category -> (title, what it computes in, why). The first three are the paper's, section 3.3.
WORDS: dict[Category, tuple[str, str, str]] = {
    "product": (
        "products of vectors and matrices",
        "half in and out, float32 sums",
        "Here is nearly all of the arithmetic, and the units for it (tensor cores, matrix "
        "units) add up in float32: a sum of thousands of products kept in float16 stops growing.",
    ),
    "reduction": (
        "sums over many numbers",
        "half in and out, float32 inside",
        "Means, variances and softmax add many numbers of one sign, or square them: in float16 "
        "300 squared is infinite already. They are bound by memory, so float32 costs no time.",
    ),
    "pointwise": (
        "one number in, one number out",
        "either: what comes in decides",
        "Each result depends on one number or a few, so nothing adds up. Memory bounds them, and "
        "half the bytes are half the time.",
    ),
    "input": (
        "raw input data",
        "float32, before the model proper",
        "Pixel values, features and token numbers: in float16 whole numbers beyond 2,048 are "
        "rounded, and a feature above 65,504 is infinite.",
    ),
    "container": (
        "layers that hold layers",
        "what their layers compute in",
        "They compute nothing themselves.",
    ),
    "foreign": (
        "another framework's code",
        "what that code does",
        "Keras cannot see inside, and its policies end there.",
    ),
}


class OpsPage(Page):
    TITLE: ClassVar[str] = "Ops"
    KEYS: ClassVar[tuple[Key, ...]] = (
        press("down,j,right", "↑↓", "category", "Another category.", 1),
        press("up,k,left", "", "", ""),
    )

    def __init__(self) -> None:
        self.category: Category = "product"

    def press(self, key: str) -> None:
        if key in ("up", "down"):
            self.category = turn(list(WORDS), self.category, 1 if key == "down" else -1)

    def rows(self, width: int, height: int, look: Look) -> Sequence[Row]:
        rows: list[Row] = [
            text(("the three categories of the paper", "strong"), (", and three more", "muted"))
        ]
        for name, (title, computes, _) in WORDS.items():
            chosen = name == self.category
            mark = ("▸ " if look.unicode else "> ") if chosen else "  "
            role: Role = "strong" if chosen else "text"
            rows.append(text((f"{mark}{title:<34}", role), (computes, "muted")))
        rows.append([])
        rows += [text((line, "text")) for line in textwrap.wrap(WORDS[self.category][2], width)]
        rows.append([])
        rows += self._layers(width)
        inside = sorted(FLOAT32_INSIDE & set(layers_in(self.category, families=False)))
        if inside:
            rows.append([])
            rows.append(text(("* float32 inside whatever the policy says, in Keras 3.15", "muted")))
        return rows

    def _layers(self, width: int) -> list[Row]:
        names = [
            name + ("*" if base in FLOAT32_INSIDE else "")
            for base in layers_in(self.category, families=False)
            for name in FAMILIES.get(base, base).split()
        ]
        return [text((line, "line")) for line in textwrap.wrap("  ".join(names), width)]


def layers_in(category: Category, families: bool = True) -> list[str]:
    """Names of the Keras layers of a category; ``families`` spells out what a base class covers."""
    bases = [name for name, found in CATEGORIES.items() if found == category]
    if not families:
        return bases
    return [name for base in bases for name in FAMILIES.get(base, base).split()]
