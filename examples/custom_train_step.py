"""A Keras model with a train_step of its own, trained by fit: the scale and the journal come along.

    KERAS_BACKEND=tensorflow python examples/custom_train_step.py --runs runs
    keras-mp monitor runs

The model learns digits and, beside it, to tell a digit from its mirror image; the step weighs the
two losses. KERAS_BACKEND chooses torch (the default here) or tensorflow; on jax such a step is a
function of the whole state (see Keras' guide). The last line is the accuracy on unseen digits.
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "torch")


def make_model(keras):
    from keras import ops

    class TwoTasks(keras.Model):
        def __init__(self):
            super().__init__()
            self.trunk = keras.layers.Dense(96, "relu")
            self.digit = keras.layers.Dense(10, dtype="float32")
            self.mirrored = keras.layers.Dense(1, dtype="float32")
            # The journal takes the loss from a mean of this name, weighted by samples.
            self.mean = keras.metrics.Mean(name="loss")
            self.right = keras.metrics.SparseCategoricalAccuracy(name="right")

        def call(self, x):
            inside = self.trunk(ops.reshape(x, (-1, 64)))
            return self.digit(inside), self.mirrored(inside)

        def both_losses(self, x, y):
            digits, plain = self(x, training=True)
            _, turned = self(ops.flip(x, axis=2), training=True)
            loss = ops.mean(
                keras.losses.sparse_categorical_crossentropy(y, digits, from_logits=True)
            )
            cross = keras.losses.binary_crossentropy
            aside = cross(ops.zeros_like(plain), plain, from_logits=True)
            aside = aside + cross(ops.ones_like(turned), turned, from_logits=True)
            return loss + 0.2 * ops.mean(aside), digits

        def train_step(self, data):
            x, y = data
            variables = self.trainable_variables
            if keras.backend.backend() == "tensorflow":
                import tensorflow as tf

                with tf.GradientTape() as tape:
                    loss, digits = self.both_losses(x, y)
                    scaled = self.optimizer.scale_loss(loss)
                gradients = tape.gradient(scaled, [v.value for v in variables])
                self.optimizer.apply(gradients, variables)
            else:
                import torch

                self.zero_grad()
                loss, digits = self.both_losses(x, y)
                self.optimizer.scale_loss(loss).backward()
                with torch.no_grad():
                    self.optimizer.apply([v.value.grad for v in variables], variables)
            self.mean.update_state(loss, sample_weight=ops.shape(x)[0])
            self.right.update_state(y, digits)
            return self.get_metrics_result()

        def test_step(self, data):
            x, y = data
            self.right.update_state(y, self(x)[0])
            return {"right": self.right.result()}

    return TwoTasks()


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", default="runs", help="folder for the journal")
    parser.add_argument("--name", default="custom-train-step")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args(argv)

    import keras
    from sklearn.datasets import load_digits

    import keras_mp

    keras_mp.set_policy("mixed_float16")
    keras.utils.set_random_seed(0)
    digits = load_digits()  # 1,797 handwritten digits, 8 x 8
    x, y = (digits.images / 16).astype("float32"), digits.target.astype("int32")
    model = make_model(keras)
    optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.Adam(2e-3))
    model.compile(optimizer=optimizer)
    # TensorFlow makes no variables inside a traced step: they must be there before.
    model(x[:1])
    optimizer.build(model.trainable_variables)
    monitor = keras_mp.Monitor(args.runs, name=args.name)
    model.fit(x[:1500], y[:1500], batch_size=64, epochs=args.epochs, verbose=0, callbacks=[monitor])
    right = model.evaluate(x[1500:], y[1500:], verbose=0, return_dict=True)["right"]
    monitor.result(right=right)
    print(f"right {right:.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
