"""Models and data that a trial's processes look up by name, one of each kind."""

import time

import keras
import numpy as np

CLASSES = 10


def net():
    model = keras.Sequential(
        [
            keras.Input((24,)),
            keras.layers.Dense(32, "relu", name="first"),
            keras.layers.Dense(CLASSES, name="head"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Under mixed_float16 Keras puts its own loss scale around this optimizer.
    model.compile(keras.optimizers.Adam(0.01), loss)
    return model


def not_compiled():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])


def explodes():
    raise RuntimeError("no model today")


def with_an_argument(width):
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(width)])


def two_named():
    """A dict of inputs to a dict of outputs, one of them class ids."""
    inputs = {
        "numbers": keras.Input((4,), name="numbers"),
        "scale": keras.Input((1,), name="scale"),
    }
    h = keras.layers.Concatenate()(list(inputs.values()))
    outputs = {
        "kind": keras.layers.Dense(CLASSES, name="kind")(h),
        "size": keras.layers.Dense(1, name="size")(h),
    }
    model = keras.Model(inputs, outputs)
    kinds = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", {"kind": kinds, "size": "mse"})
    return model


def softmax():
    return keras.Sequential([keras.Input((24,)), keras.layers.Dense(CLASSES, "softmax")])


def logits():
    return keras.Sequential([keras.Input((24,)), keras.layers.Dense(CLASSES)])


@keras.saving.register_keras_serializable("bench_models")
class Doubled(keras.layers.Layer):
    """A class of the user's own, which a file only names."""

    def call(self, x):
        return 2 * x


class OwnLoss(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_pred), axis=-1)


def own_metric(y_true, y_pred):
    return keras.ops.mean(y_pred)


def own_activation(x):
    return 3 * x


def of_own_parts():
    """A model whose loss, metric and activation Keras does not know."""
    hidden = keras.layers.Dense(8, own_activation)
    model = keras.Sequential([keras.Input((24,)), hidden, keras.layers.Dense(1)])
    model.compile("sgd", OwnLoss(), metrics=[own_metric])
    return model


def a_string():
    return "not a model"


def data():
    """(x, y): classes that can be learned."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(96, 24)).astype("float32")
    return x, (x @ rng.normal(size=(24, CLASSES))).argmax(axis=1)


class SlowBatches(keras.utils.PyDataset):
    """Batches of 8 that take 30 ms each to come."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        time.sleep(0.03)
        x, y = data()
        return x[index * 8 : index * 8 + 8], y[index * 8 : index * 8 + 8]


def slow():
    return SlowBatches()


def generated():
    """Five batches of 16, from a generator."""
    x, y = data()
    for start in range(0, 80, 16):
        yield x[start : start + 16], y[start : start + 16]


def three():
    return 1, 2, 3


def x_alone():
    return data()[0]


def in_a_policy_of_its_own():
    """A function that sets the policy, as a script does, and keeps its head in float32."""
    keras.config.set_dtype_policy("mixed_float16")
    return keras.Sequential(
        [
            keras.Input((24,)),
            keras.layers.Dense(32, "relu", name="first"),
            keras.layers.Dense(CLASSES, dtype="float32", name="head"),
        ]
    )


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that cannot tell its config, as tutorials write them."""

    def __call__(self, step):
        return 0.01 * keras.ops.minimum(1.0, (keras.ops.cast(step, "float32") + 1) / 10)


def warmed_up():
    model = logits()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(Warmup()), loss)
    return model


class Shuffled(keras.utils.PyDataset):
    """Batches of 16 in another order each time one goes through them."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 0:
            self.order = np.random.permutation(96)
        x, y = data()
        rows = self.order[16 * index : 16 * index + 16]
        return x[rows], y[rows]


def shuffled():
    return Shuffled()


def two_inputs():
    inputs = [keras.Input((24,)), keras.Input((24,))]
    model = keras.Model(inputs, keras.layers.Dense(CLASSES)(keras.layers.Add()(inputs)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def two_in_a_tuple():
    x, y = data()
    return (x, x), y


class Autoencoder(keras.Model):
    """Its loss is its own, and needs no targets."""

    def __init__(self):
        super().__init__()
        self.drawn = keras.layers.Dense(24)

    def call(self, x):
        return self.drawn(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.square(y_pred - keras.ops.cast(x, y_pred.dtype)))


def without_targets():
    model = Autoencoder()
    model.compile("adam")
    return model


def unequal():
    x, y = data()
    return x, y[:-1]


def nested_numbers():
    return [[1.0, 2.0]], [[1.0]]


def batches_of_x():
    for start in range(0, 80, 16):
        yield (data()[0][start : start + 16],)


def no_data():
    raise OSError("the disk is not there")


# Five families for the line of memory over the batch size.


def mlp():
    layers = [keras.layers.Dense(64, "gelu") for _ in range(3)]
    return keras.Sequential([keras.Input((32,)), *layers, keras.layers.Dense(4)])


def cnn():
    inputs = keras.Input((16, 16, 3))
    h = keras.layers.Conv2D(8, 3, padding="same")(inputs)
    h = keras.layers.ReLU()(keras.layers.BatchNormalization()(h))
    h = keras.layers.MaxPooling2D()(keras.layers.Conv2D(16, 3, padding="same")(h))
    return keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(h)))


def lstm():
    inputs = keras.Input((12,), dtype="int32")
    h = keras.layers.LSTM(16)(keras.layers.Embedding(50, 8)(inputs))
    return keras.Model(inputs, keras.layers.Dense(4)(h))


def transformer():
    inputs = keras.Input((16,))  # ids in float32, as Keras' default has it
    h = keras.layers.Embedding(50, 16)(inputs)
    a = keras.layers.LayerNormalization()(h)
    h = keras.layers.Add()([h, keras.layers.MultiHeadAttention(2, 8)(a, a)])
    h = keras.layers.Add()([h, keras.layers.Dense(16)(keras.layers.Dense(32, "gelu")(h))])
    return keras.Model(inputs, keras.layers.Dense(50)(h))


def autoencoder():
    inputs = keras.Input((40,))
    code = keras.layers.Dense(6, "tanh")(keras.layers.Dense(24, "relu")(inputs))
    drawn = keras.layers.Dropout(0.1)(keras.layers.Dense(24, "relu")(code))
    return keras.Model(inputs, keras.layers.Dense(40, "sigmoid")(drawn))
