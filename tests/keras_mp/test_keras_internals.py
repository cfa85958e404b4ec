"""Each private read of Keras against what is public: it fails when Keras changes."""

from contextlib import contextmanager

import keras
import numpy as np
import pytest

from keras_mp import _keras_internals as internals

pytestmark = pytest.mark.backend


def built(optimizer, count=2):
    variables = [keras.Variable(np.ones(2, "float32"), name=f"w{i}") for i in range(count)]
    optimizer.build(variables)
    return variables


def is_in(variable, variables):
    return any(v is variable for v in variables)


def test_adams_slots_are_among_its_variables():
    optimizer = keras.optimizers.Adam()
    built(optimizer)
    momentums, velocities = internals.adam_slots(optimizer)
    assert len(momentums) == len(velocities) == 2
    assert all(is_in(v, optimizer.variables) for v in (*momentums, *velocities))
    assert all("momentum" in v.path for v in momentums)
    assert all("velocity" in v.path for v in velocities)


@pytest.mark.parametrize(("momentum", "count"), [(0.0, 0), (0.9, 2)])
def test_sgds_slots_are_among_its_variables(momentum, count):
    optimizer = keras.optimizers.SGD(momentum=momentum)
    built(optimizer)
    slots = internals.sgd_slots(optimizer)
    assert len(slots) == count and all(is_in(v, optimizer.variables) for v in slots)


def test_weight_decay_spares_what_was_excluded():
    optimizer = keras.optimizers.AdamW()
    optimizer.exclude_from_weight_decay(var_names=["w1"])
    variables = built(optimizer)
    assert [internals.uses_weight_decay(optimizer, v) for v in variables] == [True, False]


def test_a_master_is_spared_with_its_variable():
    optimizer = keras.optimizers.AdamW()
    variable, master = keras.Variable([1.0]), keras.Variable([1.0])
    optimizer.exclude_from_weight_decay(var_list=[variable])
    internals.share_weight_decay(optimizer, variable, master)
    optimizer.build([master])
    assert not internals.uses_weight_decay(optimizer, master)


def test_raw_iterations_count_micro_batches():
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    variables = built(optimizer)
    for _ in range(3):
        optimizer.apply([keras.ops.ones(2)] * 2, variables)
    assert is_in(internals.raw_iterations(optimizer), optimizer.variables)
    assert int(internals.raw_iterations(optimizer)) == 3
    assert int(optimizer.iterations) == 1


def nested():
    inner = keras.Sequential([keras.layers.Dense(2), keras.layers.BatchNormalization()])
    return keras.Sequential([keras.Input((3,)), inner, keras.layers.Dropout(0.5)])


def test_layers_are_flattened_however_they_are_nested():
    model = nested()
    found = internals.flatten_layers(model)
    wanted = [model, *model.layers, *model.layers[0].layers]
    assert all(any(layer is f for f in found) for layer in wanted)


def test_a_layers_own_state_is_neither_its_sublayers_nor_its_seeds():
    model = nested()
    inner, dropout = model.layers
    norm = inner.layers[1]
    assert {v.name for v in internals.own_state(norm)} == {"moving_mean", "moving_variance"}
    assert internals.own_state(inner) == [] == internals.own_state(dropout)
    assert dropout.non_trainable_variables  # the seed


def test_functional_models_are_of_the_functional_class():
    inputs = keras.Input((2,))
    assert isinstance(keras.Model(inputs, inputs), internals.functional_class())
    assert not isinstance(keras.layers.Dense(1), internals.functional_class())


def test_the_loss_tracker_is_the_first_metric_of_a_compiled_model():
    model = nested()
    assert internals.loss_tracker(model) is None
    model.compile("sgd", "mse")
    assert internals.loss_tracker(model) is model.metrics[0]
    assert model.metrics[0].name == "loss"


def test_each_outputs_loss_has_a_tracker_of_its_own():
    inputs = keras.Input((2,))
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")}
    model = keras.Model(inputs, outputs)
    assert internals.output_loss_trackers(model) == []
    model.compile("sgd", loss={"a": "mse", "b": "mse"}, metrics={"a": ["mae"]})
    x = np.ones((2, 2), "float32")
    model.train_on_batch(x, {"a": x[:, :1], "b": x[:, :1]})
    trackers = internals.output_loss_trackers(model)
    assert [t.name for t in trackers] == ["a_loss", "b_loss"]
    assert {id(t) for t in trackers} <= {id(m) for m in model.metrics}


