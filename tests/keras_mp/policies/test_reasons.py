"""Reasons are earned: for each, a model where flipping its row changes what comes out, and one
where the row must not appear."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_mp
from keras_mp.policies.plan import plan

pytestmark = pytest.mark.backend
BACKEND = keras.backend.backend()
HALF = ["mixed_float16", "mixed_bfloat16"]


def numbers(tensor):
    return np.asarray(ops.convert_to_numpy(ops.cast(tensor, "float32")), "float64")


def outcomes(build, measure, policy, code):
    """What ``measure`` gives in float32, with the plan, and with the plan but for that reason."""
    results = []
    for kind in ("float32", "planned", "flipped"):
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(0)
        model = build()
        if kind != "float32":
            planned = plan(model, policy)
            rows = [row for row in planned if row.code == code]
            assert rows, planned
            if kind == "flipped":
                rules = {row.path: policy for row in rows if row.path}
                # Of Keras' own layers: ours may be right there too.
                planned = plan(model, policy, rules=rules, replace=False)
            planned.apply(model)
        results.append(measure(model))
    return results


def codes(model, policy):
    return {row.code for row in plan(model, policy)}


def functional(inputs, *chain):
    tensor = inputs
    for layer in chain:
        tensor = layer(tensor)
    return keras.Model(inputs, tensor)


class TestRawInput:
    DATA = np.array([[100_000.0], [120_000.0], [140_000.0]], "float32")

    def build(self):
        return functional(
            keras.Input((1,)),
            layers.Normalization(mean=[120_000.0], variance=[4e8]),
            layers.Dense(1, kernel_initializer="ones"),
        )

    @pytest.mark.parametrize("policy", HALF)
    def test_it_changes_what_comes_out(self, policy):
        exact, planned, flipped = outcomes(
            self.build, lambda model: numbers(model(self.DATA)), policy, "raw-input"
        )
        assert exact.ravel() == pytest.approx([-1, 0, 1])
        assert planned == pytest.approx(exact, abs=1e-2)
        assert not np.allclose(flipped, exact, atol=1e-2)

    def test_it_is_not_given_to_a_normalization_inside(self):
        model = functional(keras.Input((4,)), layers.LayerNormalization(), layers.Dense(1))
        assert "raw-input" not in codes(model, "mixed_float16")

    def test_a_subclassed_model_must_not_cast_its_inputs_either(self):
        class Prices(keras.Model):
            def __init__(self):
                super().__init__()
                self.scale = layers.Rescaling(1e-5)
                self.head = layers.Dense(1, kernel_initializer="ones")

            def call(self, inputs):
                return self.head(self.scale(inputs))

        def build():
            model = Prices()
            model(self.DATA)
            return model

        model = build()
        planned = plan(model, "mixed_float16")
        assert planned[""].policy == planned["rescaling"].policy == "float32"
        planned.apply(model)
        assert numbers(model(self.DATA)).ravel() == pytest.approx([1.0, 1.2, 1.4], rel=1e-3)
        model = build()
        plan(model, "mixed_float16", rules={"": "mixed_float16"}).apply(model)
        assert not np.isfinite(numbers(model(self.DATA))).all()


class TestOutputActivation:
    """Sure and wrong: float32 pulls the bias back by 1, float16's sigmoid is exactly 1."""

    def build(self):
        head = layers.Dense(
            1,
            "sigmoid",
            kernel_initializer="zeros",
            bias_initializer=keras.initializers.Constant(12.0),
        )
        return functional(keras.Input((1,)), head)

    def measure(self, model):
        optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(1.0), scale=8)
        model.compile(optimizer, "binary_crossentropy", auto_scale_loss=False)
        model.train_on_batch(np.ones((1, 1)), np.zeros((1, 1)))
        return float(numbers(model.layers[-1].bias)[0]) - 12.0

    @pytest.mark.parametrize("policy", HALF)
    def test_it_changes_what_is_learnt(self, policy):
        exact, planned, flipped = outcomes(self.build, self.measure, policy, "output-activation")
        assert exact == pytest.approx(-1, abs=1e-3)
        assert planned == pytest.approx(exact, abs=1e-3)
        assert abs(flipped - exact) > 0.05

    def test_it_is_not_given_inside_nor_to_logits(self):
        inside = functional(keras.Input((4,)), layers.Dense(4, "sigmoid"), layers.Dense(1))
        assert "output-activation" not in codes(inside, "mixed_float16")

    def test_an_activation_of_its_own_is_float32_and_its_product_is_not(self):
        model = functional(keras.Input((4,)), layers.Dense(3), layers.Activation("softmax"))
        rows = {row.layer: row.policy for row in plan(model, "mixed_float16")}
        assert (rows["Dense"], rows["Activation"]) == ("mixed_float16", "float32")

    def test_it_is_seen_through_what_only_moves_values(self):
        model = functional(
            keras.Input((4,)), layers.Dense(6, "sigmoid"), layers.Reshape((2, 3)), layers.Dropout(0)
        )
        rows = {row.layer: (row.policy, row.code) for row in plan(model, "mixed_float16")}
        assert rows["Dense"] == ("float32", "output-activation")


