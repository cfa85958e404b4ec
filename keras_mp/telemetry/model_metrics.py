"""What a Keras model's metrics say of the last steps. A few host reads a call."""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_mp._keras_internals import loss_tracker, watch_evaluations


class ModelMetrics:
    """The metrics of a model in training, from one look to the next."""

    def __init__(self, model: Any):
        self._model = model
        self._means = _mean_losses(model)
        self._own = loss_tracker(model)
        self._evaluated: Callable[[], bool] = watch_evaluations(model)
        self._foreign = False
        self._seen = (0.0, 0.0)
        self._batch = 0  # samples of a step

    def reset(self) -> None:
        """An epoch begins: Keras has set its metrics back."""
        self._seen, self._foreign = (0.0, 0.0), False
        self._evaluated = watch_evaluations(self._model)

    def notice(self) -> None:
        """Ask whether somebody has called ``evaluate``: the mean is no longer the training's."""
        if self._evaluated():
            self._foreign = True
            self._evaluated = watch_evaluations(self._model)

    def loss_and_samples(self, steps: int, spoilt: int) -> tuple[float | None, int | None]:
        """Mean loss and samples since the last call, from the growth of Keras' running mean.

        None for what it does not tell: after an ``evaluate`` by hand, which sets the mean back, and
        samples where a mean of the model's own grows by one a step.

        Args:
            steps: Since the last call. spoilt: Those of them whose loss was not finite: where the
                mean is finite all the same, the optimizer has kept them out of it, samples and all.
        """
        mean, total, count = self._mean()
        before_total, before_count = self._seen
        foreign, self._foreign = self._foreign, False
        self._seen = (total, count)
        if foreign:
            return None, None
        fresh = count - before_count
        heard = steps - spoilt
        loss = (total - before_total) / fresh if fresh > 0 else None
        # Keras' own mean is weighted by samples; one of a model's own may be or not.
        if mean is not self._own and fresh in (steps, heard):
            return loss, None
        if fresh > 0 and heard > 0:
            self._batch = math.ceil(fresh / heard)  # the last batch of an epoch may be a short one
        left_out = self._batch * spoilt if math.isfinite(total) and fresh >= 0 else 0
        return loss, round(fresh) + left_out if fresh > 0 or left_out else None

    def _mean(self) -> tuple[Any, float, float]:
        """The mean that the train step updates, its total and its count."""
        for mean in self._means:
            count = float(ops.convert_to_numpy(mean.count))
            if count:
                return mean, float(ops.convert_to_numpy(mean.total)), count
        return None, 0.0, 0.0

    def others(self) -> dict[str, float]:
        """The other metrics, as the epoch's running means."""
        out = {}
        for name, value in self._model.get_metrics_result().items():
            if name != "loss":
                value = ops.convert_to_numpy(value)
                if value.ndim == 0:
                    out[name] = float(value)
        return out


def _mean_losses(model: Any) -> list[Any]:
    """Keras' running mean of the loss, and the model's own, one of which its step updates."""
    return [
        metric
        for metric in getattr(model, "metrics", ())
        if isinstance(metric, keras.metrics.Mean) and metric.name == "loss"
    ]
