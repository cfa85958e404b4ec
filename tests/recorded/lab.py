"""Write the data that ``keras-mp lab`` shows, by real runs: tui/lab/data/*.json.

    KERAS_BACKEND=torch python tests/recorded/lab.py [gradients] [overflows] [memory]

- gradients: the demo's net before and after training, one batch in float32: an exponent histogram
  of each layer's activation gradients and of each kernel's gradient.
- overflows: a run whose loss is the sum over a batch's outputs, so that its gradients are large: of
  each step, the scale from which its float16 gradients would not be finite. Any rule for moving a
  scale can then be tried on it.
- memory: bytes kept for the backward pass, a sample, of nets that many know.

Needs torch, in whose backward pass gradients can be looked at. Nothing here is written by hand.
"""

import json
import math
import os
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")

from record import BATCH, OUTPUTS, task

DATA = Path(__file__).resolve().parents[2] / "tui" / "lab" / "data"
STEPS = 3000
TRAINED = 564  # twelve epochs of 47 steps: what the demo trains
# Gradients beyond this round to infinity in float16: half-way from 65504 to 65536.
FLOAT16_LIMIT = 65520.0


def batches(seed: int = 0):
    """(inputs, targets) of the digit task, epoch after epoch."""
    import numpy as np

    digits = task()
    rng = np.random.default_rng(seed)
    (images, classes), _ = digits.load_digits(rng)
    x, y, _, _ = digits.make_scenes(images, classes, 47 * BATCH, rng)
    step = 0
    while True:
        rows = slice(step % 47 * BATCH, (step % 47 + 1) * BATCH)
        yield x[rows], y[rows]
        step += 1


def gradients_of(model, x, y, weight: float = 1.0) -> dict[tuple[str, str], object]:
    """(layer, "gradient" or "weight_gradient") -> the float32 gradient of one batch's loss."""
    import torch

    outputs = {}
    value = torch.as_tensor(x)
    model.zero_grad(set_to_none=True)
    for layer in model.layers:
        value = layer(value)
        value.retain_grad()
        outputs[layer.name] = value
    loss = ((value - torch.as_tensor(y)) ** 2).mean() * weight
    loss.backward()
    found = {(name, "gradient"): tensor.grad.numpy() for name, tensor in outputs.items()}
    for layer in model.layers:
        found[layer.name, "weight_gradient"] = layer.kernel.value.grad.numpy().copy()
    return found


def twin(digits):
    """The demo's net in float32, to look at another one's gradients with its weights."""
    import keras

    import keras_mp

    with keras_mp.policy_scope("float32"):
        return digits.build_model(keras)


def record_gradients() -> dict:
    import keras

    import keras_mp
    from keras_mp.numerics.histogram import exponent_histogram

    keras.utils.set_random_seed(0)
    digits = task()
    keras_mp.set_policy("mixed_float16")
    model, probe = digits.build_model(keras), twin(digits)
    model.compile(keras_mp.LossScaleOptimizer(keras.optimizers.Adam(2e-3)), "mse")
    source = batches()
    x, y = next(source)
    moments = []
    for trained in (0, TRAINED):
        for _ in range(trained):
            model.train_on_batch(*next(source))
        probe.set_weights(model.get_weights())
        tensors = []
        for (layer, kind), values in gradients_of(probe, x, y).items():
            h = exponent_histogram(values)
            tensors.append(
                {
                    "layer": layer,
                    "tensor": kind,
                    "histogram": {str(k): v for k, v in h.exponents.items()},
                    "zeros": h.zeros,
                    "largest": h.largest,
                }
            )
        moments.append({"step": trained, "tensors": tensors})
    return {
        "what": "the demo's net (examples/digit_heatmap.py), one batch of 256 scenes, float32 pass",
        "moments": moments,
    }


