"""The models of ``policies.py``: Keras' and, where there is one, the same in plain torch."""

import itertools

import numpy as np


def mlp():
    import keras

    return keras.Sequential(
        [
            keras.Input((784,)),
            *(keras.layers.Dense(1024, "relu") for _ in range(3)),
            keras.layers.Dense(10),
        ]
    ), (784,)


def convnet():
    import keras

    layers = keras.layers
    inputs = tensor = keras.Input((32, 32, 3))
    for width in (32, 64, 128):
        for _ in range(2):
            tensor = layers.Conv2D(width, 3, padding="same", use_bias=False)(tensor)
            tensor = layers.ReLU()(layers.BatchNormalization()(tensor))
        tensor = layers.MaxPooling2D()(tensor)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(tensor))), (
        32,
        32,
        3,
    )


def resnet50():
    import keras

    return keras.applications.ResNet50(
        weights=None, input_shape=(64, 64, 3), classes=100, classifier_activation=None
    ), (64, 64, 3)


STEPS, WORDS = 64, 5000


def lstm():
    import keras

    layers = keras.layers
    inputs = keras.Input((STEPS,), dtype="int32")
    tensor = layers.LSTM(256)(layers.Embedding(WORDS, 128)(inputs))
    return keras.Model(inputs, layers.Dense(10)(tensor)), (STEPS,)


def transformer():
    """A small language model: four blocks, a head over 2,048 tokens."""
    import keras

    layers = keras.layers
    inputs = keras.Input((STEPS,), dtype="int32")
    tensor = layers.Embedding(2048, 256)(inputs)
    for _ in range(4):
        normed = layers.LayerNormalization()(tensor)
        heads = layers.MultiHeadAttention(4, 64)
        tensor = layers.Add()([tensor, heads(normed, normed, use_causal_mask=True)])
        normed = layers.LayerNormalization()(tensor)
        inner = layers.Dense(256)(layers.Dense(1024, "gelu")(normed))
        tensor = layers.Add()([tensor, inner])
    return keras.Model(inputs, layers.Dense(2048)(layers.LayerNormalization()(tensor))), (STEPS,)


# Name -> (model, batch size).
MODELS = {
    "mlp": (mlp, 256),
    "convnet": (convnet, 32),
    "resnet50": (resnet50, 8),
    "lstm": (lstm, 32),
    "transformer": (transformer, 16),
}


def data(name, shape, batch):
    """A batch of inputs, and sparse targets."""
    rng = np.random.default_rng(0)
    if name == "lstm":
        return rng.integers(WORDS, size=(batch, *shape)), rng.integers(10, size=batch)
    if name == "transformer":
        tokens = rng.integers(2048, size=(batch, *shape))
        return tokens, np.roll(tokens, -1, axis=1)
    classes = 100 if name == "resnet50" else 10
    return rng.normal(size=(batch, *shape)).astype("float32"), rng.integers(classes, size=batch)


def native(name):
    """The same model as a torch module; None where there is none here (ResNet-50)."""
    import torch
    from torch import nn

    if name == "mlp":
        widths = [784, 1024, 1024, 1024]
        pairs = itertools.pairwise(widths)
        hidden = [part for a, b in pairs for part in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(1024, 10))
    if name == "convnet":
        parts, before = [], 3
        for width in (32, 64, 128):
            for _ in range(2):
                parts += [nn.Conv2d(before, width, 3, padding=1, bias=False)]
                parts += [nn.BatchNorm2d(width), nn.ReLU()]
                before = width
            parts.append(nn.MaxPool2d(2))
        return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    if name == "lstm":

        class Reader(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(WORDS, 128)
                self.lstm, self.end = nn.LSTM(128, 256, batch_first=True), nn.Linear(256, 10)

            def forward(self, tokens):
                return self.end(self.lstm(self.table(tokens))[0][:, -1])

        return Reader()
    if name == "transformer":

        class Writer(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(2048, 256)
                self.blocks = nn.ModuleList(
                    nn.TransformerEncoderLayer(
                        256, 4, 1024, 0.0, "gelu", batch_first=True, norm_first=True
                    )
                    for _ in range(4)
                )
                self.norm, self.end = nn.LayerNorm(256), nn.Linear(256, 2048)
                self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(STEPS))

            def forward(self, tokens):
                tensor = self.table(tokens)
                for block in self.blocks:
                    tensor = block(tensor, src_mask=self.mask, is_causal=True)
                return self.end(self.norm(tensor))

        return Writer()
    torch.manual_seed(0)
    return None