class TestOutput:
    @pytest.mark.parametrize("policy", HALF)
    def test_it_changes_what_is_predicted(self, policy):
        """A price of 100,001: past float16's end, and between bfloat16's numbers."""

        def build():
            head = layers.Dense(1, bias_initializer=keras.initializers.Constant(100_001.0))
            return functional(keras.Input((1,)), head)

        exact, planned, flipped = outcomes(
            build, lambda model: float(numbers(model(np.zeros((1, 1))))[0, 0]), policy, "output"
        )
        assert planned == exact == 100_001
        assert flipped != exact

    def test_it_changes_which_predictions_count_as_right(self):
        """A class of 2,049 becomes 2,048 when labels are cast to float16 predictions."""

        def build():
            return functional(
                keras.Input((4096,)), layers.Dense(4096, kernel_initializer="identity")
            )

        def measure(model):
            predicted = model(np.eye(4096, dtype="float32")[2048:2049])
            right = keras.metrics.sparse_categorical_accuracy(np.array([2049]), predicted)
            return float(numbers(right).max())

        exact, planned, flipped = outcomes(build, measure, "mixed_float16", "wide-output")
        assert (exact, planned) == (0.0, 0.0)
        assert flipped == 1.0

    def test_it_is_given_to_outputs_alone(self):
        model = functional(
            keras.Input((4,)), layers.Dense(4, "relu", name="in"), layers.Dense(2, name="out")
        )
        rows = {row.path: row.code for row in plan(model, "mixed_float16")}
        assert (rows["in"], rows["out"]) == ("product", "output")

    def test_every_output_of_several_and_of_a_nested_model(self):
        inputs = keras.Input((4,))
        shared = layers.Dense(4, name="shared")
        inner = keras.Sequential([keras.Input((4,)), layers.Dense(2, name="end")], name="inner")
        other = layers.Bidirectional(layers.LSTM(2), name="both")(shared(inputs)[:, None])
        model = keras.Model(inputs, [inner(shared(inputs)), other])
        rows = {row.path: row.policy for row in plan(model, "mixed_float16")}
        assert rows["inner/end"] == "float32"
        assert rows["both/forward_lstm"] == rows["both/backward_lstm"] == "float32"
        assert rows["shared"] == "mixed_float16"

    def test_a_subclassed_models_last_product(self):
        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.body = layers.Dense(4, "relu")
                self.end = layers.Dense(1)

            def call(self, inputs):
                return self.end(self.body(inputs))

        model = Net()
        model(np.ones((1, 4)))
        rows = [(row.layer, row.policy) for row in plan(model, "mixed_float16")][1:]
        assert rows == [("Dense", "mixed_float16"), ("Dense", "float32")]


