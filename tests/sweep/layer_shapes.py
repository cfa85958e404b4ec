"""Shapes that layers take, and masks for them."""

from sweep.cases import Bools, case

VECTOR, SEQUENCE, IMAGE, VOLUME = (3, 8), (2, 6, 4), (2, 8, 8, 4), (2, 4, 6, 6, 4)
LONG = (2, 20_000, 2)  # sums of 20,000 numbers: float16 stops at 2,048 ones
STEPS = 24  # roundings of a recurrent layer over a sequence


def masked(make, shape, mask, *, label="", **options):
    """The same layer with a mask as it comes, one of all True, and one of all False."""
    call = options.pop("call", lambda layer, x, m: layer(x, mask=m))
    inputs = options.pop("inputs", (shape,))
    return [
        case(make, *inputs, Bools(mask, kept), call=call, label=label + name, **options)
        for name, kept in (("mask", None), ("full-mask", True), ("empty-mask", False))
    ]
