"""A recurrent cell with state of its own."""

import keras


@keras.saving.register_keras_serializable("test")
class Counting(keras.layers.SimpleRNNCell):
    """A cell with a random seed and a counter of its own."""

    def __init__(self, units, **kwargs):
        super().__init__(units, **kwargs)
        self.drop = keras.layers.Dropout(0.5, seed=0, dtype=self.dtype_policy)

    def build(self, shape):
        super().build(shape)
        options = {"trainable": False, "autocast": False}
        self.count = self.add_weight(shape=(), initializer="zeros", name="count", **options)

    def call(self, inputs, states, training=False):
        self.count.assign(self.count + 1)
        return super().call(self.drop(inputs, training=training), states, training=training)
