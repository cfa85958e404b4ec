"""Masters under MirroredStrategy with two logical CPUs, in a process of its own: prints "alike".

TensorFlow's logical devices must be made before anything else uses it.
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

import keras  # noqa: E402
import numpy as np  # noqa: E402

import keras_mp  # noqa: E402

x = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
y = x[:, :1].copy()
x[13] = 1e30  # in the second replica's half of the second batch


def check(condition, what):
    if not condition:
        raise SystemExit(what)


with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, dtype="float16")])
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(2.0**-12), initial_scale=256.0)
    model.compile(optimizer, "mse", auto_scale_loss=False, jit_compile=False)
    optimizer.build(model.trainable_variables)

variable = model.trainable_variables[0]
variable.assign(np.ones((8, 1)))
model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
master = optimizer.variables[-2]
check((optimizer.skipped_steps, optimizer.applied_steps) == (1, 3), "one of four steps is skipped")
check(len(variable.value.values) == 2, "the variable is not mirrored")
for one, kept in zip(variable.value.values, master.value.values, strict=True):
    check(np.array_equal(one, tf.cast(kept, "float16")), "a replica is not its rounded master")
    check(np.array_equal(one, variable.value.values[0]), "the replicas differ")
check(not np.array_equal(master, tf.cast(variable.value, "float32")), "nothing was kept")

variable.assign(np.full((8, 1), 3.0))
model.fit(x[:8], y[:8], batch_size=8, verbose=0)
for kept in master.value.values:
    check(np.allclose(kept, 3, atol=0.01), "a stale master won")
print("alike")
