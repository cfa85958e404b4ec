"""A planned model learns what the float32 one learns: its loss on unseen data lies within the noise
of the seeds, on the demo's task and three of other kinds. Real data, small models, all trained
here."""

import functools
import importlib.util
import pydoc_data.topics
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

import keras_mp

pytestmark = [
    pytest.mark.backend,
    pytest.mark.slow,
    # Its compiler takes minutes for what the others train in seconds; the policies are the same.
    pytest.mark.skipif(keras.backend.backend() == "jax", reason="torch and tensorflow tell"),
]
SEEDS = (0, 1, 2)
DEMO = Path(__file__).parents[3] / "examples" / "digit_heatmap.py"


class HeatMaps:
    """The demo: dense prediction, gradients that float16 loses without a scale."""

    rate, epochs, batch, loss = 2e-3, 6, 64, "mse"

    def __init__(self):
        spec = importlib.util.spec_from_file_location("digit_heatmap", DEMO)
        self.demo = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.demo)
        rng = np.random.default_rng(0)
        train, test = self.demo.load_digits(rng)
        self.x, self.y, _, _ = self.demo.make_scenes(*train, 2000, rng)
        self.test_x, self.test_y, _, _ = self.demo.make_scenes(*test, 500, rng)

    def build(self):
        return self.demo.build_model(keras)


class Digits:
    """Images: convolutions, batch normalization, a softmax."""

    rate, epochs, batch, loss = 1e-2, 4, 64, "sparse_categorical_crossentropy"

    def __init__(self):
        from sklearn.datasets import load_digits

        pictures, classes = load_digits(return_X_y=True)
        pictures = pictures.reshape(-1, 8, 8, 1).astype("float32")
        order = np.random.default_rng(0).permutation(len(pictures))
        train, test = order[:1200], order[1200:]
        self.x, self.y = pictures[train], classes[train]
        self.test_x, self.test_y = pictures[test], classes[test]

    def build(self):
        return keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Rescaling(1 / 16),
                layers.Conv2D(8, 3, use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Conv2D(16, 3, strides=2, activation="relu"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(10, "softmax"),
            ]
        )


class English:
    """Text: embeddings, attention, a recurrent layer, logits over characters."""

    rate, epochs, batch, length = 3e-3, 2, 32, 32
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def __init__(self):
        text = " ".join(pydoc_data.topics.topics.values()).encode("ascii", "ignore")
        tokens = np.frombuffer(text, np.uint8).astype("int32") % 128
        windows = tokens[: 33 * 1200].reshape(-1, 33)[np.random.default_rng(0).permutation(1200)]
        self.x, self.y = windows[:1000, :-1], windows[:1000, 1:]
        self.test_x, self.test_y = windows[1000:, :-1], windows[1000:, 1:]

    def build(self):
        inputs = keras.Input((self.length,), dtype="int32")
        tensor = layers.Embedding(128, 32)(inputs)
        normed = layers.LayerNormalization()(tensor)
        heads = layers.MultiHeadAttention(2, 16)(normed, normed, use_causal_mask=True)
        tensor = layers.GRU(32, return_sequences=True)(layers.Add()([tensor, heads]))
        return keras.Model(inputs, layers.Dense(128)(tensor))


class Tumours:
    """A table: raw features between 0.001 and 4,000, two classes, a sigmoid."""

    rate, epochs, batch, loss = 1e-2, 20, 32, "binary_crossentropy"

    def __init__(self):
        from sklearn.datasets import load_breast_cancer

        features, classes = load_breast_cancer(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(features))
        features, classes = features[order].astype("float32"), classes[order][:, None]
        self.x, self.y, self.test_x, self.test_y = (
            *(features[:400], classes[:400]),
            *(features[400:], classes[400:]),
        )

    def build(self):
        norm = layers.Normalization()
        norm.adapt(self.x)
        body = [layers.Dense(16, "relu"), layers.Dense(16, "relu")]
        return keras.Sequential([keras.Input((30,)), norm, *body, layers.Dense(1, "sigmoid")])


TASKS = {task.__name__: task for task in (HeatMaps, Digits, English, Tumours)}


def trained_loss(task, seed, policy, planned=True):
    """Loss on unseen data after training under a plan (or the bare global policy)."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(seed)
    with keras_mp.policy_scope("float32" if planned else policy):
        model = task.build()
    optimizer = keras.optimizers.Adam(task.rate)
    if planned and policy != "float32":
        few = task.x[:64], task.y[:64]
        plan = keras_mp.plan(model, policy, few, loss=keras.losses.get(task.loss))
        plan.apply(model)
        optimizer = keras_mp.LossScaleOptimizer(optimizer, initial_scale=plan.initial_scale)
    model.compile(optimizer, task.loss, auto_scale_loss=False)
    model.fit(task.x, task.y, batch_size=task.batch, epochs=task.epochs, verbose=0)
    return model.evaluate(task.test_x, task.test_y, batch_size=250, verbose=0)


@functools.cache
def made(name):
    """A task with the losses of float32, one a seed."""
    task = TASKS[name]()
    task.float32 = [trained_loss(task, seed, "float32") for seed in SEEDS]
    return task


def distance(losses, task):
    """Of two means, in units of the float32 seeds' spread (largest less smallest)."""
    spread = max(task.float32) - min(task.float32)
    return abs(np.mean(losses) - np.mean(task.float32)) / spread


@pytest.mark.filterwarnings("ignore::keras_mp.EmulatedPrecisionWarning")
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", TASKS)
def test_the_loss_is_within_seed_noise_of_float32(name, policy):
    task = made(name)
    losses = [trained_loss(task, seed, policy) for seed in SEEDS]
    assert distance(losses, task) < 1, (losses, task.float32)


@pytest.mark.filterwarnings("ignore::keras_mp.EmulatedPrecisionWarning")
def test_without_plan_and_scale_it_is_not_on_the_demos_task():
    """So the measure can tell: the same task under the bare policy."""
    task = made("HeatMaps")
    losses = [trained_loss(task, seed, "mixed_float16", planned=False) for seed in SEEDS]
    assert distance(losses, task) > 3, (losses, task.float32)
