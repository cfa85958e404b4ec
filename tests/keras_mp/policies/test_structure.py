"""The private reads of Keras that a model's structure stands on."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_mp import _keras_internals

pytestmark = pytest.mark.backend


def test_child_layers_are_what_a_layer_holds_directly():
    tokens = keras.Input((4, 8))
    heads = layers.MultiHeadAttention(2, 4)
    model = keras.Model(tokens, heads(tokens, tokens))
    held = {child.name for child in _keras_internals.child_layers(heads)}
    assert {"query", "key", "value", "softmax", "attention_output"} <= held
    assert heads in _keras_internals.child_layers(model)
    both = layers.Bidirectional(layers.LSTM(2))
    assert [type(child) for child in _keras_internals.child_layers(both)] == [layers.LSTM] * 2


def test_producer_tells_which_call_of_a_shared_layer_made_a_tensor():
    first, second = keras.Input((4,)), keras.Input((4,))
    shared = layers.Dense(2)
    left, right = shared(first), shared(second)
    assert _keras_internals.producer(left) == (shared, [first])
    assert _keras_internals.producer(right) == (shared, [second])
    total = keras.ops.add(left, right)
    operation, inputs = _keras_internals.producer(total)
    assert not isinstance(operation, layers.Layer)
    assert inputs == [left, right]


def test_observed_calls_shows_each_call_and_leaves_no_trace():
    inner = layers.Dense(2)
    model = keras.Sequential([keras.Input((4,)), inner, layers.ReLU()])
    seen = []

    def see(layer, inputs, outputs):
        seen.append((layer, inputs[0][0].shape, outputs.shape))

    with pytest.raises(RuntimeError), _keras_internals.observed_calls([inner], see):
        model(np.ones((3, 4)))
        raise RuntimeError
    assert seen == [(inner, (3, 4), (3, 2))]
    assert "call" not in vars(inner)
    model(np.ones((3, 4)))
    assert len(seen) == 1


def test_put_policy_leaves_a_shared_map_alone():
    shared = keras.dtype_policies.DTypePolicyMap(keras.DTypePolicy("mixed_bfloat16"))
    one, two = (layers.Dense(2, dtype=shared, name="same") for _ in range(2))
    plain = layers.Dense(2)
    for layer in (one, two, plain):
        layer.build((None, 3))
        if layer is not two:
            _keras_internals.put_policy(layer, keras.DTypePolicy("float32"))
    assert [layer.compute_dtype for layer in (one, two)] == ["float32", "bfloat16"]
    assert len(shared) == 0
    # The public setter: the reason why there is another. When this fails, it can go.
    three = layers.Dense(2, dtype=shared, name="same")
    three.build((None, 3))
    three.dtype_policy = "float32"
    assert two.compute_dtype == "float32"


def test_graph_calls_are_every_call_with_what_it_takes_and_gives():
    first, second = keras.Input((4,)), keras.Input((4,))
    shared = layers.Dense(4)
    left, right = shared(first), shared(second)
    total = keras.ops.add(left, right)
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    end = inner(total)
    calls = _keras_internals.graph_calls(keras.Model([first, second], end))
    by_output = {id(gives[0]): (operation, takes) for operation, takes, gives in calls}
    assert len(calls) == len(by_output) == 4
    assert by_output[id(left)] == (shared, [first])
    assert by_output[id(right)] == (shared, [second])
    assert by_output[id(total)][1] == [left, right]
    assert by_output[id(end)] == (inner, [total])