class TestWideOutput:
    """A head over many classes: multiplied in half precision, given in float32."""

    X = np.random.default_rng(0).normal(size=(4, 16)).astype("float32")

    def build(self, units=512, activation=None):
        return functional(
            keras.Input((16,)),
            layers.Dense(64, "relu", name="body"),
            layers.Dense(units, activation, name="end"),
        )

    def product_dtypes(self, model, columns):
        """Dtypes of the matrix products whose result has so many columns, as the backend does
        them in a forward pass."""
        if BACKEND == "torch":
            from torch.utils._python_dispatch import TorchDispatchMode

            found = set()

            class Watch(TorchDispatchMode):
                def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                    result = func(*args, **(kwargs or {}))
                    if "mm" in func.overloadpacket.__name__ and result.shape[-1] == columns:
                        found.add(str(result.dtype).removeprefix("torch."))
                    return result

            tensor = ops.convert_to_tensor(self.X)
            with Watch():
                model(tensor)
            return found
        if BACKEND == "tensorflow":
            import tensorflow as tf

            graph = tf.function(lambda x: model(x)).get_concrete_function(tf.constant(self.X)).graph
            products = [o for o in graph.get_operations() if "MatMul" in o.type]
            return {o.outputs[0].dtype.name for o in products if o.outputs[0].shape[-1] == columns}
        import jax

        def equations(program):
            for equation in program.eqns:
                yield equation
                inner = equation.params.get("jaxpr")
                if inner is not None:
                    yield from equations(getattr(inner, "jaxpr", inner))

        program = jax.make_jaxpr(lambda x: model(x))(self.X).jaxpr
        products = [e for e in equations(program) if e.primitive.name == "dot_general"]
        results = [e.outvars[0].aval for e in products]
        return {str(aval.dtype) for aval in results if aval.shape[-1] == columns}

    def test_flipping_it_changes_in_what_most_is_multiplied(self):
        model = self.build()
        planned = plan(model, "mixed_bfloat16")
        row = planned["end"]
        assert (row.code, row.policy) == ("wide-output", "mixed_bfloat16")
        assert "97% of the model's products" in row.reason
        planned.apply(model)
        assert self.product_dtypes(model, 512) == {"bfloat16"}
        plan(model, "mixed_bfloat16", rules={"end": "float32"}).apply(model)
        assert self.product_dtypes(model, 512) == {"float32"}

    @pytest.mark.parametrize("policy", HALF)
    @pytest.mark.parametrize("activation", [None, "softmax", "sigmoid"])
    def test_what_it_gives_is_float32_and_rounded_once(self, policy, activation):
        model = self.build(activation=activation)
        exact = numbers(model(self.X))
        plan(model, policy).apply(model)
        result = model(self.X)
        assert keras.backend.standardize_dtype(result.dtype) == "float32"
        ulp = {"mixed_float16": 2.0**-10, "mixed_bfloat16": 2.0**-7}[policy]
        assert np.abs(numbers(result) - exact).max() < 8 * ulp * np.abs(exact).max()

    @pytest.mark.parametrize("policy", HALF)
    def test_sure_and_wrong_is_pulled_back_as_in_float32(self, policy):
        """What `output-activation` is for holds here too: the sigmoid itself is float32's."""
        model = self.build(activation="sigmoid")
        end = model.get_layer("end")
        end.kernel.assign(np.zeros((64, 512)))
        end.bias.assign(np.full(512, 12.0))
        plan(model, policy).apply(model)
        optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(512.0), scale=8)
        model.compile(optimizer, "binary_crossentropy", auto_scale_loss=False)
        model.train_on_batch(self.X, np.zeros((4, 512)))
        assert numbers(end.bias) - 12 == pytest.approx(np.full(512, -1.0), abs=1e-2)

    def test_it_is_not_given_to_few_numbers_nor_to_a_small_part_nor_unasked(self):
        assert plan(self.build(units=64), "mixed_bfloat16")["end"].code == "output"
        small = functional(
            keras.Input((16,)), layers.Dense(8192), layers.Dense(8), layers.Dense(128, name="end")
        )
        assert plan(small, "mixed_bfloat16")["end"].code == "output"
        kept = plan(self.build(), "mixed_bfloat16", replace=False)["end"]
        assert (kept.code, kept.policy) == ("output", "float32")
        assert plan(self.build(), "mixed_bfloat16")["body"].code == "product"

    def test_audit_takes_it_for_mended_and_float32_comes_back(self):
        model = self.build()
        exact = numbers(model(self.X))
        plan(model, "mixed_bfloat16").apply(model)
        assert len(keras_mp.audit(model)) == 0
        again = plan(model, "mixed_bfloat16").apply(model)
        assert keras.backend.standardize_dtype(model(self.X).dtype) == "float32"
        assert plan(again, "mixed_bfloat16")["end"].code == "wide-output"
        plan(model, "mixed_bfloat16", replace=False).apply(model)
        assert model.get_layer("end").compute_dtype == "float32"
        plan(model, "float32").apply(model)
        assert type(model.get_layer("end")) is layers.Dense
        assert np.array_equal(numbers(model(self.X)), exact)


class TestUnitNorm:
    def test_it_changes_what_comes_out(self):
        def build():
            inputs = keras.Input((4,))
            unit = layers.UnitNormalization()(inputs)
            return keras.Model(inputs, layers.Dense(1, kernel_initializer="ones")(unit))

        exact, planned, flipped = outcomes(
            build,
            lambda m: numbers(m(np.full((1, 4), 300.0, "float32"))),
            "mixed_float16",
            "unit-norm",
        )
        assert exact == pytest.approx(2.0)
        assert planned == pytest.approx(exact, rel=1e-3)
        assert not np.allclose(flipped, exact, rtol=1e-1)

    def test_so_does_a_normalized_dot(self):
        def build():
            left, right = keras.Input((4,)), keras.Input((4,))
            dot = layers.Dot(1, normalize=True)([left, right])
            return keras.Model([left, right], layers.Dense(1, kernel_initializer="ones")(dot))

        loud = np.full((1, 4), 300.0, "float32")
        exact, planned, flipped = outcomes(
            build, lambda model: numbers(model([loud, loud])), "mixed_float16", "unit-norm"
        )
        assert planned == pytest.approx(exact, rel=1e-3)
        assert not np.allclose(flipped, exact, rtol=1e-1)

    def test_it_is_not_given_where_the_range_suffices_or_nothing_is_normalized(self):
        left, right = keras.Input((4,)), keras.Input((4,))
        dot = keras.Model([left, right], layers.Dense(1)(layers.Dot(1)([left, right])))
        assert "unit-norm" not in codes(dot, "mixed_float16")
        unit = functional(keras.Input((4,)), layers.UnitNormalization(), layers.Dense(1))
        assert "unit-norm" not in codes(unit, "mixed_bfloat16")


