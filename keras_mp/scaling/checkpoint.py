"""How the optimizer is stored: the inner optimizer as if it were alone, the scaler beside it.

A checkpoint of LossScaleOptimizer holds, below ``optimizer/``,

- ``vars/0, 1, ...``: the inner optimizer's variables, in the layout of that optimizer without a
  wrapper, so that either can read the other's files. They are stored once; Keras' own wrapper
  stores them twice, because Keras walks into ``inner_optimizer`` too.
- ``scaler_state/vars/...``: the scale, the counters, and ``master_<i>``, the float32 master of the
  i-th trainable variable where it is a half-precision one. Whoever does not know this group, like
  the plain optimizer, does not look at it.

Files of ``keras.optimizers.LossScaleOptimizer`` are recognised by their four own scalars in front.
The way back, from here to Keras' wrapper, cannot share a file: the wrapper wants n + 4 variables
where the plain optimizer wants n, in the same place. It says "Skipping variable loading" and keeps
what it has; ``get_state_tree`` and ``set_state_tree`` carry the state over, by names.

A checkpoint that cannot be used is never used in part: what is missing or out of range keeps the
value that it had, and a warning says which.
"""

import math
import warnings
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp.scaling.admission import admit
from keras_mp.scaling.state import ScaleConfig

_STOCK_OWN = 4  # iteration, learning_rate, step_counter, dynamic_scale
_STOCK_GOOD_STEPS, _STOCK_SCALE = "2", "3"


@dataclass
class Waiting:
    """What was loaded into an optimizer that is not built yet: arrays by their keys in the file.

    Attributes:
        inner: The inner optimizer's variables, or None. scaler: The scaler's state, or None.
        loading: Whether Keras' saver was last here to load (and not to save).
    """

    inner: Mapping[str, Any] | None = None
    scaler: Mapping[str, Any] | None = None
    loading: bool = False


@keras.saving.register_keras_serializable(package="keras_mp")
class ScalerState(keras.metrics.Metric):
    """The child of the optimizer that Keras saves the scaler's own state from and loads it into.

    A Metric because that is Keras' public kind of object with a state and nothing else. It holds
    its owner weakly: Keras walks through attributes, and would walk in circles.

    Args:
        owner: The LossScaleOptimizer.
    """

    def __init__(self, owner: Any):
        super().__init__(name="scaler_state")
        self._owner = weakref.ref(owner)

    def save_own_variables(self, store: Any) -> None:
        owner = self._owner()
        if owner is None:
            return
        for key, value in _scaler_values(owner).items():
            store[key] = value

    def load_own_variables(self, store: Any) -> None:
        owner, values = self._owner(), _arrays(store)
        if owner is None:
            return
        if owner.built:
            _restore_scaler(owner, values)
        elif values:
            owner._waiting.scaler = values


def save(optimizer: Any, store: Any) -> None:
    """Write the inner optimizer's variables in its own layout."""
    optimizer._waiting.loading = False
    if optimizer._waiting.inner is None:
        optimizer.inner_optimizer.save_own_variables(store)
        return
    for key, value in optimizer._waiting.inner.items():  # not built since: hand it on
        store[key] = value


def load(optimizer: Any, store: Any) -> None:
    """Read the inner optimizer's variables: from a plain file, ours, or Keras' wrapper's.

    An optimizer that is not built has no variables to load into: the values wait for ``build``.

    Raises:
        ValueError: Where a variable's shape is another; nothing is changed then.
    """
    optimizer._waiting.loading = True
    if optimizer.built:
        _restore_inner(optimizer, store)
    else:
        optimizer._waiting.inner = _arrays(store) or None


def finish_build(optimizer: Any) -> None:
    """Give a freshly built optimizer what was loaded before it was built.

    One that is built in the trace of a step gets it later: there its variables have no values yet.
    """
    if not optimizer._kernel.can_bind():
        return
    waiting: Waiting = optimizer._waiting
    inner, waiting.inner = waiting.inner, None
    scaler, waiting.scaler = waiting.scaler, None
    if inner is not None:
        _restore_inner(optimizer, inner)
    if scaler is not None:
        _restore_scaler(optimizer, scaler)


def take_over(optimizer: Any, replaced: Any) -> None:
    """Go on with the scale of a wrapper that this one replaces, once this one is built."""
    if isinstance(replaced, keras.optimizers.LossScaleOptimizer) and replaced.built:
        optimizer._waiting.scaler = {
            "scale": ops.convert_to_numpy(replaced.dynamic_scale),
            "good_steps": ops.convert_to_numpy(replaced.step_counter),
        }