def test_a_model_with_metrics_of_its_own_has_no_loss_tracker():
    class Own(keras.Sequential):
        @property
        def metrics(self):
            return []

    model = Own([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert internals.loss_tracker(model) is None


def test_the_raw_tensor_is_in_the_variables_own_dtype():
    seen = []

    class Probe(keras.layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=(1,), name="w")

        def call(self, x):
            for tensor in (self.w.value, internals.raw_tensor(self.w)):
                seen.append(keras.backend.standardize_dtype(tensor.dtype))
            return x

    Probe(dtype="mixed_float16")(np.ones((1, 1), "float32"))
    assert seen == ["float16", "float32"]


def test_calls_are_wrapped_while_the_block_lasts_and_no_longer():
    model = nested()
    inside, order = [], []

    @contextmanager
    def around(layer):
        order.append(layer.name)
        inside.append(layer)
        try:
            yield
        finally:
            inside.pop()

    x = np.ones((2, 3), "float32")
    with internals.wrapped_calls(internals.flatten_layers(model), around):
        model(x)
        with pytest.raises(Exception):
            model(np.ones((2, 7), "float32"))
    assert not inside
    assert order[:2] == [model.name, model.layers[0].name]
    seen = len(order)
    model(x)
    assert len(order) == seen and all("call" not in vars(layer) for layer in model.layers)


def test_a_layer_becomes_another_class_where_it_stands():
    class Doubling(keras.layers.Dense):
        def call(self, inputs, training=None):
            return 2 * super().call(inputs)

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    x = np.ones((2, 3), "float32")
    before = keras.ops.convert_to_numpy(model(x))
    internals.become(model.layers[0], Doubling)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(x)), 2 * before)


def test_the_train_function_is_watched_until_it_is_let_go():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    model.make_train_function()
    original, calls = model.train_function, []

    def around(function):
        def call(*args):
            calls.append(len(args))
            return function(*args)

        return call

    undo = internals.watch_train_function(model, around, "first")
    x = np.ones((8, 3), "float32")
    model.fit(x, x[:, :1], batch_size=4, verbose=0)
    assert len(calls) == 2  # one a batch: fit looks the attribute up each time
    # Anew, not around the one that an interrupted training left there.
    internals.watch_train_function(model, around, "second")
    model.fit(x, x[:, :1], batch_size=8, verbose=0)
    assert len(calls) == 3
    undo()
    assert model.train_function is not original  # no longer its own to take off
    internals.watch_train_function(model, around, "third")()
    assert model.train_function is original


def test_several_watch_one_training_and_let_go_in_any_order():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    model.make_train_function()
    original, calls = model.train_function, []
    x = np.ones((4, 3), "float32")

    def counting(name):
        def around(function):
            return lambda *args: calls.append(name) or function(*args)

        return around

    one, two = (internals.watch_train_function(model, counting(n), "this") for n in (1, 2))
    model.fit(x, x[:, :1], verbose=0)
    assert sorted(calls) == [1, 2]
    one()
    model.fit(x, x[:, :1], verbose=0)
    assert sorted(calls) == [1, 2, 2]
    two()
    assert model.train_function is original


def test_an_evaluate_by_hand_is_noticed_by_all_who_ask():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    x = np.ones((4, 3), "float32")
    asked = [internals.watch_evaluations(model) for _ in range(2)]
    model.fit(x, x[:, :1], verbose=0)
    model.predict(x, verbose=0)
    assert not any(evaluated() for evaluated in asked)
    model.evaluate(x, x[:, :1], verbose=0)
    assert all(evaluated() for evaluated in asked)
    assert len(model.history.history["loss"]) == 1 and not model.stop_evaluating
    assert not internals.watch_evaluations(model)() and all(evaluated() for evaluated in asked)


