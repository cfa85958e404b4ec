"""Keras' metrics under Keras' names, right in half precision: ``keras_mp.metrics.Accuracy``.

Three things differ from the class of that name in ``keras.metrics``:

- a batch whose predictions, labels or sample weights are not finite (a step that a loss scale
  optimizer skips) is left out, and counted in ``nonfinite_batches``;
- half-precision predictions are compared in float32, so that class labels beyond 2,048 are not
  rounded to the precision of the predictions;
- sums are kept in float32.

Every metric class of ``keras.metrics`` has its counterpart, and every function
(``keras_mp.metrics.sparse_categorical_accuracy``), which compares in float32 likewise; arguments,
results and configs are Keras' own.
"""

from typing import Any

import keras
from keras import ops

from keras_mp._keras_internals import carry_notes
from keras_mp._precision import function_in_float32, in_float32, widest


class FiniteMetric(keras.metrics.Metric):
    """The part that is ours, mixed into a Keras metric class."""

    def __init__(self, *args: Any, **kwargs: Any):
        args, kwargs = widest(super().__init__, args, kwargs)
        super().__init__(*args, **kwargs)
        self.nonfinite = self.add_variable(
            shape=(), initializer="zeros", dtype="int32", name="nonfinite"
        )

    @property
    def nonfinite_batches(self) -> int:
        """Batches left out since the last ``reset_state``. Reads the device."""
        return int(ops.convert_to_numpy(self.nonfinite))

    def reset_state(self) -> None:
        super().reset_state()
        self.nonfinite.assign(0)  # Mean and others reset only the variables that they know

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Update from a batch, or count it where it is not finite."""
        flags: list[Any] = []
        args = tuple(_usable(a, flags) for a in args)
        kwargs = {name: _usable(a, flags) for name, a in kwargs.items()}
        finite = ops.all(ops.stack(flags)) if flags else True
        before = {id(v): ops.copy(v.value) for v in self.variables}
        super().update_state(*args, **kwargs)
        for variable in self.variables:
            if variable is not self.nonfinite:
                # Some metrics make their variables at the first update, of zeros.
                old = before.get(id(variable), 0)
                variable.assign(ops.where(finite, variable.value, ops.cast(old, variable.dtype)))
        self.nonfinite.assign(self.nonfinite + ops.cast(ops.logical_not(finite), "int32"))


def _usable(value: Any, flags: list[Any]) -> Any:
    """A tensor, in float32 where it was in half precision, without what is not finite.

    Such a batch does not count, but the metric sees it, and some refuse a NaN aloud.

    Args:
        flags: Gets whether the tensor was finite (bool, shape ()), if it is floating.
    """
    if value is None:
        return None
    value = in_float32(ops.convert_to_tensor(value))
    if not keras.backend.is_float_dtype(keras.backend.standardize_dtype(value.dtype)):
        return value
    finite = ops.isfinite(value)
    flags.append(ops.all(finite))
    return carry_notes(value, ops.where(finite, value, ops.zeros_like(value)))


def _counterpart(base: type) -> type:
    made = type(
        base.__name__, (FiniteMetric, base), {"__module__": __name__, "__doc__": base.__doc__}
    )
    return keras.saving.register_keras_serializable(package="keras_mp.metrics")(made)


# All of them at once: a model's file names the class, and may be read before the class was used.
_OTHER = ("Metric", "deserialize", "get", "serialize")
__all__ = sorted(name for name in dir(keras.metrics) if name[0] != "_" and name not in _OTHER)
for _name in __all__:
    _stock = getattr(keras.metrics, _name)
    globals()[_name] = (
        _counterpart(_stock) if isinstance(_stock, type) else function_in_float32(_stock, __name__)
    )