class TestTinyEpsilon:
    def build(self, epsilon=1e-12):
        class Standardize(layers.Layer):
            """The user's own norm: in the dtype that it is given."""

            def __init__(self):
                super().__init__(name="norm")
                self.epsilon = epsilon

            def call(self, inputs):
                middle = inputs - ops.mean(inputs, -1, keepdims=True)
                variance = ops.mean(ops.square(middle), -1, keepdims=True)
                return middle / ops.sqrt(variance + self.epsilon)

        return functional(keras.Input((4,)), Standardize(), layers.Dense(1))

    def test_it_changes_what_comes_out(self):
        exact, planned, flipped = outcomes(
            self.build,
            lambda m: numbers(m(np.full((1, 4), 3.0, "float32"))),
            "mixed_float16",
            "tiny-epsilon",
        )
        assert planned == exact == 0
        assert np.isnan(flipped).all()

    @pytest.mark.parametrize(
        ("value", "told"),
        [
            (lambda self: self.eps, "eps=1e-12"),
            (lambda self: self._eps, "_eps=1e-12"),
            (lambda self: self.least, "least=1e-12"),
            (lambda self: 1e-12, "1e-12"),
            (lambda self, small=1e-8: small, "1e-08"),
        ],
    )
    def test_it_goes_by_many_names_or_none(self, value, told):
        class Norm(layers.Layer):
            def __init__(self):
                super().__init__(name="norm")
                self.eps = self._eps = self.least = 1e-12

            def call(self, inputs):
                return inputs / (ops.norm(inputs, axis=-1, keepdims=True) + self.small())

            small = value

        row = plan(functional(keras.Input((4,)), Norm(), layers.Dense(1)), "mixed_float16")["norm"]
        assert row.code == "tiny-epsilon" and f"computes with {told}," in row.reason

    def test_code_that_names_float32_does_not_speak_for_its_helpers(self):
        """As KerasHub's RWKV7: its state is float32, and its keys are divided in half precision."""

        class Mix(layers.Layer):
            def call(self, inputs):
                return ops.cast(self.unit(inputs), "float32")

            def unit(self, values, least=1e-12):
                return values / (ops.norm(values, axis=-1, keepdims=True) + least)

        model = functional(keras.Input((4,)), layers.Dense(4), Mix(name="mix"), layers.Dense(1))
        assert plan(model, "mixed_float16")["mix"].code == "tiny-epsilon"

    def test_what_a_layer_holds_gives_it_the_numbers_that_it_divides(self):
        class Unit(layers.Layer):
            def __init__(self):
                super().__init__(name="unit")
                self.inner = layers.Dense(4, name="inner", kernel_initializer="zeros")
                self.outer = layers.Dense(4, name="outer")

            def call(self, inputs):
                inner = self.inner(inputs)
                return self.outer(inner / (ops.norm(inner, axis=-1, keepdims=True) + 1e-12))

        def build():
            return functional(keras.Input((4,)), Unit(), layers.Dense(1))

        def run(model):
            return numbers(model(np.ones((1, 4), "float32")))

        rows = plan(build(), "mixed_float16")
        assert rows["unit/inner"].code == "tiny-epsilon"
        assert "gives unit numbers" in rows["unit/inner"].reason
        exact, planned, flipped = outcomes(build, run, "mixed_float16", "tiny-epsilon")
        assert planned == exact
        assert np.isnan(flipped).all()

    def test_it_is_not_given_to_a_larger_one_nor_in_bfloat16_nor_to_keras_own(self):
        assert "tiny-epsilon" not in codes(self.build(1e-5), "mixed_float16")
        assert "tiny-epsilon" not in codes(self.build(), "mixed_bfloat16")
        norm = layers.LayerNormalization(epsilon=1e-12)
        model = functional(keras.Input((4,)), norm, layers.Dense(1))
        assert "tiny-epsilon" not in codes(model, "mixed_float16")

    def test_nor_where_the_code_hands_it_on_or_computes_in_float32(self):
        """As KerasHub's BERT does, whose norms take 1e-12 and work in float32."""

        class Block(layers.Layer):
            def __init__(self):
                super().__init__()
                self.epsilon = 1e-12
                self.norm = layers.LayerNormalization(epsilon=self.epsilon)

            def call(self, inputs):
                return self.norm(inputs)

        class Wide(layers.Layer):
            def call(self, inputs):
                wide = ops.cast(inputs, "float32")
                wide = wide / (ops.norm(wide, axis=-1, keepdims=True) + 1e-12)
                return ops.cast(wide, inputs.dtype)

        model = functional(keras.Input((4,)), Block(), Wide(), layers.Dense(1))
        assert "tiny-epsilon" not in codes(model, "mixed_float16")


class TestLargeNumber:
    """The usual way to mask: where all is masked, float16 has infinities alone."""

    def build(self, number=-1e9):
        class Look(layers.Layer):
            def call(self, scores):
                return self.masked(scores, ops.cast(scores < 0, scores.dtype))

            def masked(self, scores, mask, small=number):
                return ops.softmax(scores + mask * small)

        inputs, look = keras.Input((4,)), Look(name="look")
        first = layers.Dense(4, kernel_initializer="identity")
        last = layers.Dense(1, kernel_initializer="ones")
        return functional(inputs, first, look, last)

    def test_it_changes_what_comes_out(self):
        exact, planned, flipped = outcomes(
            self.build,
            lambda m: numbers(m(np.array([[-1.0, -2.0, -3.0, -4.0]], "float32"))),
            "mixed_float16",
            "large-number",
        )
        assert planned == exact == pytest.approx(1.0)
        assert np.isnan(flipped).all()

    def test_it_is_not_given_to_a_smaller_one_nor_in_bfloat16(self):
        assert "large-number" not in codes(self.build(-3e4), "mixed_float16")
        assert "large-number" not in codes(self.build(), "mixed_bfloat16")


