"""``keras-mp probe``: what float16 makes of a saved model's numbers, on a batch of data."""

import argparse
import json
import sys
from typing import Any

from keras_mp.commands import _models

HELP = "show what float16 makes of a saved model's activations and gradients on a batch"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a .keras file")
    parser.add_argument(
        "data",
        metavar="DATA",
        help="an .npz file with x and, for gradients, y (one batch); or an .npy file with x alone",
    )
    parser.add_argument("--loss", metavar="NAME", help="default: the one the model was saved with")
    parser.add_argument("--scale", type=float, metavar="X", help="loss scale to judge gradients at")
    parser.add_argument("--format", default="float16", help="default: float16")
    parser.add_argument("--svg", metavar="FILE", help="draw the picture, too")
    parser.add_argument("--json", action="store_true", help="print the same as JSON")


def run(args: argparse.Namespace) -> int:
    try:
        batch = _batch(args.data)
        model = _models.load(args.model)
        from keras_mp.numerics.probe import probe

        found = probe(model, batch, loss=args.loss, scale=args.scale, format=args.format)
    except (ValueError, ImportError) as error:
        print(f"keras-mp probe: {error}", file=sys.stderr)
        return _models.WRONG_USE
    if args.svg:
        try:
            with open(args.svg, "w", encoding="utf-8") as file:
                file.write(found.svg())
        except OSError as error:
            print(f"keras-mp probe: cannot write {args.svg}: {error.strerror}", file=sys.stderr)
            return _models.WRONG_USE
    print(json.dumps(_plain(found), indent=1) if args.json else found)
    return 0


def _batch(path: str) -> Any:
    """``(x, y)`` of a file, or x alone.

    Raises:
        ValueError: It is no file of NumPy's, or has no x.
    """
    import numpy as np

    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"Expected an .npz or .npy file. Received: {path!r} ({error})") from error
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        arrays = {name: loaded[name] for name in loaded.files}
    if "x" not in arrays:
        raise ValueError(f"Expected an array x in {path!r}. Received: {sorted(arrays)}")
    if "y" not in arrays:
        return arrays["x"]
    weights = (arrays["sample_weight"],) if "sample_weight" in arrays else ()
    return (arrays["x"], arrays["y"], *weights)


def _plain(found: Any) -> dict[str, Any]:
    from keras_mp.telemetry.records import encode, plain

    rows = [encode(row.to_record(0, 0.0, found.format)) for row in found]
    for row in rows:
        for name in ("kind", "step", "time"):
            row.pop(name, None)
    return {
        "model": found.model,
        "format": found.format,
        "scale": found.scale,
        "loss": plain(found.loss),
        "lost": plain(found.lost),
        "underflow": plain(found.underflow),
        "largest_scale": plain(found.largest_scale),
        "rows": rows,
    }
