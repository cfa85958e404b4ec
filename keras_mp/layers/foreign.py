"""A torch module inside a Keras model under a mixed policy."""

from typing import Any

import keras
from keras import ops, tree

from keras_mp import _keras_internals
from keras_mp._precision import HALF
from keras_mp.layers.registering import registered


@registered
class TorchModuleWrapper(keras.layers.TorchModuleWrapper):
    """Keras' layer of that name, computing by its policy.

    Keras' own hands a torch module half-precision inputs and leaves its weights in float32, which
    torch refuses to multiply. This one calls the module inside torch's own autocast region, of the
    policy's compute dtype: weights stay float32, products compute in half precision, and what torch
    holds to be unsafe there (softmax, norms, losses) in float32. What comes out has the compute
    dtype. Under float32 and float64 policies nothing is different.

    The module's floating buffers, such as BatchNorm's statistics, are variables of this layer too,
    not trainable: a loss scale optimizer that is bound to the model keeps them as they were when it
    skips a step. So ``get_weights`` has them besides Keras' own; files are Keras' own, both ways.
    """

    def __init__(
        self, module: Any, name: str | None = None, output_shape: Any = None, **kwargs: Any
    ):
        super().__init__(module, name=name, output_shape=output_shape, **kwargs)
        self.on_become()

    def on_become(self) -> None:
        """Make the module's buffers variables: of a new layer, and of Keras' that becomes this."""
        known = {_address(v) for v in self.variables}
        new = [
            buffer
            for buffer in self.module.buffers()
            if buffer.is_floating_point() and buffer.data_ptr() not in known
        ]
        variables = [
            # It keeps the buffer's memory, which the module updates in place.
            keras.Variable(initializer=buffer, trainable=False, autocast=False, name=f"buffer_{i}")
            for i, buffer in enumerate(new)
        ]
        _keras_internals.track_state(self, variables)

    def call(self, *args: Any, training: bool | None = None, **kwargs: Any) -> Any:
        if self.compute_dtype not in HALF:
            return super().call(*args, training=training, **kwargs)
        import torch

        dtype = getattr(torch, self.compute_dtype)
        with torch.autocast(_device_type(self.module, (args, kwargs)), dtype=dtype):
            outputs = super().call(*args, training=training, **kwargs)
        return tree.map_structure(self._cast, outputs)

    def _cast(self, output: Any) -> Any:
        if getattr(output, "is_floating_point", bool)():
            return ops.cast(output, self.compute_dtype)
        return output


def _address(variable: Any) -> int:
    return _keras_internals.raw_tensor(variable).data_ptr()


def _device_type(module: Any, inputs: Any) -> str:
    """Where the module computes: where its weights are, or what it is given."""
    import torch

    given = [leaf for leaf in tree.flatten(inputs) if isinstance(leaf, torch.Tensor)]
    held = [*module.parameters(), *module.buffers(), *given]
    return held[0].device.type if held else "cpu"