def segmented(rows):
    segments = ops.zeros_like(rows[:, 0], dtype="int32")
    return ops.segment_sum(rows, segments, num_segments=1)


def scattered(rows):
    places = ops.zeros_like(rows[:, :1], dtype="int32")
    return ops.scatter(places, rows, (1, 4))


class TestRunningSum:
    """One number added after the other in half precision: a sum of ones stops, at 256 or 2,048."""

    X = np.ones((3000, 4), "float32")

    class Total(layers.Layer):
        """All rows in one segment."""

        add = staticmethod(scattered if BACKEND == "torch" else segmented)

        def call(self, inputs):
            return self.add(inputs)

    class Wide(Total):
        def call(self, inputs):
            return super().call(ops.cast(inputs, "float32"))

    class Right(Total):
        add = staticmethod(segmented)

    def build(self, kind):
        first = layers.Dense(4, kernel_initializer="identity", name="first")
        last = layers.Dense(1, kernel_initializer="ones", name="last")
        return functional(keras.Input((4,)), first, kind(name="total"), last)

    @pytest.mark.parametrize(
        ("policy", "stops"), [("mixed_float16", 2048), ("mixed_bfloat16", 256)]
    )
    def test_it_changes_what_comes_out(self, policy, stops):
        exact, planned, flipped = outcomes(
            lambda: self.build(self.Total),
            lambda m: numbers(m(self.X)),
            policy,
            "running-sum",
        )
        assert exact == planned == 4 * 3000
        assert flipped == 4 * stops

    @pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
    def test_what_a_model_of_ones_own_code_sums_is_float32(self, policy):
        total = self.Total.add

        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.first = layers.Dense(4, name="first")
                self.second = layers.Dense(4, kernel_initializer="identity", name="second")
                self.last = layers.Dense(1, kernel_initializer="ones", name="last")

            def call(self, inputs):
                inner = self.second(self.first(inputs))
                return self.last(total(inner))

        model = Net()
        model(self.X)
        model.first.kernel.assign(np.eye(4))
        planned = plan(model, policy)
        assert {row.path for row in planned if row.code == "running-sum"} == {"", "second"}
        assert planned["first"].policy == policy
        planned.apply(model)
        assert numbers(model(self.X)) == 4 * 3000

    @pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
    def test_it_is_not_given_where_sums_are_wide(self, policy):
        model = self.build(self.Right if BACKEND == "torch" else self.Wide)
        assert "running-sum" not in codes(model, policy)
        plan(model, policy).apply(model)
        assert numbers(model(self.X)) == pytest.approx(4 * 3000, rel=0.01)


class TestHalfVariables:
    """Weights in half precision: no policy helps, masters do."""

    def build(self, policy):
        with keras_mp.policy_scope(policy):
            body = layers.Dense(1, use_bias=False, kernel_initializer="ones", name="body")
        end = layers.Dense(1, use_bias=False, kernel_initializer="ones", name="end")
        return functional(keras.Input((1,)), body, end)

    @pytest.mark.filterwarnings("ignore::keras_mp.EmulatedPrecisionWarning")
    @pytest.mark.parametrize("half", ["float16", "bfloat16"])
    def test_following_it_changes_what_is_learnt(self, half):
        """Twenty updates of 1e-4 to a weight of 1: below half of half precision's step."""
        moved = []
        for masters in (False, True):
            model = self.build(half)
            planned = plan(model, f"mixed_{half}")
            row = planned["body"]
            assert row.code == "half-variables" and f"weights are {half}" in row.reason
            planned.apply(model)
            optimizer = keras.optimizers.SGD(1e-4)
            optimizer = keras_mp.LossScaleOptimizer(optimizer) if masters else optimizer
            model.compile(optimizer, "mae", auto_scale_loss=False)
            for _ in range(40):
                model.train_on_batch(np.ones((1, 1)), np.zeros((1, 1)))
            moved.append(1 - numbers(model.get_layer("body").kernel).item())
        assert moved[0] == 0
        assert moved[1] == pytest.approx(40e-4, abs=4e-3) and moved[1] > 0

    @pytest.mark.parametrize("half", ["float16", "bfloat16"])
    @pytest.mark.parametrize(
        ("shape", "end"),
        [
            ((6,), lambda: layers.Dense(2)),
            ((5, 5, 2), lambda: layers.Conv2D(2, 3)),
            ((5, 4), lambda: layers.EinsumDense("abc,cd->abd", (None, 2))),
        ],
    )
    def test_in_a_float32_layer_they_are_cast_up(self, half, shape, end):
        """torch's products of float32 inputs with half-precision weights raise."""
        with keras_mp.policy_scope(half):
            model = functional(keras.Input(shape), end())
        planned = plan(model, f"mixed_{half}")
        planned.apply(model)
        data = np.random.default_rng(0).normal(size=(2, *shape)).astype("float32")
        result = model(data)
        layer = model.layers[-1]
        weights = [numbers(weight) for weight in layer.weights]
        assert keras.backend.standardize_dtype(result.dtype) == "float32"
        exact = functional(keras.Input(shape), end())
        exact.set_weights(weights)
        np.testing.assert_allclose(numbers(result), numbers(exact(data)), rtol=1e-5, atol=1e-6)

    def test_it_is_not_given_to_float32_weights(self):
        assert "half-variables" not in codes(self.build("mixed_bfloat16"), "mixed_bfloat16")
        assert "half-variables" not in codes(self.build("float32"), "mixed_float16")


