"""Activations and gradients of a model on one batch, layer by layer: what float16 makes of them.

Each zero is asked whether it should be one. A pass in float32 on the same batch (the twin: same
weights, same dropout masks) says so: a dead ReLU's gradient is zero there too, while a value that
is not was lost to the format. Micikevicius et al. 2018, section 3.2 and figure 3, is the source of
the view: gradients by exponent, and what a loss scale would save.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp.numerics import counting
from keras_mp.numerics.formats import get_format
from keras_mp.numerics.passes import Pass, State, Task, run
from keras_mp.numerics.rows import Kind, Probe, Row
from keras_mp.numerics.watched import in_float32, owners, random_layers, watched
from keras_mp.policies.structure import Structure, structure_of
from keras_mp.telemetry.sources import scale_of


def probe(
    model: Any,
    batch: Any,
    *,
    loss: Any = None,
    scale: float | None = None,
    format: str = "float16",
) -> Probe:
    """Look at a model's numbers once: ``print(keras_mp.probe(model, (x, y)))``.

    The model runs forward and backward in float32, and if it computes in float16 a second time as
    it is. It is not trained by that: weights, BatchNorm statistics, seeds and metrics stay. Every
    layer's output and its gradient are in memory at once, in float32.

    Args:
        model: A Keras model: functional, sequential, subclassed; nested, with shared layers.
        batch: ``(x, y)`` or ``(x, y, sample_weight)`` as ``fit`` takes them, arrays or tensors; or
            inputs alone (anything but a tuple), for activations without gradients.
        loss: What to differentiate: a Keras loss, its name, or ``(y, y_pred) -> tensor``. Defaults
            to the compiled one.
        scale: Loss scale at which gradients are judged. Defaults to the one of the model's
            optimizer, else 1.
        format: Through whose eyes: a name in ``keras_mp.numerics.formats.FORMATS``.

    Returns:
        A Probe: a table when printed, a picture in a notebook (``.svg()`` elsewhere).

    Raises:
        ValueError: The model has no loss and none was given, or the scale or format is wrong.

    Example:

    ```python
    found = keras_mp.probe(model, (x[:256], y[:256]))
    print(found)                          # the table
    print(found.at(1024.0).lost)          # share of gradients lost at a scale of 1,024
    open("numbers.svg", "w").write(found.svg())
    ```
    """
    get_format(format)
    # Keras' own unpacking takes a list of inputs for inputs and targets.
    parts = batch if isinstance(batch, tuple) else (batch,)
    if 1 <= len(parts) <= 3:
        parts = keras.utils.unpack_x_y_sample_weight(parts)
        x, y, sample_weight = (_tensors(part) for part in parts)
    else:
        x = y = sample_weight = None
    if not isinstance(model, keras.Model):
        raise ValueError(f"`model` must be a keras.Model. Received: model={model!r}")
    if not any(getattr(leaf, "shape", (0,))[:1] != (0,) for leaf in keras.tree.flatten(x)):
        raise ValueError(
            "`batch` must be inputs, (x, y) or (x, y, sample_weight), of one sample at least. "
            f"Received: batch={batch!r:.200}"
        )
    if not model.built:
        model(x, training=False)
    if y is not None and loss is None and not getattr(model, "compiled", False):
        raise ValueError(
            "A probe of gradients needs a loss. Expected a compiled model, or `loss` such as "
            f"'mse'. Received: model={getattr(model, 'name', model)!r} (not compiled), loss=None"
        )
    chosen = keras.losses.get(loss) if isinstance(loss, str) else loss
    return look(model, x, y, sample_weight, loss=chosen, scale=scale, format=format)


def look(
    model: Any,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    scale: float | None = None,
    format: str = "float16",
    state: State = (),
    structure: Structure | None = None,
    compiled: dict[Any, Any] | None = None,
) -> Probe:
    """As ``probe``, of tensors, for one who looks often.

    Args:
        state: (variable, value) pairs that take the place of the variables' own values.
        structure: The model's, if it is known.
        compiled: A dict of the caller's that is handed to each look at the same model.
    """
    structure = structure_of(model, ends=False) if structure is None else structure
    layers = [place.layer for place in structure.places]
    applied = scale_of(getattr(model, "optimizer", None)) if scale is None else scale
    if isinstance(applied, str) or not (applied > 0 and math.isfinite(applied)):
        raise ValueError(f"`scale` must be a positive finite number. Received: scale={scale!r}")
    task = Task(model, watched(structure), x, y, sample_weight, loss, applied, state)
    task.compiled = {} if compiled is None else compiled
    drawing, comparable = random_layers(structure)
    own = own_zeros = None
    if y is not None and comparable and _computes_in_float16(layers):
        own = _own_pass(task, drawing)
    with in_float32(layers):
        twin = run(task)
    if own is not None:
        own_zeros = _aligned(own, twin)
    rows = _rows(model, twin, applied, own_zeros, structure)
    return Probe(
        rows=tuple(rows),
        format=get_format(format).name,
        scale=applied,
        loss=_number(twin.loss),
        own_loss=_number(own.loss) if own is not None and own_zeros is not None else None,
        model=str(getattr(model, "name", type(model).__name__)),
        unseen=tuple(twin.unseen),
    )


def _own_pass(task: Task, drawing: list[Any]) -> Pass:
    """The model's own pass, of which only the places of its gradients' zeros are kept.

    A byte a value, not the values: a device that trains has not much room.
    """
    with in_float32(drawing):
        own = run(task)
    own.activations = []
    own.gradients, own.weight_gradients = (
        [None if g is None else counting.zeros(g) for g in gradients]
        for gradients in (own.gradients, own.weight_gradients)
    )
    return own


def _aligned(own: Pass, twin: Pass) -> list[Any] | None:
    """Where the own pass' gradients are zero, in the order of the twin's; None if the passes cannot
    be compared, because the model branches on its values.

    A layer that does nothing but cast (``Activation("linear", dtype="float32")``) makes a tensor of
    its own only where there is something to cast.
    """
    known = set(twin.paths)
    made = [(p, z) for p, z in zip(own.paths, own.gradients, strict=True) if p in known]
    if [path for path, _ in made] != twin.paths:
        return None
    return [*(zeros for _, zeros in made), *own.weight_gradients]


def _rows(
    model: Any, twin: Pass, scale: float, own_zeros: list[Any] | None, structure: Structure
) -> list[Row]:
    owner = owners(structure)
    dtypes = {p.path: p.layer.compute_dtype for p in structure.places if p.parent is not None}
    wanted: list[tuple[Kind, str, str | None, Any, float]] = []
    for path, tensor in zip(twin.paths, twin.activations, strict=True):
        wanted.append(("activation", path, None, tensor, 1.0))
    for path, tensor in zip(twin.paths, twin.gradients, strict=True):
        if tensor is not None:
            wanted.append(("gradient", path, None, tensor, scale))
    if twin.weight_gradients:
        for variable, tensor in zip(model.trainable_variables, twin.weight_gradients, strict=True):
            if tensor is not None:
                layer = owner.get(id(variable), "")
                wanted.append(("weight_gradient", layer, variable.path, tensor, scale))
    found = counting.counted([(tensor, divisor) for *_, tensor, divisor in wanted])
    lost = _underflows(twin, own_zeros)
    merged: dict[tuple[Kind, str], Row] = {}
    missing: dict[tuple[Kind, str], float] = {}
    gradients = 0
    for (kind, path, variable, _, divisor), (histogram, norm) in zip(wanted, found, strict=True):
        key = (kind, variable or path)
        if kind != "activation" and lost is not None:
            missing[key] = missing.get(key, 0.0) + lost[gradients]
            gradients += 1
        known = merged.get(key)
        if known is not None:  # a layer that is called several times
            histogram, norm = known.histogram + histogram, math.hypot(known.norm or 0.0, norm)
        merged[key] = Row(path, kind, histogram, variable, norm, divisor, dtype=dtypes.get(path))
    return [_with_underflow(row, missing.get(key)) for key, row in merged.items()]


def _with_underflow(row: Row, missing: float | None) -> Row:
    if missing is None or not row.histogram.total:
        return row
    return replace(row, underflow=missing / row.histogram.total)


def _underflows(twin: Pass, own_zeros: list[Any] | None) -> list[int] | None:
    """For each gradient there is: how many values only the own pass made zero."""
    if own_zeros is None:
        return None
    gradients = [*twin.gradients, *twin.weight_gradients]
    pairs = [(z, g) for z, g in zip(own_zeros, gradients, strict=True) if g is not None]
    if not pairs or any(z is None for z, _ in pairs):
        return None
    counts = ops.stack([counting.underflows(z, g) for z, g in pairs])
    return [int(n) for n in np.asarray(ops.convert_to_numpy(counts))]


def _tensors(data: Any) -> Any:
    return keras.tree.map_structure(
        lambda part: None if part is None else ops.convert_to_tensor(part), data
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(ops.convert_to_numpy(value))


def _computes_in_float16(layers: list[Any]) -> bool:
    return any(
        layer.dtype_policy.compute_dtype == "float16"
        for layer in layers
        if not getattr(layer.dtype_policy, "default_policy", None)
    )
