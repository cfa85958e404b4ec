"""The private reads of Keras that a model's structure stands on, and where a model ends."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_mp import _keras_internals
from keras_mp.policies.structure import structure_of

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


class TestTheEndOfAModelOfOnesOwnCode:
    """Which layers give a subclassed model's values: what its code does decides, not in which order
    it got its layers."""

    X = np.ones((2, 8), "float32")

    def ends(self, model, *inputs):
        model(*inputs)
        return {place.path for place in structure_of(model).places if place.output}

    def test_attributes_in_another_order(self):
        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.head = layers.Dense(2, name="head")
                self.body = [layers.Dense(8, name=f"body{i}") for i in range(2)]
                self.look = layers.MultiHeadAttention(2, 4, name="look")

            def call(self, inputs):
                for layer in self.body:
                    inputs = layer(inputs)
                tokens = inputs[:, None]
                return self.head(self.look(tokens, tokens)[:, 0])

        assert self.ends(Net(), self.X) == {"head"}

    def test_every_output_and_what_only_hands_it_on(self):
        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.left, self.right = layers.Dense(2, name="left"), layers.Dense(3, name="right")
                self.body = layers.Dense(8, name="body")
                self.drop = layers.Activation("linear", name="drop")

            def call(self, inputs):
                body = self.body(inputs)
                return {"a": self.drop(self.left(body)), "b": self.right(body)}

        assert self.ends(Net(), self.X) == {"left", "right", "drop"}

    def test_a_function_at_the_end_and_several_inputs(self):
        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.end, self.body = layers.Dense(2, name="end"), layers.Dense(8, name="body")

            def call(self, left, right):
                return keras.ops.softmax(self.end(self.body(left) + self.body(right)))

        assert self.ends(Net(), self.X, self.X) == {"end"}

    def test_several_inputs_of_unlike_shapes(self):
        """Keras notes the first one's shape alone, and no dtype."""

        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.end, self.body = layers.Dense(2, name="end"), layers.Dense(8, name="body")
                self.table = layers.Embedding(9, 8, name="table")

            def call(self, numbers, ids):
                return self.end(self.body(numbers) + keras.ops.mean(self.table(ids), axis=1))

        ids = np.ones((2, 5), "int32")
        assert self.ends(Net(), self.X, ids) == {"end"}

    def test_a_graph_of_as_many_nodes_as_the_code_says(self):
        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.end, self.body = layers.Dense(2, name="end"), layers.Dense(8, name="body")

            def call(self, inputs):
                nodes, edges = inputs
                given = keras.ops.take(self.body(nodes), edges[0], axis=0)
                taken = keras.ops.segment_sum(given, edges[1], num_segments=7)
                return self.end(keras.ops.concatenate([nodes, taken], axis=-1))

        nodes, edges = np.ones((7, 4), "float32"), np.ones((2, 9), "int32")
        assert self.ends(Net(), [nodes, edges]) == {"end"}

    def test_layers_in_layers_and_models_in_models(self):
        class Block(layers.Layer):
            def __init__(self, **options):
                super().__init__(**options)
                self.second, self.first = layers.Dense(8, name="b"), layers.Dense(8, name="a")

            def call(self, inputs):
                return keras.ops.relu(self.second(self.first(inputs)))

        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.block = Block(name="block")
                inputs = keras.Input((8,))
                self.inner = keras.Model(inputs, layers.Dense(8, name="in")(inputs), name="inner")

            def call(self, inputs):
                return self.block(self.inner(inputs))

        assert self.ends(Net(), self.X) == {"block/b"}

    def test_what_the_call_leaves_to_the_train_step(self):
        class Adversaries(keras.Model):
            def __init__(self):
                super().__init__()
                self.judge = keras.Sequential([keras.Input((8,)), layers.Dense(1, name="is")])
                self.maker = keras.Sequential(
                    [layers.Dense(4, name="z"), layers.Dense(8, name="x")]
                )

            def call(self, inputs):
                return self.maker(inputs)

        ends = self.ends(Adversaries(), self.X)
        assert {path.rpartition("/")[2] for path in ends} == {"is", "x"}

    def test_code_that_cannot_be_traced(self):
        """Then the order of the attributes is all there is. The model stays as it was."""

        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.body, self.end = layers.Dense(8, name="body"), layers.Dense(2, name="end")
                self.traced = False

            def call(self, inputs):
                if self.traced:
                    raise TypeError("not on shapes")
                return self.end(self.body(inputs))

        model = Net()
        model(self.X)
        model.traced = True
        before = [layer.dtype_policy for layer in model.layers]
        assert {place.path for place in structure_of(model).places if place.output} == {"end"}
        assert [layer.dtype_policy for layer in model.layers] == before
        assert not any("call" in vars(layer) for layer in (model, *model.layers))

    def test_statistics_and_seeds_stay_as_they_are(self):
        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.norm, self.end = layers.BatchNormalization(), layers.Dense(2)
                self.drop = layers.Dropout(0.5)

            def call(self, inputs):
                return self.end(self.drop(self.norm(inputs, training=True), training=True))

        model = Net()
        model(self.X)
        before = [keras.ops.convert_to_numpy(variable) for variable in model.variables]
        structure_of(model)
        for variable, value in zip(model.variables, before, strict=True):
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), value)
