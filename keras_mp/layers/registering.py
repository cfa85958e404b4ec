"""How a layer of ours is known to Keras' files, under Keras' own name."""

from typing import TypeVar

import keras

Class = TypeVar("Class", bound=type)


def registered(made: Class) -> Class:
    """Class decorator: a file names it "keras_mp.layers>Name"."""
    return keras.saving.register_keras_serializable(package="keras_mp.layers")(made)
