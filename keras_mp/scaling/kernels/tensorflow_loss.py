"""tensorflow: what a loss tells: its graph, once a trace; its value, each step."""

import threading
from typing import Any

import tensorflow as tf

from keras_mp import _keras_internals
from keras_mp.scaling.attribution import layer_path, path_of
from keras_mp.scaling.kernels import tensorflow_replicas as strategies
from keras_mp.scaling.kernels.tensorflow_forward import (
    Output,
    SeenLoss,
    layer_outputs,
    where_not_finite,
)
from keras_mp.scaling.kernels.tensorflow_graph import belongs_here, captured, inspect_graph


class TensorFlowLoss:
    """Args: kernel: The TensorFlowKernel whose losses these are."""

    def __init__(self, kernel: Any):
        self.kernel = kernel
        self.half: bool | None = None  # float16 was seen in some loss' graph
        self.learnt: Any = None  # (loss, distances), until the optimizer is told
        self.thread = threading.local()  # replicas are traced in threads of their own

    def see(self, loss: Any) -> Any:
        """A loss is about to be scaled. Returns the sum of it, shape ()."""
        outputs = self._inspect(loss) if tf.is_symbolic_tensor(loss) else []
        if not strategies.replicas():
            self.tell_optimizer()
        # The gradients of a loss that is no scalar are those of its sum.
        seen = loss if loss.shape.rank == 0 else tf.reduce_sum(loss)
        self.thread.loss = SeenLoss(seen)
        if outputs:
            places = [self.kernel.place_of(o.layer) for o in outputs]
            self.thread.loss = SeenLoss(seen, where_not_finite(seen, outputs), places)
        return seen

    def take(self) -> SeenLoss | None:
        """The loss of the step under way, once; None where it was not seen here."""
        loss = getattr(self.thread, "loss", None)
        self.thread.loss = None
        return loss if loss is not None and belongs_here(loss.value) else None

    def tell_optimizer(self) -> None:
        """Hand on what the loss' graph told; under a strategy not from inside a replica."""
        self.kernel.bind_late()
        if self.learnt is None:
            return
        loss, distances = self.learnt
        self.learnt = None
        # A loss of another function was scaled before: gradients of it may be on their way here,
        # and the scale must stay what it was for them.
        half = self.half if belongs_here(loss) else None
        with tf.init_scope():
            self.kernel.optimizer._saw_graph(half, distances)

    def _inspect(self, loss: Any) -> list[Output]:
        """Learn what the loss' graph tells; returns the outputs of the layers in it."""
        optimizer = self.kernel.optimizer
        variables = [getattr(v, "value", v) for v in optimizer._trainable_variables]
        seen = inspect_graph(loss, variables)
        self.learnt = loss, seen.distances
        # A loss without float16 beside one with it: the scale is for both.
        self.half = self.half or seen.half
        if not optimizer.attribution:
            return []
        paths = optimizer.variable_paths
        model = None if optimizer._binding is None else optimizer._binding.model
        layers = [] if model is None else map(path_of, _keras_internals.flatten_layers(model))
        inside = captured(loss.graph, variables)
        return layer_outputs(
            seen.ops,
            list(layers) or [layer_path(path) for path in paths],
            {id(tensor): paths[i] for i, tensor in inside.items()},
        )