class TestMeanPooling:
    def masked(self, mask_zero=True):
        table = keras.initializers.Constant(100.0)
        return functional(
            keras.Input((4096,), dtype="int32"),
            layers.Embedding(4, 2, mask_zero=mask_zero, embeddings_initializer=table),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1, kernel_initializer="ones"),
        )

    def test_it_changes_what_comes_out(self):
        data = np.ones((1, 4096), "int32")
        exact, planned, flipped = outcomes(
            self.masked, lambda model: numbers(model(data)), "mixed_float16", "mean-pooling"
        )
        assert exact == pytest.approx(200)
        assert planned == pytest.approx(exact, rel=1e-3)
        assert not np.allclose(flipped, exact, rtol=1e-2)

    def test_it_is_not_given_without_a_mask_nor_in_bfloat16(self):
        assert "mean-pooling" not in codes(self.masked(mask_zero=False), "mixed_float16")
        assert "mean-pooling" not in codes(self.masked(), "mixed_bfloat16")

    def test_small_windows_are_left(self):
        def pooled(size):
            return functional(
                keras.Input((32, 32, 1)), layers.AveragePooling2D(size), layers.Conv2D(1, 1)
            )

        assert "mean-pooling" not in codes(pooled(2), "mixed_float16")
        assert "mean-pooling" in codes(pooled(16), "mixed_float16")


class TestActivityRegularizer:
    def build(self, regularizer=True):
        body = layers.Dense(
            512,
            use_bias=False,
            kernel_initializer="ones",
            activity_regularizer=keras.regularizers.L2(1e-4) if regularizer else None,
        )
        return functional(keras.Input((64,)), body, layers.Dense(1))

    def test_it_changes_the_loss(self):
        def measure(model):
            model(np.ones((16, 64), "float32"))
            return float(numbers(model.losses[0]))

        exact, planned, flipped = outcomes(
            self.build, measure, "mixed_float16", "activity-regularizer"
        )
        assert planned == pytest.approx(exact, rel=1e-3)
        assert not np.isfinite(flipped)

    def test_it_is_not_given_without_one_nor_in_bfloat16(self):
        assert "activity-regularizer" not in codes(self.build(False), "mixed_float16")
        assert "activity-regularizer" not in codes(self.build(), "mixed_bfloat16")


class TestAttentionMask:
    def build(self):
        query, value = keras.Input((4, 32)), keras.Input((4, 32))
        mask = keras.Input((4,), dtype="bool")
        found = layers.Attention()([query, value], mask=[None, mask])
        return keras.Model([query, value, mask], layers.Dense(1)(found))

    @pytest.mark.skipif(BACKEND != "torch", reason="only torch's sum leaves float16's range")
    def test_it_changes_what_comes_out(self):
        query = (np.random.RandomState(0).randn(2, 4, 32) * 6).astype("float32")
        mask = np.array([[False] * 4, [True] * 4])
        exact, planned, flipped = outcomes(
            self.build,
            lambda model: numbers(model([query, -query, mask])),
            "mixed_float16",
            "attention-mask",
        )
        assert planned == pytest.approx(exact, rel=5e-2, abs=5e-2)  # half precision, by ours
        assert not np.isfinite(flipped).all()

    def test_it_is_given_on_torch_in_float16_alone(self):
        assert ("attention-mask" in codes(self.build(), "mixed_float16")) == (BACKEND == "torch")
        assert "attention-mask" not in codes(self.build(), "mixed_bfloat16")
        tokens = keras.Input((4, 8))
        unmasked = keras.Model(tokens, layers.Dense(1)(layers.Attention()([tokens, tokens])))
        assert "attention-mask" not in codes(unmasked, "mixed_float16")
        heads = keras.Model(
            tokens, layers.Dense(1)(layers.MultiHeadAttention(2, 4)(tokens, tokens))
        )
        assert "attention-mask" not in codes(heads, "mixed_float16")


