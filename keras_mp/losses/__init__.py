"""Keras' losses under Keras' names, right in half precision: ``keras_mp.losses.Dice``.

The classes compute in float32 whatever ``floatx`` or ``dtype`` half precision is asked for, and
keep class ids as whole numbers: Keras' own make them float32, in which 16,777,217 is 16,777,216.

The functions (``keras_mp.losses.binary_crossentropy``) take half-precision predictions, as a custom
loop or a custom loss has them, and compute in float32. Keras' own compute in the predictions'
dtype: labels are rounded to it, an epsilon of 1e-7 is no float16 number beside 1, squares overflow
above 256, and a mean over more than 65,504 positions is zero or infinite.

Names, arguments, results and configs are Keras' own.
"""

from typing import Any

import keras
from keras import ops

from keras_mp._precision import function_in_float32, in_float32, widest

# Losses whose labels are class ids, and no numbers to compute with.
_IDS = (
    "SparseCategoricalCrossentropy",
    "CategoricalGeneralizedCrossEntropy",
    "Circle",
    "CTC",
)
_BASE = 1 << 16


class Float32Loss(keras.losses.Loss):
    """The part that is ours, mixed into a Keras loss class."""

    def __init__(self, *args: Any, **kwargs: Any):
        args, kwargs = widest(super().__init__, args, kwargs)
        super().__init__(*args, **kwargs)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        y_pred = keras.tree.map_structure(in_float32, y_pred)  # Keras' cast loses the logits
        return super().__call__(y_true, y_pred, sample_weight)


class IdLoss(Float32Loss):
    """One whose labels are ids: they come through Keras' cast to float32 in two exact halves."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        y_true = ops.convert_to_tensor(y_true)
        if not keras.backend.is_int_dtype(keras.backend.standardize_dtype(y_true.dtype)):
            return super().__call__(y_true, y_pred, sample_weight)
        y_true = ops.cast(y_true, "int32")  # a uint8 could not be divided by 2^16
        low = ops.mod(y_true, _BASE)
        high = ops.floor_divide(y_true, _BASE)
        return super().__call__((high, low), y_pred, sample_weight)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        if isinstance(y_true, tuple):
            high, low = (ops.cast(half, "int32") for half in y_true)
            y_true = high * _BASE + low
        return super().call(y_true, y_pred)


def _class(base: type) -> type:
    part = IdLoss if base.__name__ in _IDS else Float32Loss
    made = type(base.__name__, (part, base), {"__module__": __name__, "__doc__": base.__doc__})
    return keras.saving.register_keras_serializable(package="keras_mp.losses")(made)


_OTHER = ("Loss", "deserialize", "get", "serialize")
__all__ = sorted(name for name in dir(keras.losses) if name[0] != "_" and name not in _OTHER)
for _name in __all__:
    _stock = getattr(keras.losses, _name)
    globals()[_name] = (
        _class(_stock) if isinstance(_stock, type) else function_in_float32(_stock, __name__)
    )
