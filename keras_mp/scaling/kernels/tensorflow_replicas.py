"""tensorflow under a distribution strategy: all replicas decide alike, and then act.

Keras sums gradients over the replicas inside the optimizer, after whoever wraps it has looked at
them. A replica that looks only at its own gradients would apply the sum with another's overflow in
it: so the flags are summed first, and everybody acts on the sum.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_mp.scaling.kernels.tensorflow_graph import in_xla


def replicas() -> int:
    """How many replicas the strategy in force has; 0 without one, or with one of a single device,
    where nobody has to agree and everything works as without."""
    strategy = tf.distribute.get_strategy()
    if not tf.distribute.has_strategy() or isinstance(strategy, tf.distribute.OneDeviceStrategy):
        return 0
    return int(strategy.num_replicas_in_sync)


def check_context(inner: Any, model: Any) -> None:
    """Refuse what Keras' optimizers cannot do under a strategy, wrapped or not.

    Args:
        inner: The Keras optimizer. model: The bound one, or None.

    Raises:
        ValueError: With what to do instead.
    """
    if tf.distribute.in_cross_replica_context():
        raise ValueError(
            "`apply` must be called for each replica, inside `strategy.run(fn)`. "
            "Received: a call in the strategy's cross-replica context"
        )
    if merges():
        name = type(tf.distribute.get_strategy()).__name__
        if in_xla():
            raise ValueError(
                f"{name} on this device cannot train with jit_compile=True, with or without loss "
                "scaling: replicas cannot meet inside XLA. Use model.compile(jit_compile=False)."
            )
        steps = getattr(model, "steps_per_execution", 1)
        if steps != 1:
            raise ValueError(
                f"Keras cannot use `steps_per_execution` under {name} on tensorflow, with or "
                "without loss scaling: replicas cannot meet inside its loop. Remove it. "
                f"Received: steps_per_execution={steps!r}"
            )
        for option in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
            value = getattr(inner, option, None)
            if value:
                raise ValueError(
                    f"Keras cannot use `{option}` under {name} on tensorflow, with or without "
                    "loss scaling: replicas cannot meet inside its conditional. Remove it. "
                    f"Received: {option}={value!r}"
                )


def merges() -> bool:
    """Whether replicas run as threads that must meet to update a variable."""
    return not tf.__internal__.distribute.strategy_supports_no_merge_call()


def meets_here() -> bool:
    """Whether all replicas meet in this process. They need no collective operation then: a further
    one would part the order of TensorFlow's from that of a plain optimizer, and a process that
    trains with one after the other would mix them up."""
    return merges() and isinstance(tf.distribute.get_strategy(), tf.distribute.MirroredStrategy)


def agreed(*parts: Any) -> list[Any]:
    """Sums over all replicas, once ``summed`` was called; one reduction at the most.

    In the context of a replica.

    Args:
        parts: Of this replica: a tensor of any shape and dtype each, or None.

    Returns:
        Each part's sum, float32, of the same shape; None for None.
    """
    there = [tf.cast(part, tf.float32) for part in parts if part is not None]
    message = tf.concat([tf.reshape(part, [-1]) for part in there], 0)
    if not meets_here():
        context = tf.distribute.get_replica_context()
        message = context.all_reduce(tf.distribute.ReduceOp.SUM, message)
    pieces = iter(tf.split(message, [part.shape.num_elements() for part in there]))
    shapes = [None if part is None else part.shape for part in parts]
    return [None if shape is None else tf.reshape(next(pieces), shape) for shape in shapes]


def together(fn: Callable[..., None], **per_replica: Any) -> None:
    """Call ``fn`` once for all replicas, in the cross-replica context, where a conditional may
    hold updates; or for each replica, where the strategy wants that."""
    if not merges():
        fn(**per_replica)
        return
    tf.distribute.get_replica_context().merge_call(
        lambda strategy, **values: fn(**values), kwargs=per_replica
    )


def on_each_replica(fn: Callable[..., None], *args: Any) -> None:
    """Inside ``together``: call ``fn`` for each replica with its own part of ``args``."""
    if tf.distribute.in_cross_replica_context():
        strategy = tf.distribute.get_strategy()
        strategy.extended.call_for_each_replica(fn, args=args)
    else:
        fn(*args)


def summed(value: Any) -> Any:
    """What ``agreed`` gave, over all replicas. Inside ``together``."""
    if meets_here():
        return tf.add_n(tf.distribute.get_strategy().experimental_local_results(value))
    return first_replica(value)


def first_replica(value: Any) -> Any:
    """The first replica's part of a value, in the cross-replica context; else the value."""
    if tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context():
        return tf.distribute.get_strategy().experimental_local_results(value)[0]
    return value


def assign(variable: Any, value: Any) -> None:
    """Give a variable a value on every replica, from outside of them or without a strategy."""
    update(variable, lambda v, x: v.assign(x), value)


def update(variable: Any, fn: Callable[..., Any], *args: Any) -> None:
    """fn(variable, *args), on every replica that has a copy of the variable."""
    strategy = tf.distribute.get_strategy()
    outside = tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context()
    if outside and isinstance(variable, tf.distribute.DistributedValues):
        strategy.extended.update(variable, fn, args=args, group=False)
    else:
        fn(variable, *args)
