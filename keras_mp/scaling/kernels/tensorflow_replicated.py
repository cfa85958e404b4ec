"""tensorflow: the step under a distribution strategy, which all replicas take together."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from keras_mp import _keras_internals
from keras_mp.scaling.kernels import tensorflow_check as check
from keras_mp.scaling.kernels import tensorflow_replicas as strategies
from keras_mp.scaling.kernels.tensorflow_forward import SeenLoss, code_of
from keras_mp.scaling.kernels.tensorflow_summed import SummedNorms


def apply_on_replicas(kernel: Any, grads: list[Any], variables: list[Any]) -> None:
    """``TensorFlowKernel.apply`` in the context of a replica."""
    binding = kernel.optimizer._binding
    strategies.check_context(kernel.inner, None if binding is None else binding.model)
    inverse = 1.0 / tf.convert_to_tensor(kernel.state.scale)
    unscaled = check.unscale(grads, variables, inverse)
    # The sum over replicas of finite gradients must be finite too.
    flags = check.finite_flags(check.present(unscaled), strategies.replicas())
    places = kernel.positions(grads, variables)
    spread = partial(kernel.spread, places)
    mine = kernel.losses.take() or SeenLoss(None)
    sizes = None
    if kernel.headroom.every:
        counters = tf.convert_to_tensor(kernel.state.counters)
        sizes = kernel.headroom.on_replica(counters, check.present(grads))
    parts = (tf.logical_not(flags), mine.value, mine.flags, sizes)
    bad, loss, forward, sizes = strategies.agreed(*parts)

    def all_together(unscaled: list[Any], bad: Any, loss: Any, forward: Any, sizes: Any) -> None:
        kernel.losses.tell_optimizer()
        nonfinite = spread(strategies.summed(bad) > 0, False)
        finite = tf.logical_not(tf.reduce_any(nonfinite))
        before = kernel.values()
        updated = kernel.is_update(_keras_internals.raw_iterations(kernel.inner))
        old = [] if kernel.guard is None else kernel.guard.before()
        value = where = None
        if loss is not None:
            value = strategies.summed(loss)
            where = None if forward is None else strategies.summed(forward) > 0
        seen = code_of(None if value is None else SeenLoss(value, where, mine.places))
        if sizes is not None:
            kernel.headroom.together(before.counters, strategies.summed(sizes), spread)

        def step() -> Any:
            norms = SummedNorms(kernel.inner, kernel.count)
            with norms.watching() if kernel.log.ring is not None else nullcontext():
                strategies.on_each_replica(kernel.inner.apply, unscaled, variables)
            kernel.keep()
            return norms.found(places)

        def skip() -> Any:
            kernel.skip(before, nonfinite, seen, old)
            return tf.fill([kernel.count], np.float32("nan"))

        norms = tf.cond(finite, step, skip)
        kernel.finish(before, finite, updated, value, seen, norms, nonfinite)

    strategies.together(
        all_together, unscaled=unscaled, bad=bad, loss=loss, forward=forward, sizes=sizes
    )
