"""tensorflow: Adam, AdamW and SGD in a few operators a variable, with Keras' formulas and slots.

Keras writes an update in a dozen operators a variable. TensorFlow's own training operators have
the same formulas (their epsilon stands where Keras' does), and what does not depend on the variable
is computed once. Under XLA, which fuses operators itself but copies every variable around a
conditional, the formula is written out and a skipped step is a selection.

Keras' slots are used, so checkpoints are those of the plain optimizer.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_mp import _keras_internals

_OPTIONS = (
    "clipnorm",
    "global_clipnorm",
    "clipvalue",
    "gradient_accumulation_steps",
    "use_ema",
    "amsgrad",
)


def fused_update_for(inner: Any) -> "FusedUpdate | None":
    """The fused update for an optimizer, or None where there is none or Keras has changed."""
    kinds: dict[type, type[FusedUpdate]] = {
        keras.optimizers.Adam: FusedAdam,
        keras.optimizers.AdamW: FusedAdam,
        keras.optimizers.SGD: FusedSGD,
    }
    kind = kinds.get(type(inner))  # a subclass may have another rule
    try:
        return None if kind is None else kind(inner)
    except AttributeError:
        return None


class FusedUpdate:
    """One step of an optimizer on unscaled gradients.

    Args:
        inner: The built Keras optimizer.
    """

    def __init__(self, inner: Any):
        self.inner = inner

    def allows(self, grads: list[Any], variables: list[Any]) -> bool:
        """Whether this step, with the optimizer's present options, is one that is fused."""
        return not any(getattr(self.inner, option, None) for option in _OPTIONS) and all(
            isinstance(g, tf.Tensor | tf.IndexedSlices)
            and g.dtype == tf.float32
            and keras.backend.standardize_dtype(v.dtype) == "float32"
            and getattr(v, "constraint", None) is None
            and not getattr(v, "overwrite_with_gradient", False)
            for g, v in zip(grads, variables, strict=True)
        )

    def dense(self, grads: list[Any]) -> bool:
        """Whether ``select`` can take these gradients."""
        return not any(isinstance(g, tf.IndexedSlices) for g in grads)

    def apply(self, grads: list[Any], variables: list[Any]) -> None:
        """Update the variables, the slots and the iteration.

        Squares of the gradients must be finite: Adam's operator would make a NaN of an infinite
        one, where Keras' formula makes a zero step.
        """
        rate, decay = self._rates()
        shared = self._shared(rate)
        for grad, variable in zip(grads, variables, strict=True):
            if decay is not None and _keras_internals.uses_weight_decay(self.inner, variable):
                value = _native(variable)
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=value.handle, alpha=decay, delta=value.read_value()
                )
            if isinstance(grad, tf.IndexedSlices):
                self.inner.update_step(grad, _native(variable), rate)
            else:
                self._update(grad, variable, shared)
        self.inner.iterations.assign_add(1)

    def select(self, grads: list[Any], variables: list[Any], finite: Any) -> None:
        """The same, where ``finite`` (bool, shape ()); else nothing, bit for bit. All dense.

        Each new value is selected before it is used further: were an unselected one used too, XLA
        would keep both and copy (twice the time, measured).
        """
        rate, decay = self._rates()
        shared = self._shared(rate)

        def keep(new: Any, old: Any) -> Any:
            return tf.where(finite, new, old)

        for grad, variable in zip(grads, variables, strict=True):
            value = _native(variable)
            old = new = value.read_value()
            if decay is not None and _keras_internals.uses_weight_decay(self.inner, variable):
                new = old - old * decay
            value.assign(keep(self._formula(grad, variable, new, shared, keep), old))
        iterations = self.inner.iterations
        iterations.assign_add(tf.cast(finite, iterations.dtype))

    def _rates(self) -> tuple[Any, Any]:
        """(learning rate, learning rate times weight decay or None); float32, shape ()."""
        rate = tf.cast(tf.convert_to_tensor(self.inner.learning_rate), tf.float32)
        decay = self.inner.weight_decay
        return rate, None if decay is None else rate * tf.cast(decay, tf.float32)

    def _index(self, variable: Any) -> int:
        return self.inner._get_variable_index(variable)

    def _shared(self, rate: Any) -> Any:
        raise NotImplementedError

    def _update(self, grad: Any, variable: Any, shared: Any) -> None:
        raise NotImplementedError

    def _formula(
        self, grad: Any, variable: Any, value: Any, shared: Any, keep: Callable[[Any, Any], Any]
    ) -> Any:
        """The variable's new value; slots are assigned."""
        raise NotImplementedError


