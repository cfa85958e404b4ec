"""tensorflow: unscale gradients, and find which of them are not finite.

A sum of squares is finite only if every element is: one operator a gradient, and its norm comes
with it. Only where the sum is not finite (an overflow; or finite numbers whose squares overflow)
are the elements looked at, so the answer is exact.
"""

from typing import Any

import tensorflow as tf

from keras_mp.scaling.kernels.common import half_dtype
from keras_mp.scaling.kernels.tensorflow_graph import in_xla
from keras_mp.scaling.masters import HALF

# XLA on a CPU adds up one element after the other, because floating-point addition has an order.
# Adding 16 slices of a tensor elementwise first makes it a loop that it turns into vectors.
_SLICES = 16
_WORTH_SLICING = 2**14

# Outside XLA an operator's fixed cost is that of copying some thousand numbers: smaller gradients
# are joined for the operators that all of them go through.
_SMALL = 2**13


def present(grads: list[Any]) -> list[Any]:
    return [g for g in grads if g is not None]


def unscale(grads: list[Any], variables: list[Any], inverse: Any) -> list[Any]:
    """The gradients times ``inverse`` (float32, shape ()); None and IndexedSlices stay such.

    A gradient that is to overwrite its variable (float8's scales) is no derivative of the loss
    and is left alone, as Keras does.
    """
    return [
        g
        if g is None or getattr(v, "overwrite_with_gradient", False)
        else _times(g, inverse, half_dtype(v))
        for g, v in zip(grads, variables, strict=True)
    ]


def unscale_together(grads: list[Any], inverse: Any) -> tuple[list[Any], list[Any]]:
    """The same with fewer operators, for a graph outside XLA; no gradient may be None.

    Returns:
        (the unscaled gradients; tensors that hold all their numbers, before rows are added up).
    """
    small = [
        i for i, g in enumerate(grads) if isinstance(g, tf.Tensor) and 0 < _static_size(g) < _SMALL
    ]
    joined = set(small)
    unscaled = [None if i in joined else _times(g, inverse) for i, g in enumerate(grads)]
    pieces = [_rows(g) for g in unscaled if g is not None]
    if small:
        flat = tf.concat([tf.reshape(grads[i], [-1]) for i in small], 0)
        flat = flat * tf.cast(inverse, flat.dtype)
        pieces.append(flat)
        parts = tf.split(flat, [_static_size(grads[i]) for i in small])
        for i, part in zip(small, parts, strict=True):
            unscaled[i] = tf.reshape(part, grads[i].shape)
    return unscaled, pieces


def _static_size(tensor: Any) -> int:
    """How many numbers a tensor holds; 0 where its graph does not tell."""
    return tensor.shape.num_elements() or 0


def _times(grad: Any, factor: Any, to_half: str | None = None) -> Any:
    """In float32 or wider: half precision would lose what the scale has saved.

    Args:
        to_half: Half-precision dtype of the product, where its variable has no master.
    """
    if isinstance(grad, tf.IndexedSlices):
        values = _times(grad.values, factor, to_half)
        return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
    wide = tf.cast(grad, tf.float32) if grad.dtype.name in HALF else grad
    product = wide * tf.cast(factor, wide.dtype)
    return product if to_half is None else tf.cast(product, to_half)


def finite_and_norms(grads: list[Any]) -> tuple[Any, Any]:
    """Which gradients are finite, and how large they are.

    Args:
        grads: Unscaled gradients, none of them None.

    Returns:
        (bool, float32), both of shape (len(grads),): every element is finite; the L2 norm, of
        which only that of a finite gradient means anything.
    """
    found, quick = norms(grads)
    flags = tf.cond(quick, lambda: tf.ones([len(grads)], tf.bool), lambda: finite_flags(grads))
    return flags, found


def norms(grads: list[Any]) -> tuple[Any, Any]:
    """(float32, shape (len(grads),): L2 norms; bool: all squares are finite, and so all grads).

    The sum of all squares may overflow where no element is infinite: then the elements tell.
    """
    squares = tf.stack([_half_sum_of_squares(values(g)) for g in grads])
    return tf.sqrt(2.0 * squares), tf.math.is_finite(tf.reduce_sum(squares))


def squares_are_finite(pieces: list[Any]) -> Any:
    """bool, shape (): the second of ``norms``, where nobody wants the norms."""
    return tf.math.is_finite(tf.add_n([_half_sum_of_squares(p) for p in pieces]))


def finite_flags(grads: list[Any], factor: float = 1.0) -> Any:
    """bool, shape (len(grads),): every element, multiplied by ``factor``, is finite."""
    tensors = [values(g) for g in grads]
    if factor != 1.0:
        tensors = [t * tf.cast(factor, t.dtype) for t in tensors]
    return tf.stack([tf.reduce_all(tf.math.is_finite(t)) for t in tensors])


def norm(grad: Any) -> Any:
    """The L2 norm; float32, shape ()."""
    return tf.sqrt(2.0 * _half_sum_of_squares(values(grad)))


def values(grad: Any) -> Any:
    """The numbers of a gradient: of IndexedSlices, those of the rows that it has.

    A row that comes several times (an embedding's of a word that does) is the sum of these: it is
    in the place of the first, and zeros in those of the others.
    """
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    count = tf.shape(grad.indices)[0]
    order = tf.argsort(grad.indices, stable=True)
    indices = tf.gather(grad.indices, order)
    new = tf.cast(tf.not_equal(indices[1:], indices[:-1]), tf.int32)
    runs = tf.cumsum(tf.concat([tf.zeros([tf.minimum(count, 1)], tf.int32), new], 0))
    return tf.math.unsorted_segment_sum(tf.gather(grad.values, order), runs, count)


def _rows(grad: Any) -> Any:
    """The same without adding up rows. The sum of some whose squares are finite is finite."""
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def _half_sum_of_squares(tensor: Any) -> Any:
    """Half the sum of squares; float32, shape ()."""
    # In half precision the squares of common numbers overflow already.
    tensor = tf.cast(tensor, tf.float32)
    if not in_xla():
        return tf.nn.l2_loss(tensor)
    size = tensor.shape.num_elements()
    tensor = tf.reshape(tensor, [-1])
    if size is None or size < _WORTH_SLICING:
        return 0.5 * tf.reduce_sum(tf.square(tensor))
    width = size // _SLICES
    slices = [tf.square(tensor[i * width : (i + 1) * width]) for i in range(_SLICES)]
    rest = tf.reduce_sum(tf.square(tensor[_SLICES * width :]))
    return 0.5 * (tf.reduce_sum(_tree_sum(slices)) + rest)


def _tree_sum(tensors: list[Any]) -> Any:
    while len(tensors) > 1:
        tensors = [a + b for a, b in zip(tensors[::2], tensors[1::2], strict=True)]
    return tensors[0]