class TestNoKernel:
    def build(self):
        return functional(
            keras.Input((4, 4, 4, 1)), layers.MaxPooling3D(2), layers.Flatten(), layers.Dense(1)
        )

    @pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow lacks that kernel")
    def test_it_changes_whether_it_runs(self):
        model = self.build()
        data = np.ones((1, 4, 4, 4, 1), "float32")
        plan(model, "mixed_float16").apply(model)
        assert np.isfinite(numbers(model(data))).all()
        plan(model, "mixed_float16", rules={layers.MaxPooling3D: "mixed_float16"}).apply(model)
        with pytest.raises(Exception, match=r"No OpKernel|kernels registered"):
            model(data)

    def attention(self):
        tokens = keras.Input((4, 8))
        return keras.Model(tokens, layers.Dense(1)(layers.MultiHeadAttention(2, 4)(tokens, tokens)))

    @pytest.mark.skipif(BACKEND != "jax", reason="only XLA lacks that product")
    def test_it_changes_whether_attention_runs(self):
        data = np.ones((1, 4, 8), "float32")
        model = self.attention()
        plan(model, "mixed_float16").apply(model)
        assert np.isfinite(model.predict(data, verbose=0)).all()
        rules = {layers.MultiHeadAttention: "mixed_float16"}
        plan(model, "mixed_float16", rules=rules).apply(model)
        with pytest.raises(Exception, match="not supported by dot_general on CPU"):
            model.predict(data, verbose=0)

    def test_attention_is_given_it_on_jax_in_float16_alone(self):
        assert ("no-kernel" in codes(self.attention(), "mixed_float16")) == (BACKEND == "jax")
        assert "no-kernel" not in codes(self.attention(), "mixed_bfloat16")

    def test_it_is_given_on_tensorflow_in_float16_alone(self):
        assert ("no-kernel" in codes(self.build(), "mixed_float16")) == (BACKEND == "tensorflow")
        assert "no-kernel" not in codes(self.build(), "mixed_bfloat16")


class TestOneDtype:
    """A user's own code that joins a half-precision value and a float32 one by an operator."""

    X = np.ones((2, 8), "float32")

    def block(self, join):
        class Block(layers.Layer):
            def __init__(self):
                super().__init__(name="block")
                self.body, self.unit = layers.Dense(8, name="body"), layers.UnitNormalization()

            def call(self, inputs):
                return join(inputs, self.unit(self.body(inputs)))

        return functional(keras.Input((8,)), layers.Dense(8), Block(), layers.Dense(1))

    @pytest.mark.skipif(BACKEND != "tensorflow", reason="torch and jax promote")
    def test_it_changes_whether_it_runs(self):
        model = self.block(lambda a, b: a + b)
        exact = numbers(model(self.X))
        planned = plan(model, "mixed_float16")
        changed = [row.path for row in planned if row.code == "one-dtype"]
        assert changed == ["block"]  # its inputs stay float32, and its product is in half precision
        assert [planned[path].policy for path in ("block", "block/body")] == [
            "float32",
            "mixed_float16",
        ]
        planned.apply(model)
        assert numbers(model(self.X)) == pytest.approx(exact, abs=1e-2)
        rules = dict.fromkeys(changed, "mixed_float16")
        plan(model, "mixed_float16", rules=rules).apply(model)
        with pytest.raises(Exception, match=r"does not match type|expected to be a"):
            model(self.X)

    @pytest.mark.skipif(BACKEND != "tensorflow", reason="torch and jax promote")
    def test_a_result_that_is_only_rounded_gives_way_first(self):
        """Half precision for what was float32 as an output costs digits, not the model."""

        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.body, self.end = layers.Dense(8, name="body"), layers.Dense(8, name="end")

            def call(self, inputs):
                hidden = self.body(inputs)
                return hidden + self.end(hidden)

        model = Net()
        model(self.X)
        planned = plan(model, "mixed_bfloat16")
        assert (planned["end"].code, planned["end"].policy) == ("one-dtype", "mixed_bfloat16")
        planned.apply(model)
        assert np.isfinite(model.predict(self.X, verbose=0)).all()
        kept = plan(model, "mixed_bfloat16", rules={"end": "float32"})  # the others follow a rule
        assert (kept["end"].code, kept["body"].code) == ("rule", "one-dtype")
        assert kept["body"].policy == "float32"
        rules = {"end": "float32", "body": "mixed_bfloat16"}
        plan(model, "mixed_bfloat16", rules=rules).apply(model)
        with pytest.raises(Exception, match=r"does not match type|expected to be a"):
            model(self.X)

    @pytest.mark.parametrize("policy", HALF)
    def test_a_layer_without_others_that_joins_what_is_float32(self, policy):
        """As noise and constants are; KerasHub's mixture of experts does so in training alone."""

        class Noise(layers.Layer):
            def call(self, inputs, training=False):
                noise = keras.random.normal(ops.shape(inputs), dtype="float32", seed=1)
                return inputs * noise if training else inputs

        model = functional(keras.Input((8,)), layers.Dense(8), Noise(name="noise"), layers.Dense(1))
        audited = [f.layer for f in keras_mp.audit(model, policy) if f.code == "one-dtype"]
        planned = plan(model, policy)
        changed = [row.path for row in planned if row.code == "one-dtype"]
        assert changed == audited == (["noise"] if BACKEND == "tensorflow" else [])
        planned.apply(model)
        model.compile(keras.optimizers.SGD(0.01), "mse")
        assert np.isfinite(model.train_on_batch(self.X, np.ones((2, 1))))
        if changed:
            plan(model, policy, rules={"noise": policy}).apply(model)
            with pytest.raises(Exception, match=r"does not match type|expected to be a"):
                model.train_on_batch(self.X, np.ones((2, 1)))

    @pytest.mark.parametrize("policy", HALF)
    def test_an_activation_of_ones_own_that_joins_what_is_float32(self, policy):
        def bent(values, slope=0.9):
            return ops.relu(values) - ops.relu(-values) * ops.convert_to_tensor(slope, "float32")

        body = layers.Dense(8, activation=bent, name="body")
        like = layers.Dense(8, activation=lambda values: ops.relu(values))
        model = functional(keras.Input((8,)), body, like, layers.Dense(1))
        planned = plan(model, policy)
        assert (planned["body"].code == "one-dtype") == (BACKEND == "tensorflow")
        planned.apply(model)
        assert np.isfinite(numbers(model(self.X))).all()

    @pytest.mark.parametrize("policy", ["float16", "bfloat16"])
    def test_it_is_not_given_for_weights_that_are_wider_than_the_policy(self, policy):
        model = self.block(ops.add)
        assert "one-dtype" not in codes(model, policy)
        assert "one-dtype" not in {finding.code for finding in keras_mp.audit(model, policy)}

    def test_it_is_not_given_where_dtypes_are_promoted_or_agree(self):
        assert "one-dtype" not in codes(self.block(lambda a, b: ops.add(a, b)), "mixed_float16")
        assert "one-dtype" not in codes(self.block(lambda a, b: a + b), "mixed_bfloat16")
        given = "one-dtype" in codes(self.block(lambda a, b: a + b), "mixed_float16")
        assert given == (BACKEND == "tensorflow")