class FusedAdam(FusedUpdate):
    def __init__(self, inner: Any):
        super().__init__(inner)
        self.momentums, self.velocities = _keras_internals.adam_slots(inner)

    def _shared(self, rate: Any) -> Any:
        step = tf.cast(tf.convert_to_tensor(self.inner.iterations) + 1, tf.float32)
        return rate, tf.pow(self.inner.beta_1, step), tf.pow(self.inner.beta_2, step)

    def _update(self, grad: Any, variable: Any, shared: Any) -> None:
        rate, beta_1_power, beta_2_power = shared
        index = self._index(variable)
        velocity = _native(self.velocities[index])
        # The operator would take 1 - beta_2 in float32, where 1 - 0.999 is off by 1.3e-5. So the
        # velocity moves by itself, and the operator, told that beta_2 is 1, leaves it alone.
        tf.raw_ops.ResourceApplyGradientDescent(
            var=velocity.handle,
            alpha=self.inner.beta_2 - 1.0,
            delta=tf.square(grad) - velocity.read_value(),
        )
        tf.raw_ops.ResourceApplyAdam(
            var=_native(variable).handle,
            m=_native(self.momentums[index]).handle,
            v=velocity.handle,
            beta1_power=beta_1_power,
            beta2_power=beta_2_power,
            lr=rate,
            beta1=self.inner.beta_1,
            beta2=1.0,
            epsilon=self.inner.epsilon,
            grad=grad,
        )

    def _formula(self, grad: Any, variable: Any, value: Any, shared: Any, keep: Any) -> Any:
        rate, beta_1_power, beta_2_power = shared
        alpha = rate * tf.sqrt(1 - beta_2_power) / (1 - beta_1_power)
        index = self._index(variable)
        m, v = _native(self.momentums[index]), _native(self.velocities[index])
        old_m, old_v = m.read_value(), v.read_value()
        new_m = keep(old_m + (grad - old_m) * (1 - self.inner.beta_1), old_m)
        new_v = keep(old_v + (tf.square(grad) - old_v) * (1 - self.inner.beta_2), old_v)
        m.assign(new_m)
        v.assign(new_v)
        return value - new_m * alpha / (tf.sqrt(new_v) + self.inner.epsilon)


class FusedSGD(FusedUpdate):
    def __init__(self, inner: Any):
        super().__init__(inner)
        self.momentums = _keras_internals.sgd_slots(inner)

    def _shared(self, rate: Any) -> Any:
        return rate

    def _update(self, grad: Any, variable: Any, shared: Any) -> None:
        if not self.momentums:
            tf.raw_ops.ResourceApplyGradientDescent(
                var=_native(variable).handle, alpha=shared, delta=grad
            )
            return
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=_native(variable).handle,
            accum=_native(self.momentums[self._index(variable)]).handle,
            lr=shared,
            grad=grad,
            momentum=self.inner.momentum,
            use_nesterov=self.inner.nesterov,
        )

    def _formula(self, grad: Any, variable: Any, value: Any, shared: Any, keep: Any) -> Any:
        if not self.momentums:
            return value - grad * shared
        momentum = _native(self.momentums[self._index(variable)])
        old = momentum.read_value()
        new = keep(old * self.inner.momentum - grad * shared, old)
        momentum.assign(new)
        return value + (new * self.inner.momentum - grad * shared if self.inner.nesterov else new)


def _native(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable
