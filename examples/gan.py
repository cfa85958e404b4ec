"""A small GAN with two optimizers, a plain training loop, and a journal of it.

The generator learns to draw points of a ring from noise, the discriminator to tell them from real
ones. Each network has its own optimizer and so its own loss scale; both are in the journal.

    python examples/gan.py --runs runs --steps 400
    keras-mp monitor runs

KERAS_BACKEND chooses torch (the default here) or tensorflow. The last line is the share of drawn
points that lie near the ring.
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", default="runs", help="folder for the journal")
    parser.add_argument("--name", default="gan")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=128)
    return parser.parse_args(argv)


def build(keras):
    layers = keras.layers
    generator = keras.Sequential(
        [keras.Input((8,)), layers.Dense(64, "relu"), layers.Dense(64, "relu"), layers.Dense(2)],
        name="generator",
    )
    discriminator = keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(64, "leaky_relu"),
            layers.Dense(64, "leaky_relu"),
            layers.Dense(1, dtype="float32"),  # logits in float32: the loss is computed from them
        ],
        name="discriminator",
    )
    return generator, discriminator


def real_points(rng, count):
    angle = rng.uniform(0, 2 * np.pi, count)
    radius = 1 + 0.05 * rng.normal(size=count)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype("float32")


def torch_update(loss_of, optimizer, variables):
    """A function that does one step: the loss, scaled; its gradients; apply (or skip)."""
    import torch

    def update(*inputs):
        for variable in variables:
            variable.value.grad = None
        loss = loss_of(*inputs)
        optimizer.scale_loss(loss).backward()
        with torch.no_grad():
            optimizer.apply([v.value.grad for v in variables], variables)
        return loss

    return update


def tensorflow_update(loss_of, optimizer, variables):
    import tensorflow as tf

    @tf.function
    def update(*inputs):
        with tf.GradientTape() as tape:
            loss = loss_of(*inputs)
            scaled = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled, [v.value for v in variables]), variables)
        return loss

    return update


def main(argv=None):
    args = parse_arguments(argv)
    import keras
    from keras import ops

    import keras_mp

    make = {"torch": torch_update, "tensorflow": tensorflow_update}[keras.backend.backend()]
    keras_mp.set_policy("mixed_float16")
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    generator, discriminator = build(keras)
    optimizers = {
        "generator": keras_mp.LossScaleOptimizer(keras.optimizers.Adam(1e-3, beta_1=0.5)),
        "discriminator": keras_mp.LossScaleOptimizer(keras.optimizers.Adam(1e-3, beta_1=0.5)),
    }
    optimizers["generator"].build(generator.trainable_variables)
    optimizers["discriminator"].build(discriminator.trainable_variables)

    def distance(logits, real):
        """Binary cross-entropy against all real or all drawn."""
        target = ops.ones_like(logits) if real else ops.zeros_like(logits)
        return ops.mean(keras.losses.binary_crossentropy(target, logits, from_logits=True))

    def discriminator_loss(real, noise):
        drawn = ops.stop_gradient(generator(noise))
        return distance(discriminator(real), True) + distance(discriminator(drawn), False)

    def generator_loss(noise):
        return distance(discriminator(generator(noise)), True)

    with keras_mp.Run(
        args.runs,
        name=args.name,
        optimizer=optimizers,
        model=generator,
        planned_steps=args.steps,
    ) as run:
        # Inside the block: the optimizers are asked to remember their steps before any is traced.
        train_d = make(
            discriminator_loss, optimizers["discriminator"], discriminator.trainable_variables
        )
        train_g = make(generator_loss, optimizers["generator"], generator.trainable_variables)
        for _ in range(args.steps):
            real = ops.convert_to_tensor(real_points(rng, args.batch_size))
            noise = ops.convert_to_tensor(rng.normal(size=(args.batch_size, 8)).astype("float32"))
            loss_d = train_d(real, noise)
            loss_g = train_g(noise)
            run.step(loss=loss_g, samples=args.batch_size, metrics={"discriminator": loss_d})

        points = ops.convert_to_numpy(generator(rng.normal(size=(2000, 8)).astype("float32")))
        near = float(np.mean(np.abs(np.linalg.norm(points.astype("float32"), axis=1) - 1) < 0.25))
        run.result(near_ring=near)
    print(f"near the ring {near:.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
