"""Attention that is finite in float16 for rows that are masked throughout and for large logits.

A product of queries and keys passes 65,504 long before its softmax minds, and then the row is NaN.
So in float16 the logits, the mask and the softmax are float32's here, and what is mixed of the
values is float16 again. In bfloat16, whose range is float32's, and in float32 they are Keras' own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import keras
from keras import ops

from keras_mp.layers.registering import registered

_MASKED = -1e9
# A float16 call changes its layer while it lasts; a server calls one layer from many threads.
_ONE_AT_A_TIME = RLock()


class _WideScores:
    """The part that is ours, mixed into ``keras.layers.Attention`` and its subclass."""

    def _calculate_scores(self, query: Any, key: Any) -> Any:
        if _is_float16(query):
            query, key = ops.cast(query, "float32"), ops.cast(key, "float32")
        return super()._calculate_scores(query, key)  # type: ignore[misc]

    def _apply_scores(
        self, scores: Any, value: Any, scores_mask: Any = None, training: bool = False
    ) -> tuple[Any, Any]:
        if not _is_float16(value):
            return super()._apply_scores(  # type: ignore[misc]
                scores, value, scores_mask=scores_mask, training=training
            )
        if scores_mask is not None:
            if len(scores_mask.shape) == 2:
                scores_mask = ops.expand_dims(scores_mask, axis=-2)
            # As Keras has it in float32: a row without any place to look at looks at all alike.
            scores = ops.where(scores_mask, scores, scores + _MASKED)
        weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
        layer: Any = self
        if training and layer.dropout > 0:
            weights = keras.random.dropout(weights, layer.dropout, seed=layer.seed_generator)
        return ops.matmul(weights, value), weights


@registered
class Attention(_WideScores, keras.layers.Attention):
    """Keras' Attention, finite in float16 for any mask and any logits."""


@registered
class AdditiveAttention(_WideScores, keras.layers.AdditiveAttention):
    """Keras' AdditiveAttention, finite in float16 for any mask and any logits."""


class _WideCore:
    """The part that is ours, mixed into the layers of several heads.

    ``_compute_attention`` is what Keras lets users override, but an override in the class turns off
    its causal kernels: so it is the instance's, while a float16 call lasts.
    """

    def call(
        self,
        query: Any,
        value: Any,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Any:
        args = (query, value, key, query_mask, value_mask, key_mask, attention_mask)
        kwargs = {
            "return_attention_scores": return_attention_scores,
            "training": training,
            "use_causal_mask": use_causal_mask,
        }
        layer: Any = self
        if layer.compute_dtype != "float16":
            return super().call(*args, **kwargs)  # type: ignore[misc]
        with _ONE_AT_A_TIME:
            object.__setattr__(self, "_compute_attention", self._wide_attention)
            try:
                return super().call(*args, **kwargs)  # type: ignore[misc]
            finally:
                object.__delattr__(self, "_compute_attention")

    def _wide_attention(self, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        layer: Any = self
        wide = [ops.cast(tensor, "float32") for tensor in (query, key, value)]
        with _in_float32(layer._softmax, layer._dropout_layer):
            output, scores = type(layer)._compute_attention(layer, *wide, *args, **kwargs)
        return ops.cast(output, query.dtype), _narrow(scores, query.dtype)


@registered
class MultiHeadAttention(_WideCore, keras.layers.MultiHeadAttention):
    """Keras' MultiHeadAttention, finite in float16 for any mask and any logits.

    It keeps float32 logits in float16: for models whose logits need them. A plan does not put it in
    by itself.
    """


@registered
class GroupedQueryAttention(_WideCore, keras.layers.GroupQueryAttention):
    """Keras' GroupQueryAttention, as ``MultiHeadAttention`` here."""


GroupQueryAttention = GroupedQueryAttention


def _is_float16(tensor: Any) -> bool:
    return keras.backend.standardize_dtype(tensor.dtype) == "float16"


def _narrow(scores: Any, dtype: Any) -> Any:
    return None if scores is None else ops.cast(scores, dtype)


@contextmanager
def _in_float32(*layers: Any) -> Iterator[None]:
    policies = [layer.dtype_policy for layer in layers]
    try:
        for layer in layers:
            layer.dtype_policy = "float32"
        yield
    finally:
        for layer, policy in zip(layers, policies, strict=True):
            layer.dtype_policy = policy
