"""What ``paper.py`` measures of numbers themselves: zeros, swallowed updates, sums.

Each function is a piece for one seed and returns its metrics; torch and tensorflow.
"""

import keras
import numpy as np
import paper_tasks as tasks
from keras import layers, ops

import keras_mp
from keras_mp.numerics.formats import round_to
from keras_mp.numerics.histogram import exponent_histogram, shares

SCALES = (1, 8, 128, 1024, 32768)


def zeros(seed, quick):
    """The paper's figure 3: activation gradients of the trained heat-map net, one batch.

    ``predicted_S``: the share that a float32 pass's exponent histogram says float16 makes zero at
    loss scale S. ``measured_S``: the share that is zero when the same weights compute in float16.
    """
    trained = tasks.train_heat_map(tasks.VARIANTS["float32"], seed, quick)
    (x, y), _ = tasks.scenes(2000 if quick else 12_000)
    x, y = x[:256], y[:256]
    weights = trained.get_weights()
    wide = exponent_histogram(np.zeros(0))
    activations, kernels = gradients(trained, x, y, 1.0)
    for each in activations:
        wide += exponent_histogram(each)
    result = {}
    keras_mp.set_policy("mixed_float16")
    half = tasks.heat_map_net()
    half.set_weights(weights)
    for scale in SCALES:
        predicted = shares(wide, "float16", scale)
        found = [each == 0 for each in gradients(half, x, y, scale)[0]]
        result[f"predicted_{scale}"] = predicted.zero + predicted.lost
        result[f"measured_{scale}"] = float(np.mean(np.concatenate([f.ravel() for f in found])))
    flat = np.abs(np.concatenate([each.ravel() for each in kernels]))
    result["weight_gradients_below_2^-24"] = float(np.mean((flat < 2.0**-24) & (flat > 0)))
    return result


def swallowed(seed, quick):
    """Which updates of plain SGD leave a half-precision weight as it is, and why.

    The MLP of the master-weights rows after three epochs in float32; one batch of 16.
    """
    keras_mp.set_policy("float32")
    keras.utils.set_random_seed(seed)
    (x, y), _ = tasks.digits()
    x = x.reshape(-1, 784)
    sizes = ((128, "relu"), (128, "relu"), (10, None))
    model = keras.Sequential([keras.Input((784,)), *(layers.Dense(*size) for size in sizes)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-2), loss, jit_compile=False)
    model.fit(x, y, batch_size=16, epochs=1 if quick else 3, verbose=0)
    grads = _of_variables(model, lambda: loss(y[:16], model(x[:16])))
    weight = np.concatenate([_flat(v.value) for v in model.trainable_variables])
    update = 1e-3 * np.concatenate([_flat(g) for g in grads])
    weight, update = weight[update != 0], update[update != 0]
    result = {"larger_than_2048": float(np.mean(np.abs(weight) > 2048 * np.abs(update)))}
    for name in ("float16", "bfloat16"):
        stored = round_to(weight, name)
        result[f"swallowed_{name}"] = float(np.mean(round_to(stored - update, name) == stored))
    result["underflow_float16"] = float(np.mean(round_to(update, "float16") == 0))
    return result


def accumulation(seed, quick):
    """The sum of 8,192 ones in float16: added up in float16, and as this backend computes it."""
    ones = np.ones(8192, "float16")
    total = np.float16(0)
    for one in ones:
        total = np.float16(total + one)
    tensor = ops.convert_to_tensor(ones)
    product = ops.matmul(ops.reshape(tensor, (1, -1)), ops.reshape(tensor, (-1, 1)))
    return {
        "float16_accumulator": float(total),
        "backend_sum": float(ops.convert_to_numpy(ops.sum(tensor))),
        "backend_product": float(ops.convert_to_numpy(product)[0, 0]),
    }


def gradients(model, x, y, scale):
    """(of each layer's output, of each kernel) for the mean squared error times ``scale``."""
    x, y = ops.convert_to_tensor(x), ops.convert_to_tensor(y)
    outputs, kernels = [], [v for v in model.trainable_variables if v.name == "kernel"]

    def forward(watch):
        h = x
        for layer in model.layers:
            h = layer(h)
            watch(h)
            outputs.append(h)
        return ops.mean((ops.cast(h, "float32") - y) ** 2) * scale

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape(persistent=True) as tape:
            loss = forward(tape.watch)
        found = tape.gradient(loss, outputs), tape.gradient(loss, [k.value for k in kernels])
    else:
        for kernel in kernels:
            kernel.value.grad = None
        forward(lambda h: h.retain_grad()).backward()
        found = [h.grad for h in outputs], [k.value.grad for k in kernels]
    return tuple([ops.convert_to_numpy(g) for g in each] for each in found)


def _of_variables(model, loss_of):
    variables = model.trainable_variables
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = loss_of()
        return tape.gradient(loss, [v.value for v in variables])
    for variable in variables:
        variable.value.grad = None
    loss_of().backward()
    return [v.value.grad for v in variables]


def _flat(tensor):
    return ops.convert_to_numpy(tensor).astype("float64").ravel()
