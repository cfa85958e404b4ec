"""tensorflow: unscale, agree, then one conditional; eager, graph, XLA and strategies.

The fused update where it can (``tensorflow_fused``), any Keras optimizer where not.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_mp import _keras_internals
from keras_mp.scaling.attribution import layer_path, path_of
from keras_mp.scaling.device_state import APPLIED, SKIPPED, Values
from keras_mp.scaling.kernels import tensorflow_check as check
from keras_mp.scaling.kernels import tensorflow_replicas as strategies
from keras_mp.scaling.kernels.common import Kernel
from keras_mp.scaling.kernels.tensorflow_control import either, in_python
from keras_mp.scaling.kernels.tensorflow_forward import (
    Output,
    SeenLoss,
    code_of,
    layer_outputs,
    where_not_finite,
)
from keras_mp.scaling.kernels.tensorflow_fused import fused_update_for
from keras_mp.scaling.kernels.tensorflow_graph import (
    belongs_here,
    captured,
    in_xla,
    inspect_graph,
)
from keras_mp.scaling.kernels.tensorflow_guard import LossGuard, TensorFlowGuard
from keras_mp.scaling.kernels.tensorflow_log import TensorFlowLog
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
        self.half: bool | None = None  # float16 was seen in some loss' graph
        self.learnt: Any = None  # (loss, distances), until the optimizer is told
        self.headroom_every = 0
        self.largest: Any = None
        self.told = TensorFlowTold(self)
        self.bind_after: Any = None  # the graph in whose trace binding had to wait
        self.thread = threading.local()  # replicas are traced in threads of their own

    def is_tracing(self) -> bool:
        return not tf.executing_eagerly()

    # The loss.

    @tf.autograph.experimental.do_not_convert
    def scale_loss(self, loss: Any) -> Any:
        loss = tf.convert_to_tensor(loss)
        outputs = self._inspect(loss) if tf.is_symbolic_tensor(loss) else []
        if not strategies.replicas():
            self._tell_optimizer()
        # The gradients of a loss that is no scalar are those of its sum.
        seen = loss if loss.shape.rank == 0 else tf.reduce_sum(loss)
        self.thread.loss = SeenLoss(seen)
        if outputs:
            places = [self.place_of(o.layer) for o in outputs]
            self.thread.loss = SeenLoss(seen, where_not_finite(seen, outputs), places)
        if self.loss_guard is not None:
            count = max(strategies.replicas(), 1)
            self.loss_guard.settle(self.binding.loss_trackers(), seen * tf.cast(count, seen.dtype))
        return loss * tf.cast(tf.convert_to_tensor(self.state.scale), loss.dtype)

    def _inspect(self, loss: Any) -> list[Output]:
        """Learn what the loss' graph tells; returns the outputs of the layers in it."""
        variables = [getattr(v, "value", v) for v in self.optimizer._trainable_variables]
        seen = inspect_graph(loss, variables)
        self.learnt = loss, seen.distances
        # A loss without float16 beside one with it: the scale is for both.
        self.half = self.half or seen.half
        if not self.optimizer.attribution:
            return []
        paths = self.optimizer.variable_paths
        binding = self.optimizer._binding
        model = None if binding is None else binding.model
        layers = [] if model is None else map(path_of, _keras_internals.flatten_layers(model))
        inside = captured(loss.graph, variables)
        return layer_outputs(
            seen.ops,
            list(layers) or [layer_path(path) for path in paths],
            {id(tensor): paths[i] for i, tensor in inside.items()},
        )

    def _tell_optimizer(self) -> None:
        """Hand on what the loss' graph told; under a strategy not from inside a replica."""
        self._bind_late()
        if self.learnt is None:
            return
        loss, distances = self.learnt
        self.learnt = None
        # A loss of another function was scaled before: gradients of it may be on their way here,
        # and the scale must stay what it was for them.
        half = self.half if belongs_here(loss) else None
        with tf.init_scope():
            self.optimizer._saw_graph(half, distances)

    def _take_loss(self) -> SeenLoss | None:
        loss = getattr(self.thread, "loss", None)
        self.thread.loss = None
        return loss if loss is not None and belongs_here(loss.value) else None

    # The step.

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: list[Any], variables: list[Any]) -> None:
        if all(g is None for g in grads):
            self.inner.apply(grads, variables)  # has the words for it
            return
        if strategies.replicas():
            self._apply_on_replicas(grads, variables)
        else:
            self._apply(grads, variables)

    def _apply(self, grads: list[Any], variables: list[Any]) -> None:
        self._tell_optimizer()
        before = self._values()
        updated = self.is_update(_keras_internals.raw_iterations(self.inner))
        inverse = 1.0 / before.scale
        places = self._places(grads, variables)
        fused = self.fused
        if fused is not None and not fused.allows(grads, variables):
            fused = None
        old = [] if self.guard is None else self.guard.before()
        loss = self._take_loss()
        if self.headroom_every:
            self._measure(before, [g for g in grads if g is not None], places)

        def skip(flags: Any) -> None:
            self._skip(before, self._spread(tf.logical_not(flags), places, False), loss, old)

        if fused is not None and not in_xla():
            norms, flags = self._fused_conditional(fused, grads, variables, inverse, skip)
            finite = tf.reduce_all(flags)
        else:
            unscaled = check.unscale(grads, variables, inverse)
            flags, norms = check.finite_and_norms([g for g in unscaled if g is not None])
            finite = tf.reduce_all(flags)
            general = fused is None or not fused.dense(unscaled)
            if fused is not None and not general:
                fused.select(unscaled, variables, finite)

            def step() -> None:
                if general:
                    self.inner.apply(unscaled, variables)
                self._keep()

            either(finite, step, lambda: skip(flags))
        self._finish(
            before,
            finite,
            updated,
            loss,
            None if norms is None else self._spread(norms, places, 0.0),
            self._spread(tf.logical_not(flags), places, False),
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
            self._keep()
            return tf.ones([len(grads)], tf.bool)

        def careful() -> Any:
            flags = check.finite_flags(unscaled)

            def step() -> None:
                in_python(self.inner.apply, unscaled, variables)
                self._keep()

            either(tf.reduce_all(flags), step, lambda: skip(flags))
            return flags

        return norms, tf.cond(quick, fast, careful)

    def _apply_on_replicas(self, grads: list[Any], variables: list[Any]) -> None:
        strategies.check_context(self.inner)
        inverse = 1.0 / tf.convert_to_tensor(self.state.scale)
        unscaled = check.unscale(grads, variables, inverse)
        present = [g for g in unscaled if g is not None]
        # The sum over replicas of finite gradients must be finite too.
        flags = check.finite_flags(present, strategies.replicas())
        seen = self._take_loss() or SeenLoss(None)
        bad, loss, forward = strategies.agreed(tf.logical_not(flags), seen.value, seen.flags)
        places = self._places(grads, variables)

        def all_together(unscaled: list[Any], bad: Any, loss: Any, forward: Any) -> None:
            self._tell_optimizer()
            nonfinite = strategies.summed(bad) > 0
            nonfinite = self._spread(nonfinite, places, False)
            finite = tf.logical_not(tf.reduce_any(nonfinite))
            before = self._values()
            updated = self.is_update(_keras_internals.raw_iterations(self.inner))
            old = [] if self.guard is None else self.guard.before()

            def step() -> None:
                strategies.on_each_replica(self.inner.apply, unscaled, variables)
                self._keep()

            all_seen = None
            if loss is not None:
                where = None if forward is None else strategies.summed(forward) > 0
                all_seen = SeenLoss(strategies.summed(loss), where, seen.places)
            either(finite, step, lambda: self._skip(before, nonfinite, all_seen, old))
            self._finish(before, finite, updated, all_seen, None, nonfinite)

        strategies.together(all_together, unscaled=unscaled, bad=bad, loss=loss, forward=forward)

    def _values(self) -> Values:
        """The state as tensors: a strategy's variables would be read only where they are used."""
        variables = [strategies.first_replica(v.value) for v in self.state.variables]
        return Values(*(tf.identity(v) for v in variables))

    def _keep(self) -> None:
        if self.guard is not None:
            self.guard.keep()

    def _skip(self, before: Values, nonfinite: Any, loss: SeenLoss | None, old: list[Any]) -> None:
        if self.guard is not None:
            self.guard.restore(old)
        self.log.count(nonfinite, before, code_of(loss))

    def _finish(
        self,
        before: Values,
        finite: Any,
        updated: Any,
        loss: SeenLoss | None,
        norms: Any,
        nonfinite: Any,
    ) -> None:
        after = self.advance(before, finite, updated)
        seen, value = code_of(loss), None if loss is None else loss.value
        self.log.write(before, after, finite, value, seen, norms, nonfinite)
        for variable, value in zip(self.state.variables, after, strict=True):
            if value is not before.limits:
                strategies.assign(variable.value, value)
        if not in_xla():
            after = self._values()  # once more: what is said comes after the state was written
            self.told.from_graph(before, after, seen, nonfinite)

    def _places(self, grads: list[Any], variables: list[Any]) -> list[int]:
        """Position among the optimizer's variables of each gradient that there is."""
        index = self.optimizer._get_variable_index
        return [index(v) for g, v in zip(grads, variables, strict=True) if g is not None]

    def _spread(self, values: Any, places: list[int], default: Any) -> Any:
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

    def _bind_late(self) -> None:
        if self.bind_after not in (None, tf.compat.v1.get_default_graph()):
            self.bind_after = None
            with tf.init_scope():
                self.optimizer._take_binding()

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
        """On several replicas nothing is measured: each has other gradients."""
        self.headroom_every = every
        if self.largest is None:
            with tf.init_scope():
                self.largest = tf.Variable(tf.fill([self.count], np.float32("nan")), False)

    def largest_gradients(self) -> np.ndarray | None:
        return None if self.largest is None else self.largest.numpy()

    def _measure(self, before: Values, grads: list[Any], places: list[int]) -> None:
        step = before.counters[SKIPPED] + before.counters[APPLIED] + 1

        def measure() -> None:
            dense = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]
            sizes = [tf.reduce_max(tf.abs(tf.cast(g, "float32"))) for g in dense]
            self.largest.assign(self._spread(tf.stack(sizes), places, 0.0))

        either(tf.equal(step % self.headroom_every, 0), measure, lambda: None)

    def look(self) -> None:
        self.told.look()
