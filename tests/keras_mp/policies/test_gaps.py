"""What a backend lacks or loses in half precision: a plan finds it, and it is so."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_mp

pytestmark = pytest.mark.backend
HALF = ("mixed_float16", "mixed_bfloat16")


def codes(model, policy):
    return {row.layer: row.code for row in keras_mp.plan(model, policy, device="cpu")}


def host(tensor):
    return np.asarray(ops.convert_to_numpy(ops.cast(tensor, "float32")))


class Counting(layers.Layer):
    """A layer of a user's that counts its calls in a float32 variable, as Keras' guides show it."""

    def __init__(self, autocast=True, **kwargs):
        super().__init__(**kwargs)
        self.calls = self.add_weight(
            shape=(), initializer="zeros", trainable=False, autocast=autocast
        )

    def call(self, inputs):
        self.calls.assign(self.calls + 1.0)
        return inputs


class TestLostState:
    def model(self, policy="float32", **kwargs):
        with keras_mp.policy_scope(policy):
            counting = Counting(**kwargs)
            return keras.Sequential([keras.Input((2,)), counting, layers.Dense(1)])

    def counted(self, model):
        for _ in range(3):
            model(np.ones((1, 2), "float32"))
        return float(host(model.layers[0].calls.value))

    @pytest.mark.parametrize("policy", HALF)
    def test_it_is_so_on_torch_and_a_plan_mends_it(self, policy, backend):
        stock = self.counted(self.model(policy))
        planned = self.model()
        keras_mp.plan(planned, policy).apply(planned)
        assert self.counted(planned) == 3
        assert stock == (0 if backend == "torch" else 3)
        found = codes(self.model(), policy)["Counting"]
        assert found == ("lost-state" if backend == "torch" else "custom")

    def test_a_variable_that_is_not_cast_is_safe(self):
        assert codes(self.model(autocast=False), "mixed_float16")["Counting"] == "custom"
        model = self.model("mixed_float16", autocast=False)
        assert self.counted(model) == 3

    def test_spectral_normalization(self, backend):
        model = keras.Sequential(
            [keras.Input((4,)), layers.SpectralNormalization(layers.Dense(3)), layers.Dense(1)]
        )
        keras_mp.plan(model, "mixed_bfloat16").apply(model)
        model(np.ones((2, 4), "float32"), training=True)
        kernel = host(model.layers[0].layer.kernel.value)
        start = kernel / np.linalg.norm(kernel, 2)
        assert model.layers[0].compute_dtype == ("float32" if backend == "torch" else "bfloat16")
        for _ in range(20):
            model(np.ones((2, 4), "float32"), training=True)
        kernel = host(model.layers[0].layer.kernel.value)
        assert np.linalg.norm(kernel, 2) == pytest.approx(1, abs=0.02)
        np.testing.assert_allclose(kernel, start, rtol=0.02, atol=0.02)


class TestNoGradient:
    def model(self, interpolation):
        return keras.Sequential(
            [
                keras.Input((4, 4, 1)),
                layers.Dense(2, name="below"),
                layers.UpSampling2D(2, interpolation=interpolation),
                layers.Dense(1),
            ]
        )

    @pytest.mark.parametrize("policy", HALF)
    def test_what_stands_below_a_bicubic_resize_trains(self, policy):
        model = self.model("bicubic")
        keras_mp.plan(model, policy).apply(model)
        optimizer = keras_mp.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
        model.compile(optimizer, "mse")
        before = host(model.get_layer("below").kernel.value)
        model.train_on_batch(np.ones((2, 4, 4, 1)), np.full((2, 8, 8, 1), 3.0))
        assert not np.array_equal(host(model.get_layer("below").kernel.value), before)

    def test_it_is_said_on_tensorflow_alone(self, backend):
        expected = "no-gradient" if backend == "tensorflow" else "pointwise"
        assert codes(self.model("bicubic"), "mixed_bfloat16")["UpSampling2D"] == expected
        assert codes(self.model("nearest"), "mixed_bfloat16")["UpSampling2D"] == "pointwise"


class TestSums:
    def model(self, masked):
        inputs, mask = keras.Input((4000, 1)), keras.Input((4000,), dtype="bool")
        pooled = layers.GlobalAveragePooling1D()(inputs, mask=mask if masked else None)
        model = keras.Model([inputs, mask], layers.Dense(1, kernel_initializer="ones")(pooled))
        return model

    def test_a_mask_given_by_hand_is_seen(self):
        model = self.model(masked=True)
        assert codes(model, "mixed_float16")["GlobalAveragePooling1D"] == "mean-pooling"
        keras_mp.plan(model, "mixed_float16").apply(model)
        outputs = model([np.full((1, 4000, 1), 100.0, "float32"), np.ones((1, 4000), bool)])
        assert host(outputs)[0, 0] == pytest.approx(100, rel=1e-3)

    def test_without_one_nothing_is_said(self):
        found = codes(self.model(masked=False), "mixed_float16")["GlobalAveragePooling1D"]
        assert found == "reduction"


class TestLongWindows:
    def pooled(self, policy, planned):
        with keras_mp.policy_scope("float32" if planned else policy):
            model = keras.Sequential(
                [
                    keras.Input((4096, 1)),
                    layers.AveragePooling1D(4096),
                    layers.Dense(1, kernel_initializer="ones", dtype="float32"),
                ]
            )
        if planned:
            keras_mp.plan(model, policy).apply(model)
        return float(host(model(np.ones((1, 4096, 1), "float32")))[0, 0, 0])

    def test_a_mean_of_ones_in_bfloat16(self, backend):
        assert self.pooled("mixed_bfloat16", planned=True) == 1.0
        if backend == "jax":
            assert self.pooled("mixed_bfloat16", planned=False) == 256 / 4096


@pytest.mark.parametrize("policy", HALF)
def test_pooling_in_three_dimensions_runs_under_a_plan(policy):
    for layer in (layers.AveragePooling3D, layers.MaxPooling3D, layers.AdaptiveAveragePooling3D):
        model = keras.Sequential(
            [keras.Input((4, 4, 4, 1)), layer(2), layers.Flatten(), layers.Dense(1)]
        )
        keras_mp.plan(model, policy, device="cpu").apply(model)
        assert np.isfinite(host(model(np.ones((1, 4, 4, 4, 1), "float32")))).all()


class TestShallowVolumes:
    """oneDNN's bfloat16 gradient of a kernel that is deeper than its padded volume.

    It is not run here: what it reads is not its own, and with a kernel seven deep it writes there.
    """

    def code(self, layer, shape, policy="mixed_bfloat16"):
        model = keras.Sequential(
            [keras.Input(shape), layer, layers.Flatten(), layers.Dense(1, dtype="float32")]
        )
        row = next(
            row for row in keras_mp.plan(model, policy, device="cpu") if row.path == layer.name
        )
        return row.code

    @pytest.mark.parametrize("kind", ["Conv3D", "Conv3DTranspose"])
    def test_a_padded_volume_less_deep_than_the_kernel(self, kind, backend):
        make = getattr(layers, kind)
        found = self.code(make(2, 3, padding="same"), (2, 8, 8, 4))
        assert (found == "wrong-kernel") == (backend == "torch")
        for shape, padding in (((3, 8, 8, 4), "same"), ((8, 2, 8, 4), "same")):
            assert self.code(make(2, 3, padding=padding), shape) != "wrong-kernel"
        assert self.code(make(2, (2, 3, 3)), (2, 8, 8, 4)) != "wrong-kernel"  # not padded
        in_float16 = self.code(make(2, 3, padding="same"), (2, 8, 8, 4), "mixed_float16")
        assert in_float16 != "wrong-kernel"

    def test_the_steps_of_a_convolutional_lstm_are_padded(self, backend):
        found = self.code(layers.ConvLSTM3D(2, 3), (2, 4, 5, 5, 2))
        assert (found == "wrong-kernel") == (backend == "torch")
        assert self.code(layers.ConvLSTM3D(2, 3), (2, 5, 5, 5, 2)) != "wrong-kernel"

    def test_an_audit_tells(self, backend):
        with keras_mp.policy_scope("mixed_bfloat16"):
            model = keras.Sequential(
                [
                    keras.Input((2, 8, 8, 4)),
                    layers.Conv3D(2, 3, padding="same"),
                    layers.Flatten(),
                    layers.Dense(1, dtype="float32"),
                ]
            )
        found = [f.code for f in keras_mp.audit(model, device="cpu") if f.severity == "error"]
        assert found == (["wrong-kernel"] if backend == "torch" else [])


class TestNarrowActivations:
    def model(self, activation, policy="float32", alone=True):
        with keras_mp.policy_scope(policy):
            body = [layers.Activation(activation, name="act")]
            if not alone:
                body = [layers.Dense(4, activation, kernel_initializer="identity", name="act")]
            return keras.Sequential(
                [keras.Input((4,)), *body, layers.Rescaling(1, dtype="float32")]
            )

    @pytest.mark.parametrize("alone", [True, False])
    @pytest.mark.parametrize(("activation", "x"), [("squareplus", 300.0), ("tanh_shrink", 2**-6)])
    def test_it_is_so_and_a_plan_mends_it(self, activation, x, alone):
        x = np.full((1, 4), x, "float32")
        exact, stock = (
            host(self.model(activation, policy, alone)(x)) for policy in ("float32", HALF[0])
        )
        planned = self.model(activation, alone=alone)
        plan = keras_mp.plan(planned, HALF[0])
        assert (plan["act"].code, plan["act"].policy) == ("activation", "float32")
        plan.apply(planned)
        assert not np.allclose(stock, exact, rtol=0.1)
        assert np.allclose(host(planned(x)), exact, rtol=1e-3)

    def test_others_stay_in_half_precision(self):
        for name in ("relu", "gelu", "silu", "mish", "tanh", "elu"):
            for policy in HALF:
                assert keras_mp.plan(self.model(name), policy)["act"].code == "pointwise"


class TestAddedLoss:
    """A layer that adds a loss: in half precision it is rounded or infinite, and on TensorFlow the
    model does not train."""

    X = np.full((1, 4097), 17.0, "float32")

    class Penalty(layers.Layer):
        def call(self, inputs):
            self.add_loss(ops.sum(inputs))
            return inputs

    def build(self):
        inputs = keras.Input((4097,))
        body = layers.Dense(4097, kernel_initializer="identity", use_bias=False)(inputs)
        pooled = layers.Dense(1, kernel_initializer="zeros")(self.Penalty()(body))
        return keras.Model(inputs, pooled)

    def loss(self, model):
        model.compile(keras.optimizers.SGD(0.0), "mse", auto_scale_loss=False)
        return float(np.asarray(model.test_on_batch(self.X, np.zeros((1, 1)))))

    @pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
    def test_it_changes_the_loss_or_whether_there_is_one(self, policy):
        model = self.build()
        planned = keras_mp.plan(model, policy)
        rows = [row for row in planned if row.code == "added-loss"]
        assert [row.layer for row in rows] == ["Penalty"]
        planned.apply(model)
        assert self.loss(model) == pytest.approx(17 * 4097, rel=1e-6)
        keras_mp.plan(model, policy, rules={rows[0].path: policy}).apply(model)
        if keras.backend.backend() == "tensorflow":
            with pytest.raises(TypeError):
                self.loss(model)
        else:
            assert abs(self.loss(model) - 17 * 4097) > 1

    @pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="others promote")
    def test_a_model_whose_own_code_adds_one_trains(self):
        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.body, self.end = layers.Dense(8, name="body"), layers.Dense(1)
                self.code = layers.Dense(8, name="code")

            def call(self, inputs):
                inner = self.code(self.body(inputs))
                self.add_loss(ops.mean(inner))
                return self.end(inner)

        model = Net()
        model(np.ones((2, 4), "float32"))
        planned = keras_mp.plan(model, "mixed_bfloat16")
        assert planned["code"].code == "one-dtype"
        assert planned["body"].policy == "mixed_bfloat16"  # it has no part in the loss
        planned.apply(model)
        model.compile(keras.optimizers.SGD(0.01), "mse")
        assert np.isfinite(model.train_on_batch(np.ones((2, 4)), np.ones((2, 1))))

    def test_it_is_not_given_to_layers_that_add_none(self):
        class Plain(layers.Layer):
            def call(self, inputs):
                return 2.0 * inputs

        inputs = keras.Input((4,))
        model = keras.Model(inputs, layers.Dense(1)(Plain()(layers.Dense(4)(inputs))))
        assert "added-loss" not in {row.code for row in keras_mp.plan(model, "mixed_float16")}
