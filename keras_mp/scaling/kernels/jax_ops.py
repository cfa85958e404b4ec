"""The pure functions of the jax kernel."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_mp.scaling.device_state import APPLIED, SKIPPED, Values, advance, ring_row
from keras_mp.scaling.ring import StepRow
from keras_mp.scaling.state import COUNTER_MAX, ScaleConfig

HOW_OFTEN, FIRST, LAST, LOSS_FINITE = range(4)  # the rows of the overflow counts
LARGEST = np.finfo(np.float32).max


def overflowed(step: Any, nonfinite: Iterable[Any], loss_finite: bool | None) -> StepRow:
    """What is known of a skipped step that the ring may not hold any more."""
    unknown = float("nan")
    return StepRow(
        step=int(step),
        scale=unknown,
        next_scale=unknown,
        finite=False,
        loss=None,
        loss_finite=loss_finite,
        good_steps=0,
        grad_norm=None,
        nonfinite=tuple(int(i) for i in nonfinite),
    )


def choose(finite: Any, step: Callable[[], Any], skip: Callable[[], Any]) -> Any:
    """``step()`` or ``skip()``: by Python where ``finite`` is known, else by one cond."""
    if isinstance(finite, jax.core.Tracer):
        return jax.lax.cond(finite, step, skip)
    return step() if finite else skip()


@partial(jax.jit, static_argnames=("overwrites", "halves", "with_norms"))
def unscale_and_check(
    grads: list[Any],
    scale: Any,
    overwrites: tuple[bool, ...],
    halves: tuple[str | None, ...],
    with_norms: bool,
) -> tuple[list[Any], Any, Any]:
    """Gradients divided by the scale, and what is known of them.

    Args:
        grads: Gradients of the scaled loss, or None. scale: float32, shape ().
        overwrites: Whether the variable takes its gradient as its value (float8's scales): such a
            gradient was never scaled.
        halves: The dtype of a half-precision variable, which has no master; else None.
        with_norms: Whether to measure norms.

    Returns:
        (unscaled gradients, in float32 or wider where ``halves`` says nothing else; bool [n]
        whether all of a gradient is finite; float32 [n] norms of the scaled gradients, NaN where
        not finite; or None).
    """
    # Division and not the product with the reciprocal: right for any scale.
    wide = [None if g is None else g.astype(jnp.promote_types(g.dtype, jnp.float32)) for g in grads]
    unscaled = [
        g if g is None or overwrite else (g / scale).astype(half or g.dtype)
        for g, overwrite, half in zip(wide, overwrites, halves, strict=True)
    ]
    # After the division: a scale below 1 makes them larger. And one by one, not by their norm: the
    # squares of large finite numbers overflow.
    flags = jnp.stack([jnp.array(True) if g is None else jnp.isfinite(g).all() for g in unscaled])
    if not with_norms:
        return unscaled, flags, None
    squares = [jnp.zeros(()) if g is None else jnp.sum(jnp.square(g)) for g in wide]
    norms = jnp.sqrt(jnp.stack([s.astype(jnp.float32) for s in squares]))
    return unscaled, flags, jnp.where(flags, jnp.minimum(norms, LARGEST), jnp.nan)


@partial(jax.jit, static_argnames=("config",))
def record(
    before: Values,
    flags: Any,
    norms: Any,
    loss: Any,
    updated: Any,
    counts: Any,
    ring: Any,
    config: ScaleConfig,
) -> tuple[Values, Any, Any]:
    """The scale's next state, and the step in the counts and the ring (None stays None)."""
    finite = jnp.all(flags)
    after = advance(before, finite, updated, config)
    step = after.counters[SKIPPED] + after.counters[APPLIED]
    if counts is not None:
        bad = jnp.logical_not(flags)
        seen = jnp.int32(-1) if loss is None else jnp.isfinite(loss).astype("int32")
        often = counts[HOW_OFTEN]
        counts = jnp.stack(
            [
                jnp.where(jnp.logical_and(bad, often < COUNTER_MAX), often + 1, often),
                jnp.where(jnp.logical_and(bad, often == 0), step, counts[FIRST]),
                jnp.where(bad, step, counts[LAST]),
                jnp.where(bad, seen, counts[LOSS_FINITE]),
            ]
        )
    if ring is not None:
        ring = ring.at[step % ring.shape[0]].set(ring_row(before, after, finite, loss, norms))
    return after, counts, ring