def test_called_with_mask_sees_a_mask_given_by_hand():
    inputs, mask = keras.Input((4, 1)), keras.Input((4,), dtype="bool")
    by_hand, without = keras.layers.GlobalAveragePooling1D(), keras.layers.GlobalAveragePooling1D()
    by_place = keras.layers.GlobalAveragePooling1D()
    by_hand(inputs, mask=mask)
    by_place(inputs, mask)
    without(inputs)
    assert internals.called_with_mask(by_hand) and internals.called_with_mask(by_place)
    assert not internals.called_with_mask(without)


def test_follows_autocast_tells_what_a_half_precision_layer_sees():
    layer = keras.layers.BatchNormalization()
    layer.build((2, 3))
    dense = keras.layers.Dense(2)
    dense.build((2, 3))
    assert internals.follows_autocast(dense.kernel)
    assert not internals.follows_autocast(layer.moving_mean)


def test_a_variable_is_told_as_it_is_stored_inside_a_call_too():
    seen = {}

    class Looking(keras.layers.Layer):
        def build(self, shape):
            self.cast = self.add_weight(shape=(2,), name="cast")

        def call(self, x):
            seen["value"] = self.cast.value.dtype
            seen["stored"] = internals.stored_value(self.cast)
            seen["scope"] = internals.autocast_dtype()
            return x

    layer = Looking(dtype="mixed_bfloat16")
    layer(np.ones((1, 2), "float32"))
    assert keras.backend.standardize_dtype(seen["value"]) == "bfloat16"
    assert keras.backend.standardize_dtype(seen["stored"].dtype) == "float32"
    assert seen["scope"] == "bfloat16" and internals.autocast_dtype() is None


def test_what_is_stored_respects_a_stateless_scope():
    variable = keras.Variable([1.0], trainable=False)
    with keras.StatelessScope([(variable, keras.ops.convert_to_tensor([3.0]))]):
        assert float(internals.stored_value(variable)[0]) == 3.0
    assert float(internals.stored_value(variable)[0]) == 1.0


def test_what_a_watcher_returns_takes_the_outputs_place():
    layer = keras.layers.Dense(3, kernel_initializer="ones")
    inputs = np.ones((2, 4), "float32")
    with internals.observed_calls([layer], lambda layer, inputs, outputs: outputs * 2):
        doubled = layer(inputs)
    assert np.all(keras.ops.convert_to_numpy(doubled) == 8)
    assert np.all(keras.ops.convert_to_numpy(layer(inputs)) == 4)


def test_functions_of_a_functional_model_are_observed():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.ops.sigmoid(keras.layers.Dense(3)(inputs)))
    functions = [op for op in model.operations if not isinstance(op, keras.layers.Layer)]
    seen = []
    with internals.observed_calls(functions, lambda op, _, out: seen.append((op, out.shape))):
        model(np.ones((2, 4), "float32"))
    assert len(seen) == 1 and tuple(seen[0][1]) == (2, 3)


def test_the_next_call_alone_of_the_train_function_is_wrapped():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    calls = []

    def around(function):
        def watched(*args):
            calls.append(len(args))
            return function(*args)

        return watched

    class Arm(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch in (1, 2):
                internals.around_next_call(self.model, around)

    x = np.ones((5, 2), "float32")
    model.fit(x, x[:, :1], batch_size=1, verbose=0)
    function = model.train_function
    model.fit(x, x[:, :1], batch_size=1, verbose=0, callbacks=[Arm()])
    assert len(calls) == 2 and model.train_function is function
    undo = internals.around_next_call(model, around)
    undo()
    assert model.train_function is function


@pytest.mark.parametrize("own", [False, True])
def test_what_each_variable_is_updated_with_is_seen(own):
    optimizer = keras.optimizers.SGD(1.0)
    variables = [keras.Variable([1.0]), keras.Variable([2.0])]
    optimizer.build(variables)
    if own:
        object.__setattr__(optimizer, "update_step", optimizer.update_step)
    before = vars(optimizer).get("update_step")
    seen = []
    with internals.watched_updates(optimizer, lambda g, v: seen.append(float(g[0]))):
        optimizer.apply([keras.ops.ones(1) * 3, keras.ops.ones(1) * 5], variables)
    assert vars(optimizer).get("update_step") is before
    # Keras' torch optimizers that update all variables at once call it for none of them.
    assert seen == ([] if keras.backend.backend() == "torch" else [3.0, 5.0])
