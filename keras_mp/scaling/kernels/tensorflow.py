"""tensorflow: unscale, agree, then one conditional; eager, graph, XLA and strategies.

The fused update where it can (``tensorflow_fused``), any Keras optimizer where not.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from keras_mp import _keras_internals
from keras_mp.scaling import checkpoint
from keras_mp.scaling.device_state import Values
from keras_mp.scaling.kernels import tensorflow_check as check
from keras_mp.scaling.kernels import tensorflow_replicas as strategies
from keras_mp.scaling.kernels.common import Kernel
from keras_mp.scaling.kernels.tensorflow_control import either, in_python
from keras_mp.scaling.kernels.tensorflow_forward import code_of
from keras_mp.scaling.kernels.tensorflow_fused import fused_update_for
from keras_mp.scaling.kernels.tensorflow_graph import in_xla
from keras_mp.scaling.kernels.tensorflow_guard import LossGuard, TensorFlowGuard
from keras_mp.scaling.kernels.tensorflow_headroom import TensorFlowHeadroom
from keras_mp.scaling.kernels.tensorflow_log import TensorFlowLog
from keras_mp.scaling.kernels.tensorflow_loss import TensorFlowLoss
from keras_mp.scaling.kernels.tensorflow_replicated import apply_on_replicas
from keras_mp.scaling.kernels.tensorflow_told import TensorFlowTold


class TensorFlowKernel(Kernel):
    """See the module.

    Attributes:
        fused: The fused update, or None. Tests set it to None to force the general way.
    """

    def __init__(self, optimizer: Any):
        super().__init__(optimizer)
        self.count = len(optimizer._trainable_variables)
        self.fused = fused_update_for(self.inner)
        self.log = TensorFlowLog(self.count, optimizer.attribution)
        self.guard: TensorFlowGuard | None = None
        self.loss_guard: LossGuard | None = None
        self.binding: Any = None
        self.losses = TensorFlowLoss(self)
        self.headroom = TensorFlowHeadroom()
        self.told = TensorFlowTold(self)
        self.bind_after: Any = None  # the graph in whose trace binding had to wait

    def is_tracing(self) -> bool:
        return not tf.executing_eagerly()

    # The loss.

    @tf.autograph.experimental.do_not_convert
    def scale_loss(self, loss: Any) -> Any:
        loss = tf.convert_to_tensor(loss)
        seen = self.losses.see(loss)
        if self.loss_guard is not None:
            count = max(strategies.replicas(), 1)
            self.loss_guard.settle(self.binding.loss_trackers(), seen * tf.cast(count, seen.dtype))
        return loss * tf.cast(tf.convert_to_tensor(self.state.scale), loss.dtype)

    # The step.

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: list[Any], variables: list[Any]) -> None:
        if all(g is None for g in grads):
            self.inner.apply(grads, variables)  # has the words for it
            return
        if strategies.replicas():
            apply_on_replicas(self, grads, variables)
        else:
            self._apply(grads, variables)

    def _apply(self, grads: list[Any], variables: list[Any]) -> None:
        self.losses.tell_optimizer()
        before = self.values()
        updated = self.is_update(_keras_internals.raw_iterations(self.inner))
        inverse = 1.0 / before.scale
        spread = partial(self.spread, self.positions(grads, variables))
        fused = self.fused
        if fused is not None and not fused.allows(grads, variables):
            fused = None
        old = [] if self.guard is None else self.guard.before()
        loss = self.losses.take()
        seen = code_of(loss)
        if self.headroom.every:
            self.headroom.measure(before.counters, check.present(grads), spread)

        def skip(flags: Any) -> None:
            self.skip(before, spread(tf.logical_not(flags), False), seen, old)

        if fused is not None and not in_xla():
            norms, flags = self._fused_conditional(fused, grads, variables, inverse, skip)
            finite = tf.reduce_all(flags)
        else:
            unscaled = check.unscale(grads, variables, inverse)
            flags, norms = check.finite_and_norms(check.present(unscaled))
            finite = tf.reduce_all(flags)
            general = fused is None or not fused.dense(unscaled)
            if fused is not None and not general:
                fused.select(unscaled, variables, finite)

            def step() -> None:
                if general:
                    self.inner.apply(unscaled, variables)
                self.keep()

            either(finite, step, lambda: skip(flags))
        self.finish(
            before,
            finite,
            updated,
            None if loss is None else loss.value,
            seen,
            None if norms is None else spread(norms, 0.0),
            spread(tf.logical_not(flags), False),
        )

    def _fused_conditional(
        self,
        fused: Any,
        grads: list[Any],
        variables: list[Any],
        inverse: Any,
        skip: Callable[[Any], None],
    ) -> tuple[Any, Any]:
        """(norms or None, flags) a gradient, after the step or its absence. Outside XLA.

        If the sum of squares is finite everything is. Else the elements tell; and where they are
        finite after all, a square overflowed, and Keras' own update takes over: in Python, because
        a second update would double the time that tracing takes, for what hardly ever happens.
        """
        unscaled, pieces = check.unscale_together(grads, inverse)
        norms = None
        if self.log.ring is None:
            quick = check.squares_are_finite(pieces)
        else:
            norms, quick = check.norms(unscaled)

        def fast() -> Any:
            fused.apply(unscaled, variables)
            self.keep()
            return tf.ones([len(grads)], tf.bool)

        def careful() -> Any:
            flags = check.finite_flags(unscaled)

            def step() -> None:
                in_python(self.inner.apply, unscaled, variables)
                self.keep()

            either(tf.reduce_all(flags), step, lambda: skip(flags))
            return flags

        return norms, tf.cond(quick, fast, careful)

    def values(self) -> Values:
        """The state as tensors: a strategy's variables would be read only where they are used."""
        variables = [strategies.first_replica(v.value) for v in self.state.variables]
        return Values(*(tf.identity(v) for v in variables))

    def keep(self) -> None:
        if self.guard is not None:
            self.guard.keep()

    def skip(self, before: Values, nonfinite: Any, seen: Any, old: list[Any]) -> None:
        if self.guard is not None:
            self.guard.restore(old)
        self.log.count(nonfinite, before, seen)

    def finish(
        self,
        before: Values,
        finite: Any,
        updated: Any,
        loss: Any,
        seen: Any,
        norms: Any,
        nonfinite: Any,
    ) -> None:
        after = self.advance(before, finite, updated)
        self.log.write(before, after, finite, loss, seen, norms, nonfinite)
        for variable, value in zip(self.state.variables, after, strict=True):
            if value is not before.limits:
                strategies.assign(variable.value, value)
        if not in_xla():
            after = self.values()  # once more: what is said comes after the state was written
            self.told.from_graph(before, after, seen, nonfinite)

    def positions(self, grads: list[Any], variables: list[Any]) -> list[int]:
        """Position among the optimizer's variables of each gradient that there is."""
        index = self.optimizer._get_variable_index
        return [index(v) for g, v in zip(grads, variables, strict=True) if g is not None]

    def spread(self, places: list[int], values: Any, default: Any) -> Any:
        """[gradients] -> [variables]; ``default`` where there is no gradient."""
        if places == list(range(self.count)):
            return values
        base = tf.fill([self.count], tf.cast(default, values.dtype))
        return tf.tensor_scatter_nd_update(base, [[i] for i in places], values)

    def stateless_apply(self, *args: Any) -> Any:
        raise ValueError(
            "stateless_apply is not supported on the tensorflow backend, as by no Keras optimizer "
            "there (its variables are updated in place). Use apply()."
        )

    # A bound model.

    def can_bind(self) -> bool:
        """In the trace that creates the variables they have no values yet; TensorFlow traces a step
        once more after that."""
        if tf.executing_eagerly():
            return True
        self.bind_after = tf.compat.v1.get_default_graph()
        return False

    def bind_late(self) -> None:
        """What had to wait until the variables have values."""
        if self.bind_after not in (None, tf.compat.v1.get_default_graph()):
            self.bind_after = None
            with tf.init_scope():
                self.optimizer._take_binding()
                checkpoint.finish_build(self.optimizer)

    def bind(self, binding: Any, protected: list[Any]) -> None:
        self.binding = binding
        self.guard = TensorFlowGuard(protected) if protected else None
        self.loss_guard = LossGuard()

    def refresh(self) -> None:
        if self.guard is not None:
            self.guard.refresh()

    # What happened.

    def allocate_ring(self, rows: int) -> None:
        self.log.allocate(rows)

    def read_ring(self) -> np.ndarray | None:
        self.look()
        return self.log.read()

    def overflow_counts(self) -> np.ndarray:
        self.look()
        return self.log.read_counts()[0]

    def measure_headroom(self, every: int) -> None:
        self.headroom.start(every, self.count)

    def largest_gradients(self) -> np.ndarray | None:
        return self.headroom.read()

    def look(self) -> None:
        self.told.look()
