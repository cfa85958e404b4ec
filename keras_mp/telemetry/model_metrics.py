"""What a Keras model's metrics say of the last steps. A few host reads a call."""

import math
from typing import Any

import keras
from keras import ops


class ModelMetrics:
    """The metrics of a model in training, from one look to the next."""

    def __init__(self, model: Any):
        self._model = model
        self._tracker = _loss_tracker(model)
        self._seen = (0.0, 0.0)
        self._batch = 0  # samples of a step

    def reset(self) -> None:
        """An epoch begins: Keras has set its metrics back."""
        self._seen = (0.0, 0.0)

    def loss_and_samples(self, steps: int, spoilt: int) -> tuple[float | None, int | None]:
        """Mean loss and samples since the last call, from the growth of Keras' running mean.

        Args:
            steps: Since the last call. spoilt: Those of them whose loss was not finite: where the
                mean is finite all the same, the optimizer has kept them out of it, samples and all.
        """
        if self._tracker is None:
            return None, None
        total = float(ops.convert_to_numpy(self._tracker.total))
        count = float(ops.convert_to_numpy(self._tracker.count))
        before_total, before_count = self._seen
        self._seen = (total, count)
        fresh = count - before_count
        heard = steps - spoilt
        if fresh > 0 and heard > 0:
            self._batch = math.ceil(fresh / heard)  # the last batch of an epoch may be a short one
        left_out = self._batch * spoilt if math.isfinite(total) and fresh >= 0 else 0
        loss = (total - before_total) / fresh if fresh > 0 else None
        return loss, round(fresh) + left_out if fresh > 0 or left_out else None

    def others(self) -> dict[str, float]:
        """The other metrics, as the epoch's running means."""
        out = {}
        for name, value in self._model.get_metrics_result().items():
            if name != "loss":
                value = ops.convert_to_numpy(value)
                if value.ndim == 0:
                    out[name] = float(value)
        return out


def _loss_tracker(model: Any) -> Any:
    """Keras' running mean of the loss, weighted by samples; None if the model has another way."""
    for metric in getattr(model, "metrics", ()):
        if isinstance(metric, keras.metrics.Mean) and metric.name == "loss":
            return metric
    return None
