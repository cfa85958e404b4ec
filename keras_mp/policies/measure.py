"""What a batch of data shows of a model: the largest magnitude at each layer, in float32."""

import math
from typing import Any

import keras
import numpy as np

from keras_mp import _keras_internals
from keras_mp.policies.objects import policy_named
from keras_mp.policies.structure import Structure


def largest_magnitudes(model: Any, batch: Any, structure: Structure) -> dict[str, float]:
    """Run ``batch`` through the model once in float32; look at what each layer takes and gives.

    Args:
        model: The model; its policies are as they were afterwards.
        batch: Inputs as the model takes them.
        structure: The model's.

    Returns:
        Path -> the largest magnitude among the layer's inputs and outputs; inf or nan as they come.
        A layer that was not called, or has no floating-point values, is absent.
    """
    layers = [place.layer for place in structure.places]
    paths = {id(place.layer): place.path for place in structure.places}
    policies = [layer.dtype_policy for layer in layers]
    largest: dict[str, float] = {}

    def see(layer: Any, inputs: Any, outputs: Any) -> None:
        path = paths[id(layer)]
        for tensor in keras.tree.flatten((inputs, outputs)):
            if keras.ops.is_tensor(tensor) and keras.backend.is_float_dtype(_dtype(tensor)):
                found = float(np.max(np.abs(keras.ops.convert_to_numpy(tensor)), initial=0.0))
                before = largest.get(path, 0.0)
                largest[path] = found if math.isnan(found) else max(before, found)

    try:
        for layer in layers:
            _keras_internals.put_policy(layer, policy_named("float32"))
        with _keras_internals.observed_calls(layers, see):
            model(keras.tree.map_structure(keras.ops.convert_to_tensor, batch), training=False)
    finally:
        for layer, policy in zip(layers, policies, strict=True):
            _keras_internals.put_policy(layer, policy)
    return largest


def _dtype(tensor: Any) -> str:
    return keras.backend.standardize_dtype(tensor.dtype)