@pytest.mark.skipif(BACKEND != "torch", reason="the layer is torch's")
class TestForeign:
    def build(self):
        import torch

        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.body = layers.TorchModuleWrapper(torch.nn.Linear(4, 4))
                self.end = layers.Dense(1)

            def call(self, inputs):
                return self.end(self.body(inputs))

        model = Net()
        model(np.ones((1, 4), "float32"))
        return model

    @pytest.mark.parametrize("policy", HALF)
    def test_it_changes_whether_it_runs(self, policy):
        model = self.build()
        data = np.ones((1, 4), "float32")
        plan(model, policy, replace=False).apply(model)
        assert np.isfinite(numbers(model(data))).all()
        plan(model, policy, replace=False, rules={layers.TorchModuleWrapper: policy}).apply(model)
        with pytest.raises(RuntimeError, match="dtype"):
            model(data)
        plan(model, policy).apply(model)  # ours in its place
        assert np.isfinite(numbers(model(data))).all()


class TestMeasuredOverflow:
    """What no rule can know without data: how large the values are."""

    def build(self):
        return functional(
            keras.Input((8,)),
            layers.Dense(4, kernel_initializer="ones", name="loud"),
            layers.LayerNormalization(name="norm"),
            layers.Dense(4, kernel_initializer="ones", name="quiet"),
            layers.Dense(1, kernel_initializer="ones", name="end"),
        )

    LOUD = np.full((1, 8), 10_000.0, "float32") * np.arange(1, 9)

    def test_it_changes_what_comes_out(self):
        model = self.build()
        exact = numbers(model(self.LOUD))
        planned = plan(model, "mixed_float16", self.LOUD)
        assert [row.path for row in planned if row.code == "measured-overflow"] == ["loud", "norm"]
        planned.apply(model)
        assert numbers(model(self.LOUD)) == pytest.approx(exact, abs=1e-2)
        rules = {"loud": "mixed_float16"}
        plan(model, "mixed_float16", self.LOUD, rules=rules).apply(model)
        assert not np.isfinite(numbers(model(self.LOUD))).all()

    def test_it_is_not_given_without_data_nor_to_quiet_data_nor_in_bfloat16(self):
        model = self.build()
        quiet = np.ones((1, 8), "float32")
        for planned in (
            plan(model, "mixed_float16"),
            plan(model, "mixed_float16", quiet),
            plan(model, "mixed_bfloat16", self.LOUD),
        ):
            assert "measured-overflow" not in {row.code for row in planned}

    def test_a_layers_parts_are_measured_with_it(self):
        tokens = keras.Input((4, 64))
        heads = layers.MultiHeadAttention(1, 64, kernel_initializer="ones", name="heads")
        model = keras.Model(tokens, layers.Dense(1)(heads(tokens, tokens)))
        loud = np.full((1, 4, 64), 1_000.0, "float32")
        rows = {row.path: row.policy for row in plan(model, "mixed_float16", loud)}
        assert rows["heads"] == rows["heads/query"] == "float32"

    def test_the_model_is_as_it_was_afterwards(self):
        model = self.build()
        plan(model, "mixed_float16").apply(model)
        before = numbers(model(np.ones((1, 8))))
        plan(model, "mixed_float16", np.ones((1, 8)))
        assert model.get_layer("quiet").compute_dtype == "float16"
        assert "call" not in vars(model.get_layer("quiet"))
        assert np.array_equal(numbers(model(np.ones((1, 8)))), before)


def test_no_reason_speaks_against_what_is_right_in_half_precision():
    model = functional(
        keras.Input((16, 16, 3)),
        layers.Conv2D(8, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.MaxPooling2D(),
        layers.GlobalAveragePooling2D(),
        layers.LayerNormalization(epsilon=1e-12),
        layers.Dropout(0.1),
        layers.Dense(4),
    )
    rows = [(row.code, row.policy) for row in plan(model, "mixed_float16")]
    assert [code for code, policy in rows if policy == "float32"] == ["output"]
