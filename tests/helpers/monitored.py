"""Small trainings with planned overflows, a Monitor on them, and what its journal says."""

import numpy as np

from keras_mp.scaling.state import ScaleConfig
from keras_mp.telemetry.tail import JournalFile

BATCH = 4
CONFIG = ScaleConfig(initial_scale=256.0, growth_interval=15)


def data(steps: int, bad=(), seed=0):
    """``steps`` batches, those with a number (from 1) in ``bad`` with an infinity in them.

    Odd ones have it in the inputs: tanh bounds it, the loss is finite and the hidden layer's
    gradient is not. Even ones have it in the targets: the loss itself is not finite.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(steps * BATCH, 6)).astype("float32") / 4
    y = x.sum(axis=1, keepdims=True)
    for step in bad:
        (x if step % 2 else y)[(step - 1) * BATCH, 0] = np.inf
    return x, y


def compiled(keras, optimizer="ours", policy="mixed_float16", **kwargs):
    import keras_mp

    keras.config.set_dtype_policy(policy)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, "tanh", name="hidden"), keras.layers.Dense(1)]
    )
    inner = keras.optimizers.SGD(0.01)
    if optimizer == "ours":
        inner = keras_mp.LossScaleOptimizer(inner, scale=CONFIG)
    elif optimizer == "stock":
        inner = keras.optimizers.LossScaleOptimizer(inner, initial_scale=256.0)
    model.compile(optimizer=inner, loss="mse", auto_scale_loss=False, **kwargs)
    return model


def fit(model, x, y, monitor, epochs=1, **kwargs):
    return model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0,
                     callbacks=[monitor] if monitor else [], **kwargs)  # fmt: skip


def monitor_of(path, **kwargs):
    import keras_mp

    return keras_mp.Monitor(path, **{"name": "job", **kwargs})


def journal(path, name="job") -> list:
    reader = JournalFile(path / name / "events-0.jsonl")
    records = reader.read()
    assert reader.corrupt == 0 and reader.error is None
    return records


def of_kind(records, kind) -> list:
    return [x for x in records if x.kind == kind]
