"""tensorflow: assignments from one variable to another, on every replica of a strategy."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


def assign_all(updates: list[tuple[Any, Any, Callable[[Any, Any], Any]]]) -> None:
    """variable.assign(compute(variable, source)), for each (variable, source, compute).

    In a replica's context a mirrored variable can be assigned only through the strategy, as Keras'
    optimizers do it.
    """
    native = [
        (_native(variable), _native(source), compute) for variable, source, compute in updates
    ]
    if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context():
        for variable, source, compute in native:
            variable.assign(compute(variable, source))
        return

    def on_each_replica(strategy: Any) -> None:
        for variable, source, compute in native:
            strategy.extended.update(
                variable,
                lambda v, s, compute: v.assign(compute(v, s)),
                args=(source,),
                kwargs={"compute": compute},
                group=False,
            )

    tf.__internal__.distribute.interim.maybe_merge_call(
        on_each_replica, tf.distribute.get_strategy()
    )


def _native(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable
