"""A job that is stopped and goes on where it was, in the same journal.

    python examples/resume.py --runs runs --epochs 3      # trains epochs 1 to 3
    python examples/resume.py --runs runs --epochs 6      # goes on: epochs 4 to 6
    keras-mp monitor runs

Keras' BackupAndRestore keeps the model, the optimizer and the loss scale; the journal goes on
under the same name. Any backend. Four small batches make one update (accumulation by the
optimizer). The last line says how many steps were done over both.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", default="runs", help="folder for the journal")
    parser.add_argument("--name", default="resume")
    parser.add_argument("--epochs", type=int, default=3, help="altogether")
    args = parser.parse_args(argv)

    import keras
    from sklearn.datasets import load_digits

    import keras_mp

    keras_mp.set_policy("mixed_float16")
    keras.utils.set_random_seed(0)
    x, y = load_digits(return_X_y=True)  # 1,797 handwritten digits, 8 x 8
    x = (x / 16).astype("float32")
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, "relu"),
            keras.layers.Dense(10, dtype="float32"),  # logits in float32
        ]
    )
    inner = keras.optimizers.Adam(1e-3, gradient_accumulation_steps=4)
    model.compile(
        optimizer=keras_mp.LossScaleOptimizer(inner),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        auto_scale_loss=False,
    )
    monitor = keras_mp.Monitor(args.runs, name=args.name)
    keep = Path(args.runs) / args.name / "backup"
    backup = keras.callbacks.BackupAndRestore(str(keep), delete_checkpoint=False)
    # The backup first: it puts the counted steps back before the journal asks for them.
    model.fit(x, y, batch_size=64, epochs=args.epochs, verbose=0, callbacks=[backup, monitor])
    done = model.optimizer.applied_steps + model.optimizer.skipped_steps
    print(f"steps {done}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
