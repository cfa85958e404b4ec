"""The few private reads of Keras, one function each: why, and what happens when Keras changes it.

Each has a test in ``tests/keras_mp/test_keras_internals.py`` that fails when Keras does.
"""

from typing import Any


def adam_slots(optimizer: Any) -> tuple[list[Any], list[Any]]:
    """Adam's momentums and velocities, one variable each a trainable variable.

    Public is only the flat ``optimizer.variables``. Without it the fused update cannot be built,
    and the general kernel takes its place.
    """
    return optimizer._momentums, optimizer._velocities


def sgd_slots(optimizer: Any) -> list[Any]:
    """SGD's velocities (an empty list without momentum). As ``adam_slots``."""
    return optimizer.momentums


def uses_weight_decay(optimizer: Any, variable: Any) -> bool:
    """Whether ``exclude_from_weight_decay`` spares a variable; Keras keeps the answer private.

    Without it the fused update cannot be built, and the general kernel takes its place.
    """
    return optimizer._use_weight_decay(variable)


def raw_iterations(optimizer: Any) -> Any:
    """The variable that counts applied micro-batches.

    The public ``iterations`` is divided by ``gradient_accumulation_steps`` and no variable then.
    """
    return optimizer._iterations


def flatten_layers(model: Any) -> list[Any]:
    """Every layer under a model, the model itself included, however they are nested.

    The public ``layers`` holds only the direct ones of functional models. Without it layers inside
    layers would be overlooked.
    """
    return list(model._flatten_layers(include_self=True, recursive=True))


def share_weight_decay(optimizer: Any, variable: Any, master: Any) -> None:
    """Spare a master from weight decay where its variable is spared.

    ``exclude_from_weight_decay`` notes variables by identity, in a private set, before the masters
    exist. Without it the masters of excluded variables would decay.
    """
    for one in [optimizer, *getattr(optimizer, "optimizers", [])]:
        spared = getattr(one, "_exclude_from_weight_decay", None)
        if spared and one._var_key(variable) in spared:
            spared.add(one._var_key(master))
