"""A training loop of one's own on TensorFlow: GradientTape, a loss scale, and a journal.

    python examples/tensorflow_loop.py --runs runs --steps 300
    keras-mp monitor runs

The last line is the share of unseen digits that were recognised.
"""

import argparse
import os

os.environ["KERAS_BACKEND"] = "tensorflow"


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", default="runs", help="folder for the journal")
    parser.add_argument("--name", default="tensorflow-loop")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args(argv)

    import keras
    import tensorflow as tf
    from sklearn.datasets import load_digits

    import keras_mp

    keras_mp.set_policy("mixed_float16")
    keras.utils.set_random_seed(0)
    x, y = load_digits(return_X_y=True)  # 1,797 handwritten digits, 8 x 8
    x, y = (x / 16).astype("float32"), y.astype("int32")
    batches = tf.data.Dataset.from_tensor_slices((x[:1500], y[:1500]))
    batches = batches.shuffle(1500, seed=0).repeat().batch(args.batch_size).take(args.steps)

    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, "relu"),
            keras.layers.Dense(10, dtype="float32"),  # logits in float32
        ]
    )
    optimizer = keras_mp.LossScaleOptimizer("adam")
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = model.trainable_variables

    with keras_mp.Run(
        args.runs, args.name, optimizer=optimizer, model=model, planned_steps=args.steps
    ) as run:

        @tf.function
        def train(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
                scaled = optimizer.scale_loss(loss)
            optimizer.apply(tape.gradient(scaled, [v.value for v in variables]), variables)
            return loss  # unscaled, and still on the device: the journal fetches it now and then

        for images, labels in run.batches(batches):  # tells the wait for input, too
            run.step(loss=train(images, labels), samples=args.batch_size)

        right = tf.argmax(model(x[1500:]), axis=1) == y[1500:]
        share = float(tf.reduce_mean(tf.cast(right, "float32")))
        run.result(right=share)
    print(f"right {share:.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