def record_overflows() -> dict:
    """Train in mixed_float16 under a dynamic scale; note each step's limit and what happened."""
    import keras
    import numpy as np

    import keras_mp

    keras.utils.set_random_seed(0)
    digits = task()
    keras_mp.set_policy("mixed_float16")
    model, probe = digits.build_model(keras), twin(digits)
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.Adam(2e-3), growth_interval=100)
    model.compile(optimizer, "mse", auto_scale_loss=False)
    weights = np.full(BATCH, OUTPUTS, "float32")
    limits, scales, skipped = [], [], []
    for _, (x, y) in zip(range(STEPS), batches(), strict=False):
        probe.set_weights(model.get_weights())
        largest = max(float(np.abs(g).max()) for g in gradients_of(probe, x, y, OUTPUTS).values())
        limits.append(round(math.log2(FLOAT16_LIMIT / largest), 3))
        scales.append(math.log2(optimizer.loss_scale))
        model.train_on_batch(x, y, sample_weight=weights)
        skipped.append(not optimizer.last_step_finite)
    predicted = [scale > limit for scale, limit in zip(scales, limits, strict=True)]
    agreed = sum(p == s for p, s in zip(predicted, skipped, strict=True))
    print(f"{sum(skipped)} steps skipped; the limits tell {agreed} of {STEPS} steps rightly")
    return {
        "what": "the demo's net in mixed_float16, its loss summed over all outputs",
        "log2_limit": limits,
        "recorded": {
            "growth_interval": 100,
            "log2_scale": scales,
            "skipped": [step for step, was in enumerate(skipped, start=1) if was],
        },
        "agreed": agreed,
    }


def record_memory() -> dict:
    import keras
    import numpy as np

    import keras_mp
    from keras_mp.numerics.memory import saved_bytes

    def lstm():
        return keras.Sequential(
            [
                keras.Input((128,), dtype="int32"),
                keras.layers.Embedding(10_000, 256),
                keras.layers.LSTM(512, return_sequences=True),
                keras.layers.LSTM(512),
                keras.layers.Dense(10_000, dtype="float32"),
            ]
        )

    def transformer():
        width, length = 512, 128
        inputs = keras.Input((length,), dtype="int32")
        x = keras.layers.Embedding(10_000, width)(inputs)
        for _ in range(6):
            y = keras.layers.LayerNormalization()(x)
            y = keras.layers.MultiHeadAttention(8, width // 8)(y, y)
            x = keras.layers.Add()([x, y])
            y = keras.layers.LayerNormalization()(x)
            y = keras.layers.Dense(4 * width, "gelu")(y)
            x = keras.layers.Add()([x, keras.layers.Dense(width)(y)])
        outputs = keras.layers.Dense(10_000, dtype="float32")(x)
        return keras.Model(inputs, outputs)

    def image(size):
        return lambda batch: np.zeros((batch, size, size, 3), "float32")

    def words(batch):
        return np.zeros((batch, 128), "int32")

    nets = {
        "the demo's MLP": (
            lambda: task().build_model(keras),
            lambda batch: np.zeros((batch, 576), "float32"),
        ),
        "ResNet-50, 224²": (lambda: keras.applications.ResNet50(weights=None), image(224)),
        "MobileNetV2, 224²": (lambda: keras.applications.MobileNetV2(weights=None), image(224)),
        "EfficientNetB0, 224²": (
            lambda: keras.applications.EfficientNetB0(weights=None),
            image(224),
        ),
        "2 LSTM of 512, 128 words": (lstm, words),
        "6 transformer blocks of 512": (transformer, words),
    }
    found = []
    for name, (build, make) in nets.items():
        entry = {"name": name}
        ways = {"float32": "float32", "stock": "mixed_bfloat16", "ours": "mixed_bfloat16"}
        for way, policy in ways.items():
            keras.backend.clear_session()
            keras_mp.set_policy("float32" if way == "ours" else policy)
            model = build()
            if way == "ours":
                keras_mp.plan(model, policy).apply(model)
            two, four = (saved_bytes(model, make(n)) for n in (2, 4))
            entry["parameters"] = int(sum(math.prod(v.shape) for v in model.trainable_variables))
            entry[way] = {
                "bytes_a_sample": (four.total - two.total) / 2,
                "fixed": two.total - (four.total - two.total),
                "weight_casts": two.weight_casts,
            }
        print(entry, flush=True)
        found.append(entry)
    return {
        "what": "keras_mp.numerics.memory.saved_bytes, torch, batches 2 and 4; bfloat16",
        "keras": keras.__version__,
        "nets": found,
    }


PARTS = {"gradients": record_gradients, "overflows": record_overflows, "memory": record_memory}


if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        DATA.mkdir(parents=True, exist_ok=True)
        path = DATA / f"{part}.json"
        path.write_text(json.dumps(PARTS[part](), separators=(",", ":"), ensure_ascii=False) + "\n")
        print(f"{path.name}: {path.stat().st_size:,} bytes", flush=True)
