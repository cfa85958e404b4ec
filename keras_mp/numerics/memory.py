"""Bytes that a model keeps from its forward pass for the backward pass, exactly.

What a training step needs beside weights, gradients and optimizer state is mostly this: each layer
keeps what its gradient will be computed from. Half precision halves it only where layers keep
half-precision tensors, and a cast of a weight that is kept comes on top: float32 keeps the weight
itself, which costs nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from inspect import signature
from typing import Any


@dataclass(frozen=True)
class Kept:
    """One block of memory that is kept: a storage on torch, a residual on jax.

    Attributes:
        layer: Path of the innermost layer (``Place.path``) that keeps it first on torch, that
            computed it on jax; "" for the model's own code.
        dtype: Such as "bfloat16".
        nbytes: Its size.
        of_weight: A copy of weights in another dtype or order, not an activation.
    """

    layer: str
    dtype: str
    nbytes: int
    of_weight: bool


@dataclass(frozen=True)
class SavedBytes:
    """What ``saved_bytes`` counted, in bytes.

    Attributes:
        kept: Each block of memory once, in the order in which they came to be kept.
    """

    kept: tuple[Kept, ...]

    @property
    def total(self) -> int:
        """All that is kept, without the weights themselves: those exist anyway."""
        return sum(one.nbytes for one in self.kept)

    @property
    def weight_casts(self) -> int:
        """The part that is copies of weights: casts, and copies in another order."""
        return sum(one.nbytes for one in self.kept if one.of_weight)

    @property
    def activations(self) -> int:
        """The rest."""
        return self.total - self.weight_casts

    @property
    def by_dtype(self) -> dict[str, int]:
        """Dtype -> bytes, the largest first."""
        return _sums((one.dtype, one.nbytes) for one in self.kept)

    @property
    def by_layer(self) -> dict[str, int]:
        """Path of the innermost layer -> bytes, the largest first. Paths are a plan's."""
        return _sums((one.layer, one.nbytes) for one in self.kept)

    def __str__(self) -> str:
        dtypes = ", ".join(f"{dtype} {nbytes:,}" for dtype, nbytes in self.by_dtype.items())
        return (
            f"{self.total:,} bytes kept for the backward pass ({dtypes}), "
            f"{self.weight_casts:,} of them copies of weights"
        )


def saved_bytes(model: Any, batch: Any, *, training: bool = True) -> SavedBytes:
    """Count the bytes that a model keeps for the backward pass, by dtype and by layer.

    The same model and shapes give the same count every time, on any device. Each block of memory
    counts once, with its whole size, however many operations keep it; the model's variables do not
    count. The loss and its gradient are not included. On jax it is what differentiation asks to
    keep, without constants such as arrays of zeros; its compiler may then keep less.

    Args:
        model: A Keras model. It, its statistics and its random seeds are as they were afterwards;
            one that is not built is built by the batch.
        batch: Inputs as the model takes them: an array, or a list or dict of arrays.
        training: The mode to call the model in, where its `call` takes one.

    Returns:
        The count.

    Raises:
        NotImplementedError: On tensorflow, which does not tell what it keeps.

    Example:

    ```python
    kept = keras_mp.numerics.memory.saved_bytes(model, images[:32])
    print(kept.total, kept.by_dtype, kept.weight_casts)
    ```
    """
    import keras

    backend = keras.backend.backend()
    if backend == "torch":
        from keras_mp.numerics.saved_torch import kept_blocks
    elif backend == "jax":
        from keras_mp.numerics.saved_jax import kept_blocks
    else:
        raise NotImplementedError(
            "The bytes that are kept for the backward pass cannot be counted on this backend, "
            "which does not tell what it keeps. Expected the torch or the jax backend "
            f"(set KERAS_BACKEND before Keras loads). Received: backend={backend!r}"
        )
    from keras_mp.policies.structure import structure_of

    inputs = keras.tree.map_structure(keras.ops.convert_to_tensor, batch)
    if not model.built:
        model(inputs)
    # Keras passes the mode on from a model whose ``call`` takes it, as in training.
    mode = {"training": training} if "training" in signature(model.call).parameters else {}
    places = structure_of(model, ends=False).places
    return SavedBytes(tuple(kept_blocks(model, inputs, places, mode)))


def _sums(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for key, nbytes in pairs:
        sums[key] = sums.get(key, 0) + nbytes
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))
