"""The models that ``gpu.py`` times: ResNet-50, a transformer, the demo; in Keras and torch alone.

Both versions have the same layers and as many parameters. ``SIZES["dry"]`` shrinks them for a CPU;
"large" has larger batches, for cards of 64 GB or more.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Size:
    """How large: of the ResNet, of the transformer, and the batches."""

    blocks: tuple[int, ...]
    base: int
    pixels: int
    classes: int
    images: int
    layers: int
    width: int
    heads: int
    length: int
    vocabulary: int
    texts: int
    scenes: int


SIZES = {
    "full": Size((3, 4, 6, 3), 64, 224, 1000, 64, 8, 768, 12, 512, 16384, 8, 256),
    # A large card is idle at a batch of 64: the host's part of a step would be what is measured.
    "large": Size((3, 4, 6, 3), 64, 224, 1000, 256, 8, 768, 12, 512, 16384, 32, 256),
    "dry": Size((1, 1), 8, 32, 10, 2, 1, 32, 2, 16, 64, 2, 16),
}
MODELS = ("resnet50", "transformer", "demo")
DEMO = (576, 160, 1440)


def data(model, size):
    """One batch (x, y) of made-up numbers: speed does not depend on them."""
    rng = np.random.default_rng(0)
    if model == "resnet50":
        x = rng.normal(size=(size.images, size.pixels, size.pixels, 3)).astype("float32")
        return x, rng.integers(size.classes, size=size.images).astype("int32")
    if model == "transformer":
        ids = rng.integers(size.vocabulary, size=(size.texts, size.length + 1)).astype("int32")
        return ids[:, :-1], ids[:, 1:]
    x = rng.random((size.scenes, DEMO[0])).astype("float32")
    return x, rng.random((size.scenes, DEMO[2])).astype("float32")


def keras_model(model, size):
    """(model, loss), in the global policy."""
    import keras

    if model == "demo":
        hidden = [keras.layers.Dense(DEMO[1], "relu") for _ in range(3)]
        head = keras.layers.Dense(DEMO[2], "sigmoid")
        return keras.Sequential([keras.Input((DEMO[0],)), *hidden, head]), "mse"
    build = _keras_resnet if model == "resnet50" else _keras_transformer
    return build(size), keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _keras_resnet(size):
    from keras import Input, Model, layers

    def unit(h, filters, kernel, stride=1, relu=True):
        h = layers.Conv2D(filters, kernel, stride, padding="same", use_bias=False)(h)
        h = layers.BatchNormalization()(h)
        return layers.ReLU()(h) if relu else h

    inputs = Input((size.pixels, size.pixels, 3))
    h = layers.MaxPooling2D(3, 2, padding="same")(unit(inputs, size.base, 7, 2))
    for stage, blocks in enumerate(size.blocks):
        filters = size.base * 2**stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            side = h if block else unit(h, 4 * filters, 1, stride, relu=False)
            h = unit(unit(h, filters, 1), filters, 3, stride)
            h = layers.ReLU()(layers.Add()([unit(h, 4 * filters, 1, relu=False), side]))
    return Model(inputs, layers.Dense(size.classes)(layers.GlobalAveragePooling2D()(h)))


def _keras_transformer(size):
    from keras import Input, Model, layers

    inputs = Input((size.length,), dtype="int32")
    h = layers.Embedding(size.vocabulary, size.width)(inputs)
    for _ in range(size.layers):
        a = layers.LayerNormalization()(h)
        attention = layers.MultiHeadAttention(size.heads, size.width // size.heads)
        h = layers.Add()([h, attention(a, a, use_causal_mask=True)])
        a = layers.LayerNormalization()(h)
        h = layers.Add()([h, layers.Dense(size.width)(layers.Dense(4 * size.width, "gelu")(a))])
    return Model(inputs, layers.Dense(size.vocabulary)(layers.LayerNormalization()(h)))


def torch_model(model, size):
    """(module, loss of (outputs, y)) in torch alone, channels first for images."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    if model == "demo":
        widths = (DEMO[0], DEMO[1], DEMO[1], DEMO[1])
        hidden = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        module = nn.Sequential(*hidden, nn.Linear(DEMO[1], DEMO[2]), nn.Sigmoid())
        return module, lambda out, y: F.mse_loss(out.float(), y)

    def cross_entropy(out, y):
        return F.cross_entropy(out.float().flatten(0, -2), y.flatten().long())

    if model == "transformer":
        return _torch_transformer(torch, nn, F, size), cross_entropy
    return _torch_resnet(nn, size), cross_entropy


def _torch_resnet(nn, size):
    class Unit(nn.Sequential):
        def __init__(self, inputs, filters, kernel, stride=1, relu=True):
            conv = nn.Conv2d(inputs, filters, kernel, stride, kernel // 2, bias=False)
            parts = [conv, nn.BatchNorm2d(filters)]
            super().__init__(*parts, *([nn.ReLU()] if relu else []))

    class Block(nn.Module):
        def __init__(self, inputs, filters, stride):
            super().__init__()
            last = Unit(filters, 4 * filters, 1, relu=False)
            self.main = nn.Sequential(
                Unit(inputs, filters, 1), Unit(filters, filters, 3, stride), last
            )
            changes = inputs != 4 * filters or stride != 1
            self.side = Unit(inputs, 4 * filters, 1, stride, relu=False) if changes else None

        def forward(self, x):
            side = x if self.side is None else self.side(x)
            return nn.functional.relu(self.main(x) + side)

    parts, channels = [Unit(3, size.base, 7, 2), nn.MaxPool2d(3, 2, 1)], size.base
    for stage, blocks in enumerate(size.blocks):
        filters = size.base * 2**stage
        for block in range(blocks):
            parts.append(Block(channels, filters, 2 if stage and not block else 1))
            channels = 4 * filters
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, size.classes)]
    return nn.Sequential(*parts)


def _torch_transformer(torch, nn, F, size):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            width = size.width
            self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, length, width = x.shape
            parts = self.qkv(self.norms[0](x)).view(batch, length, 3, size.heads, -1)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(F.gelu(self.up(self.norms[1](x))))

    return nn.Sequential(
        nn.Embedding(size.vocabulary, size.width),
        *(Block() for _ in range(size.layers)),
        nn.LayerNorm(size.width),
        nn.Linear(size.width, size.vocabulary),
    )
