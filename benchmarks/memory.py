"""What a training step keeps for its backward pass: float32, Keras' mixed_bfloat16, our plan.

    KERAS_BACKEND=torch python benchmarks/memory.py
    KERAS_BACKEND=jax python benchmarks/memory.py MLP LSTM --json memory.json
    python benchmarks/memory.py --time            # and the processor time of a training step

Counts, not measurements: `keras_mp.numerics.memory.saved_bytes` gives the same on any machine.
"Activations" is what is kept less the copies of weights; the rest of the table is in shares of
float32's. "In total" adds what a float32 Adam holds anyway: weights, gradients and two slots,
16 bytes a weight, at this batch and at eight times its size.
"""

import argparse
import gc
import json
import os
import time
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")
for variable in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402  (after the threads are pinned)
import numpy as np  # noqa: E402

import keras_mp  # noqa: E402
from keras_mp.numerics.memory import saved_bytes  # noqa: E402

GOAL = 0.55
HALF = "mixed_bfloat16"
layers = keras.layers


def resnet50(batch=16):
    model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)
    return model, np.zeros((batch, 32, 32, 3), "float32")


def transformer(batch=16, blocks=4, width=128, length=64, words=1000):
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(words, width)(tokens)
    for _ in range(blocks):
        a = layers.LayerNormalization(epsilon=1e-5)(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, width // 4)(a, a)])
        f = layers.LayerNormalization(epsilon=1e-5)(x)
        f = layers.Dense(4 * width, activation="gelu")(f)
        x = layers.Add()([x, layers.Dense(width)(f)])
    model = keras.Model(tokens, layers.Dense(words)(layers.LayerNormalization()(x)))
    return model, np.zeros((batch, length), "int32")


def lstm(batch=16, length=64, units=64, **options):
    model = keras.Sequential(
        [
            keras.Input((length, 32)),
            layers.LSTM(units, return_sequences=True, **options),
            layers.LSTM(units, **options),
            layers.Dense(10),
        ]
    )
    return model, np.zeros((batch, length, 32), "float32")


def masked_lstm(batch=16):
    """As for text of unequal lengths."""
    model, x = lstm(batch)
    masked = keras.Sequential([keras.Input(x.shape[1:]), layers.Masking(), *model.layers])
    return masked, x + 1.0


def mlp(batch=1024, width=1024):
    hidden = [layers.Dense(width, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((784,)), *hidden, layers.Dense(10)])
    return model, np.zeros((batch, 784), "float32")


def unet(batch=8, size=32):
    def block(x, filters):
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    inputs = keras.Input((size, size, 3))
    x, skips = inputs, []
    for filters in (16, 32):
        x = block(x, filters)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, 64)
    for filters in (32, 16):
        x = layers.Conv2DTranspose(filters, 2, 2)(x)
        x = block(layers.Concatenate()([x, skips.pop()]), filters)
    return keras.Model(inputs, layers.Conv2D(2, 1)(x)), np.zeros((batch, size, size, 3), "float32")


MODELS = {
    "ResNet-50": resnet50,
    "transformer": transformer,
    "LSTM": lstm,
    "LSTM, masked": masked_lstm,
    "MLP": mlp,
    "U-Net": unet,
}


def variants(make, **arguments):
    """The model three times: in float32, under Keras' global policy, and under our plan."""
    for name in ("float32", "stock", "plan"):
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
        keras.config.set_dtype_policy(HALF if name == "stock" else "float32")
        try:
            model, x = make(**arguments)
        finally:
            keras.config.set_dtype_policy("float32")
        if name == "plan":
            keras_mp.plan(model, HALF).apply(model)
        yield name, model, x


def count(make, **arguments):
    """Name of the variant -> what it keeps; and the number of weights."""
    kept = {}
    for name, model, x in variants(make, **arguments):
        kept[name] = saved_bytes(model, x)
        weights = model.count_params()
        del model
        gc.collect()
    return kept, weights


def row(make):
    """One model's figures: bytes, and shares of float32's."""
    kept, weights = count(make)
    batch = make.__defaults__[0]
    large, _ = count(make, batch=8 * batch)
    full = kept["float32"]
    found = {"batch": batch, "weights": weights, "float32": full.total}
    for name in ("stock", "plan"):
        one = kept[name]
        found[name] = {
            "kept": one.total / full.total,
            "activations": one.activations / full.activations,
            "casts of weights": sum(
                block.nbytes for block in one.kept if block.of_weight and block.dtype != "float32"
            ),
            "in total": (16 * weights + one.total) / (16 * weights + full.total),
            "in total, batch x 8": (
                (16 * weights + large[name].total) / (16 * weights + large["float32"].total)
            ),
        }
    found["goal"] = found["plan"]["activations"] <= GOAL and not found["plan"]["casts of weights"]
    return found


def step_times(make, rounds=5):
    """Processor time of a training step, interleaved: stock and plan in shares of float32's."""
    models = {}
    for name, model, x in variants(make):
        model.compile(keras.optimizers.SGD(1e-3), "mse")
        y = np.zeros(tuple(model.output_shape[1:]), "float32")
        models[name] = (model, x, np.broadcast_to(y, (len(x), *y.shape)))
    times = {name: [] for name in models}
    for number in range(rounds + 1):
        for name, (model, x, y) in models.items():
            start = time.process_time()
            model.train_on_batch(x, y)
            if number:  # the first compiles
                times[name].append(time.process_time() - start)
    ratios = {
        name: float(np.median(np.divide(times[name], times["float32"])))
        for name in ("stock", "plan")
    }
    return {**ratios, "seconds": float(np.median(times["float32"]))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=f"of: {', '.join(MODELS)}. Default: all")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--time", action="store_true", help="time training steps too")
    chosen = parser.parse_args()
    found = {}
    head = f"{'':14}{'float32':>10}  {'kept':>13}  {'activations':>13}  {'casts, KiB':>14}"
    head += f"  {'in total':>13}  {'batch x 8':>13}"
    print(f"{keras.backend.backend()}: {HALF} in shares of float32, stock | plan\n{head}")
    for name in chosen.models or MODELS:
        found[name] = figures = row(MODELS[name])
        cells = [f"{name:14}{figures['float32'] / 2**20:7.1f}MiB"]
        for key in ("kept", "activations", "casts of weights", "in total", "in total, batch x 8"):
            pair = [figures[variant][key] for variant in ("stock", "plan")]
            if key == "casts of weights":
                cells.append(" | ".join(f"{value / 1024:6.0f}" for value in pair).rjust(14))
            else:
                cells.append(" | ".join(f"{value:5.2f}" for value in pair))
        print("  ".join(cells), "" if figures["goal"] else "  MISSED", flush=True)
        if chosen.time:
            figures["step"] = times = step_times(MODELS[name])
            print(
                f"{'':14}a step: {times['seconds']:.3f} s in float32; stock {times['stock']:.2f}, "
                f"plan {times['plan']:.2f} of its processor time"
            )
    if chosen.json:
        chosen.json.write_text(json.dumps({"backend": keras.backend.backend(), **found}, indent=1))


if __name__ == "__main__":
    main()
