"""How a case of an operation is written down."""

from functools import partial

from keras import ops
from sweep.cases import case

M, ROW = (3, 5), (2, 20_000)
PLAIN = ("ordinary",)
SIZES = ("ordinary", "large", "tiny")


def names(text: str) -> list[str]:
    return text.split()


def operation(name: str):
    """The operation of that name, looked up when it is called: a name that is gone fails there."""
    owner, _, last = name.rpartition(".")
    found = getattr(ops, owner) if owner else ops
    return getattr(found, last)


def one(name, *inputs, **options):
    """A case of an operation that takes the inputs as they are; ``with_`` are further arguments."""
    with_ = options.pop("with_", {})
    return case(partial(lambda n, k, *t: operation(n)(*t, **k), name, with_), *inputs, **options)


# Functions of single numbers, by the numbers that they take.
