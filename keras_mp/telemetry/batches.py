"""TensorFlow's batches, taken out of an iterator before the step that trains on them.

Keras' compiled step draws its batch itself, where nobody outside sees it. What is drawn before it
is handed to it as an iterator of its own: of shapes that fit the ones traced, so nothing is traced
anew, and the same function computes.
"""

from typing import Any


def is_plain(iterator: Any) -> bool:
    """Whether batches can be taken out: not from the iterator of a distribution strategy."""
    import tensorflow as tf

    return isinstance(iterator, tf.data.Iterator)


def drawn(iterator: Any, most: int) -> list[Any]:
    """The next batches, ``most`` of them or as many as there are.

    Raises:
        StopIteration: There is none.
    """
    batches = [next(iterator)]
    while len(batches) < most:
        try:
            batches.append(next(iterator))
        except StopIteration:
            break
    return batches


def again(batches: list[Any]) -> Any:
    """An iterator of these batches."""
    import tensorflow as tf

    try:
        dataset = tf.data.Dataset.from_tensors(batches[0])
        for batch in batches[1:]:
            dataset = dataset.concatenate(tf.data.Dataset.from_tensors(batch))
        return iter(dataset)
    except Exception:  # what they hold fits no dataset; Keras takes any iterator, and traces anew
        return iter(batches)
