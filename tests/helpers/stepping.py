"""Drive an optimizer step by step with gradients that are known, on any backend.

Imports Keras: for modules marked ``backend``.
"""

import keras
import numpy as np
from keras import ops

from keras_mp.scaling.state import ScaleState, update

SHAPES = ((3,), (2, 2), (4,))
BACKEND = keras.backend.backend()


def host(value):
    """A variable or tensor as a NumPy array of its own."""
    return np.array(ops.convert_to_numpy(getattr(value, "value", value)))


def make_variables(seed=0, shapes=SHAPES, dtype="float32"):
    rng = np.random.default_rng(seed)
    return [
        keras.Variable(rng.normal(size=shape).astype("float32"), dtype=dtype, name=f"w{i}")
        for i, shape in enumerate(shapes)
    ]


def make_gradients(rng, shapes=SHAPES):
    """True (unscaled) gradients, NumPy float32: few bits, so that scaling them stays exact."""
    return [(rng.integers(-64, 65, size=shape) / 32).astype("float32") for shape in shapes]


def scaled(gradients, scale, bad=None, rng=None):
    """Gradients of the scaled loss as tensors; with ``bad`` one element of one of them is that."""
    out = [np.asarray(g * np.float32(scale), "float32") for g in gradients]
    if bad is not None:
        rng = rng or np.random.default_rng(0)
        target = out[rng.integers(len(out))]
        target.reshape(-1)[rng.integers(target.size)] = bad
    return [ops.convert_to_tensor(g) for g in out]


def snapshot(*variables):
    """The bits of variables: a list of (dtype, bytes)."""
    return [(host(v).dtype, host(v).tobytes()) for v in variables]


def stateless(optimizer, gradients, variables):
    """``apply`` by way of ``stateless_apply`` and assignment."""
    new_variables, new_own = optimizer.stateless_apply(
        [v.value for v in optimizer.variables], gradients, [v.value for v in variables]
    )
    for variable, value in zip(variables, new_variables, strict=True):
        variable.assign(value)
    for variable, value in zip(optimizer.variables, new_own, strict=True):
        variable.assign(value)


def apply(optimizer, gradients, variables=None):
    """``apply`` as a loop calls it: after ``scale_loss``, whose loss plays no part here."""
    optimizer.scale_loss(ops.ones(()))
    optimizer.apply(gradients, variables)


class Runner:
    """One optimizer on variables of its own; ``step`` is one attempted step.

    Args:
        optimizer: Built here. A wrapper gets gradients times its scale, a plain one as they are.
        how: "eager", "stateless", "graph" (tf.function, jax.jit), or "quick": eager, but a graph on
            jax, where Keras' accumulation compiles conditionals anew at each eager step.
    """

    def __init__(self, optimizer, how="eager", seed=0, shapes=SHAPES):
        if how == "quick":
            how = "graph" if BACKEND == "jax" else "eager"
        self.optimizer, self.how = optimizer, how
        self.variables = make_variables(seed, shapes)
        optimizer.build(self.variables)
        self.wrapped = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self._graph = self._make_graph() if how == "graph" else None

    def _make_graph(self):
        if BACKEND == "tensorflow":
            import tensorflow as tf

            self.optimizer.scale_loss(ops.ones(()))
            return tf.function(lambda g: self.optimizer.apply(g, self.variables))
        import jax

        return jax.jit(self.optimizer.stateless_apply)

    def step(self, gradients, bad=None, rng=None):
        scale = host(self.optimizer.dynamic_scale) if self.wrapped else 1.0
        self.give(scaled(gradients, scale, bad, rng))

    def give(self, gradients):
        """A step with these tensors as they are."""
        if self.how == "stateless":
            stateless(self.optimizer, gradients, self.variables)
        elif self._graph is None:
            apply(self.optimizer, gradients, self.variables)
        elif BACKEND == "tensorflow":
            self._graph(gradients)
        else:
            new, own = self._graph(
                [v.value for v in self.optimizer.variables],
                gradients,
                [v.value for v in self.variables],
            )
            for variable, value in zip(
                [*self.variables, *self.optimizer.variables], [*new, *own], strict=True
            ):
                variable.assign(value)

    @property
    def state(self):
        return self.optimizer._state.read()

    def reset(self):
        self.optimizer._state.write(ScaleState.initial(self.optimizer.config))


def follow(state, finite, config, **kwargs):
    """The reference's next state."""
    return update(state, bool(finite), config, **kwargs)