def set_weights(optimizer: Any, weights: Iterable[Any]) -> None:
    """Assign values to all of ``optimizer.variables``, as ``[v.numpy() for v in variables]`` gives.

    Raises:
        ValueError: For another number of values or other shapes; nothing is changed then.
    """
    if not optimizer.built:
        raise ValueError(
            "`set_weights` needs the optimizer's variables: call "
            "`optimizer.build(trainable_variables)` before it."
        )
    weights, variables = list(weights), optimizer.variables
    if len(weights) != len(variables):
        raise ValueError(
            f"`weights` must hold one value for each of `optimizer.variables` ({len(variables)}: "
            "the scaler's, the inner optimizer's, the masters). "
            f"Received: {len(weights)} values"
        )
    values = [np.asarray(ops.convert_to_numpy(w)) for w in weights]
    _check_shapes("set_weights", variables, values)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def seen_by_the_saver(optimizer: Any, names: Iterable[str]) -> list[str]:
    """``dir(optimizer)`` without what Keras' saver must not walk into.

    The saver follows every attribute that ``dir`` names, after ``save_own_variables`` or
    ``load_own_variables``. ``inner_optimizer`` would be stored a second time, and a model that the
    optimizer knows would be stored with the optimizer. The ``optimizers`` of a MultiOptimizer are
    stored, as the plain layout wants it, but not looked for: ``load`` has read their variables.
    """
    held = vars(optimizer)
    hidden = {n for n in held if n != "scaler_state" and hasattr(held[n], "save_own_variables")}
    if optimizer._waiting.loading:
        hidden.add("optimizers")
    return [n for n in names if n not in hidden]


def _restore_inner(optimizer: Any, store: Any) -> None:
    inner, keys = optimizer.inner_optimizer, set(store.keys())
    targets = inner.variables
    if optimizer._masters is not None:
        # A file without masters speaks for the model's values; one with masters loads them next.
        optimizer._masters.reset()
    if _is_stock(store, keys, targets):
        values = [store[str(i + _STOCK_OWN)] for i in range(len(targets))]
        for variable, value in zip(targets, values, strict=True):
            variable.assign(value)
        _restore_scaler(
            optimizer, {"scale": store[_STOCK_SCALE], "good_steps": store[_STOCK_GOOD_STEPS]}
        )
        return
    if keys == {str(i) for i in range(len(targets))}:
        _check_shapes("The checkpoint", targets, [store[str(i)] for i in range(len(targets))])
    # With another number of variables Keras' own method says so and loads nothing; an optimizer
    # with a layout of its own reads that.
    inner.load_own_variables(store)


def _is_stock(store: Any, keys: set[str], targets: list[Any]) -> bool:
    """Whether the file is one of Keras' own wrapper around the same optimizer."""
    if keys != {str(i) for i in range(len(targets) + _STOCK_OWN)}:
        return False
    own = [np.asarray(store[str(i)]) for i in range(_STOCK_OWN)]
    kinds = [value.dtype.kind for value in own]
    if any(value.shape != () for value in own) or kinds[2] not in "iu" or kinds[3] != "f":
        return False
    return all(
        tuple(np.shape(store[str(i + _STOCK_OWN)])) == tuple(variable.shape)
        for i, variable in enumerate(targets)
    )


def _scaler_values(owner: Any) -> dict[str, np.ndarray]:
    if not owner.built:
        return dict(owner._waiting.scaler or {})
    state = asdict(owner._state.read())
    if owner._state.is_switched_off:
        del state["scale"]  # 1, which says nothing about where a scale would stand
    values = {
        name: np.asarray(value, np.float32 if name == "scale" else np.int32)
        for name, value in state.items()
    }
    values["scaled"] = np.asarray("scale" in state, np.int32)
    if owner._masters is not None:
        for index, master in owner._masters.by_index.items():
            values[f"master_{index}"] = ops.convert_to_numpy(master)
    return values


def _restore_scaler(owner: Any, values: Mapping[str, Any]) -> None:
    """The scaler's state from a file; a file of the plain optimizer has none, and that is well."""
    if not values:
        return
    current = owner._state.read()
    complete = "scaled" in values  # a file of ours, and not what Keras' wrapper knows
    state, complaints = admit(values, current, owner.config, complete)
    if owner._state.is_switched_off:
        state = replace(state, scale=current.scale)
    owner._state.write(state)
    if complete and owner._masters is not None:
        complaints += owner._masters.load(values)
    if complaints:
        warnings.warn(
            f"The loss scale's state in the checkpoint is not used as it stands: "
            f"{'; '.join(complaints)}. Everything else was loaded. If that is not what you "
            "expect, the file is damaged, or the optimizer was configured otherwise.",
            stacklevel=3,
        )


def _check_shapes(what: str, variables: list[Any], values: list[Any]) -> None:
    wrong = [
        f"{getattr(variable, 'path', variable.name)}: {np.shape(value)}, not {variable.shape}"
        for variable, value in zip(variables, values, strict=True)
        if tuple(variable.shape) != tuple(np.shape(value))
    ]
    if wrong:
        raise ValueError(
            f"{what} has other shapes than the optimizer's variables; nothing was changed. "
            f"Received: {'; '.join(wrong[:5])}{' ...' if len(wrong) > 5 else ''}"
        )


def _arrays(store: Any) -> dict[str, np.ndarray]:
    return {key: np.asarray(store[key]) for key in store.keys()}  # noqa: SIM118 - not a dict


def widest(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a stock wrapper as arguments of ours.

    Keras' wrapper has no limits; an initial scale beyond ours moves the limit out to it.
    """
    config = dict(config)
    start = config.get("initial_scale")
    if start is None or "scale" in config or not math.isfinite(start):
        return config
    default = ScaleConfig()
    if start > default.max_scale:
        config.setdefault("max_scale", start)
    if 0 < start < default.min_scale:
        config.setdefault("min_scale", start)
    return config
