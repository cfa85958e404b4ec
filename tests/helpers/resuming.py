"""A tiny training that can be stopped and gone on with, here or in a process of its own.

``python resuming.py FOLDER`` goes on with what ``begin`` left in the folder and writes what it
reached to ``FOLDER/<precision>-<way>.npz``. Imports Keras: for modules marked ``backend``.
"""

import sys
from pathlib import Path

import keras
import numpy as np

import keras_mp

PRECISIONS = ("mixed_float16", "bfloat16")
WAYS = ("file", "backup")

X = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
Y = X[:, :1] * 0.5
X[9] = 1e30  # in the third batch of each epoch: too large for float16, and squared for bfloat16


def make(precision):
    keras.utils.set_random_seed(11)
    # No dropout: Keras' files do not hold the state of its seeds (get_state_tree does).
    model = keras.Sequential(
        [
            keras.Input((6,), name="in"),
            keras.layers.Dense(8, "relu", dtype=precision, name="first"),
            keras.layers.Dense(1, dtype=precision, name="last"),
        ],
        name="net",
    )
    optimizer = keras_mp.LossScaleOptimizer(
        keras.optimizers.Adam(0.01, name="adam"),
        initial_scale=1024.0,
        growth_interval=4,
        name="scaler",
    )
    model.compile(optimizer, "mse", auto_scale_loss=False)
    return model


def fit(model, epochs, first=0, callbacks=None):
    """Epochs of six steps each, up to ``epochs``."""
    model.fit(
        X,
        Y,
        batch_size=4,
        shuffle=False,
        verbose=0,
        initial_epoch=first,
        epochs=epochs,
        callbacks=callbacks,
    )
    return model


def backup(folder, precision):
    path = Path(folder) / f"{precision}-backup"
    return keras.callbacks.BackupAndRestore(path, delete_checkpoint=False)


class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


def begin(folder, precision):
    """The first half, left in the folder as a file and as a backup."""
    try:
        fit(make(precision), 2, callbacks=[backup(folder, precision), Stop()])
    except KeyboardInterrupt:
        fit(make(precision), 1).save(Path(folder) / f"{precision}.keras")


def state(model):
    """Everything that training carries along, as the bits of NumPy arrays."""
    optimizer = model.optimizer
    variables = [*model.variables, *optimizer.inner_optimizer.variables]
    if precision_of(model) == "bfloat16":
        variables += optimizer.variables[-len(model.trainable_variables) :]
    scaler = optimizer._state.read()
    out = {"scale": scaler.scale, "good_steps": scaler.good_steps, "skipped": scaler.skipped}
    out |= {"applied": scaler.applied, "run": scaler.consecutive_skips}
    for i, variable in enumerate(variables):
        value = np.asarray(keras.ops.convert_to_numpy(variable))
        # NumPy's files know no bfloat16.
        out[f"{i:03}"] = np.frombuffer(value.tobytes(), np.uint8)
    return {key: np.asarray(value) for key, value in out.items()}


def precision_of(model):
    return model.layers[0].dtype_policy.name


def go_on(folder):
    for precision in PRECISIONS:
        resumed = keras.models.load_model(Path(folder) / f"{precision}.keras")
        fit(resumed, 2, first=1)
        np.savez(Path(folder) / f"{precision}-file.npz", **state(resumed))
        restored = make(precision)
        fit(restored, 2, callbacks=[backup(folder, precision)])
        np.savez(Path(folder) / f"{precision}-backup.npz", **state(restored))


if __name__ == "__main__":
    go_on(sys.argv[1])
