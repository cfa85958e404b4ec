"""What a calibration batch shows, against what a real float16 pass does."""

import importlib.util
import json
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_mp
from keras_mp.policies.plan import plan

pytestmark = pytest.mark.backend
BACKEND = keras.backend.backend()
DEMO = Path(__file__).parents[3] / "examples" / "digit_heatmap.py"


def numbers(tensor):
    return np.asarray(ops.convert_to_numpy(ops.cast(tensor, "float32")), "float64")


def demo():
    """The demo's net, with a batch of its real digits."""
    spec = importlib.util.spec_from_file_location("digit_heatmap", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = np.random.default_rng(0)
    train, _ = module.load_digits(rng)
    x, y, _, _ = module.make_scenes(*train, 256, rng)
    return module.build_model(keras), x, y


def zero_gradients(model, x, y, scale=1.0):
    """Layer -> share of zeros in the loss' gradient with respect to its output, as the model
    really computes it. By the backend's own means, layer by layer."""
    x, y = ops.convert_to_tensor(x), ops.convert_to_tensor(y)

    def forward(first, start=0):
        outputs = []
        for layer in model.layers[start:]:
            first = layer(first)
            outputs.append(first)
        return outputs, ops.mean(ops.square(ops.cast(first, "float32") - y)) * scale

    if BACKEND == "torch":
        import torch

        outputs, loss = forward(x)
        gradients = torch.autograd.grad(loss, outputs)
    elif BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            outputs, loss = forward(x)
        gradients = tape.gradient(loss, outputs)
    else:
        import jax

        outputs, _ = forward(x)

        def rest(out, start):
            given, loss = forward(out, start)
            return loss if given else ops.mean(ops.square(ops.cast(out, "float32") - y)) * scale

        gradients = [jax.grad(rest)(out, i + 1) for i, out in enumerate(outputs)]
    counts = [(numbers(g) == 0) for g in gradients]
    shares = {layer.name: zero.mean() for layer, zero in zip(model.layers, counts, strict=True)}
    return shares, sum(zero.sum() for zero in counts) / sum(zero.size for zero in counts)


@pytest.fixture(scope="module")
def trained():
    keras.utils.set_random_seed(0)
    model, x, y = demo()
    model.compile(keras.optimizers.Adam(2e-3), "mse")
    model.fit(x, y, batch_size=64, epochs=6, verbose=0)
    return model, x, y


# jax compiles each operator of an eager pass by itself: seconds, not milliseconds.
@(pytest.mark.slow if BACKEND == "jax" else lambda tests: tests)
class TestLostGradients:
    """The paper's loss (reference: figure 3 on this net): predicted in float32, then done."""

    def test_float32_predicts_what_float16_loses(self, trained):
        """To 0.1 of a percentage point over all gradients; and it is a lot that is lost."""
        model, x, y = trained
        rules = {"heat_map": "mixed_float16"}  # as the global policy would have it
        planned = plan(model, "mixed_float16", (x, y), rules=rules)
        before = zero_gradients(model, x, y)[1]
        planned.apply(model)
        by_layer, really = zero_gradients(model, x, y)
        predicted = planned.gradients.zero + planned.gradients.lost
        assert predicted == pytest.approx(really, abs=1e-3)
        assert planned.gradients.lost > 0.1
        assert planned.gradients.zero == pytest.approx(before, abs=1e-6)
        keras_mp.plan(model, "float32").apply(model)
        zeros = zero_gradients(model, x, y)[0]
        for layer, share in by_layer.items():
            lost = planned[layer].measured.lost_gradients
            assert lost + zeros[layer] == pytest.approx(share, abs=5e-3), layer

    def test_the_proposed_scale_saves_them_and_nothing_overflows(self, trained):
        model, x, y = trained
        planned = plan(model, "mixed_float16", (x, y))
        scale = planned.initial_scale
        assert scale == 2.0 ** round(np.log2(scale))
        assert planned.gradients.lost_scaled < 0.02 < planned.gradients.lost
        model.compile(
            keras_mp.LossScaleOptimizer("adam", initial_scale=scale), "mse", auto_scale_loss=False
        )
        planned.apply(model)
        model.fit(x, y, batch_size=64, verbose=0)
        assert model.optimizer.skipped_steps == 0
        assert model.optimizer.loss_scale == scale
        keras_mp.plan(model, "float32").apply(model)

    def test_a_scale_that_is_16_times_as_large_overflows(self):
        """So the proposal is no arbitrary small number."""
        inputs = keras.Input((4,))
        model = keras.Model(inputs, layers.Dense(1)(layers.Dense(8, name="body")(inputs)))
        loss = lambda y, prediction: ops.mean(prediction) * 1e3  # noqa: E731
        batch = np.ones((4, 4), "float32"), np.ones((4, 1), "float32")
        planned = plan(model, "mixed_float16", batch, loss=loss)
        planned.apply(model)
        for factor, skipped in ((1, 0), (16, 1)):
            optimizer = keras_mp.LossScaleOptimizer(
                keras.optimizers.SGD(0.0), initial_scale=planned.initial_scale * factor
            )
            model.compile(optimizer, loss, auto_scale_loss=False)
            model.train_on_batch(*batch)
            assert optimizer.skipped_steps == skipped

    def test_plain_inputs_give_activations_alone(self, trained):
        model, x, _ = trained
        planned = plan(model, "mixed_float16", x)
        assert planned.initial_scale is planned.gradients is None
        seen = planned["hidden0"].measured
        assert seen.lost_gradients is None and seen.lost_activations is not None

    def test_without_data_nothing_is_claimed(self, trained):
        assert all(row.measured is None for row in plan(trained[0], "mixed_float16"))

    def test_targets_need_a_loss(self):
        model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
        with pytest.raises(ValueError, match="needs a loss"):
            plan(model, "mixed_float16", (np.ones((2, 4)), np.ones((2, 1))))
        planned = plan(model, "fp16", (np.ones((2, 4)), np.ones((2, 1))), loss="mse")
        assert planned.initial_scale is not None

    def test_a_gradient_that_is_not_finite_has_no_scale(self):
        model = keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.Dense(1)])
        batch = np.full((2, 4), np.nan, "float32"), np.ones((2, 1), "float32")
        planned = plan(model, "mixed_float16", batch, loss="mse")
        assert planned.initial_scale is None
        assert "no loss scale is proposed" in str(planned)
        again = keras_mp.PrecisionPlan.from_json(planned.to_json())
        assert again.to_json() == planned.to_json()

    def test_the_model_stays_as_it_was(self):
        """Statistics, seeds, weights, policies: a calibration is no training."""
        inputs = keras.Input((4,))
        hidden = layers.BatchNormalization()(layers.Dense(4)(layers.Dropout(0.5)(inputs)))
        model = keras.Model(inputs, layers.Dense(1)(hidden))
        model.compile("sgd", "mse")
        before = [numbers(v) for v in model.variables]
        plan(model, "mixed_float16", (np.ones((8, 4), "float32"), np.ones((8, 1), "float32")))
        after = [numbers(v) for v in model.variables]
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        assert {layer.compute_dtype for layer in model.layers} == {"float32"}

    def test_the_table_and_the_file_carry_it(self, trained, tmp_path):
        model, x, y = trained
        planned = plan(model, "mixed_float16", (x, y))
        assert keras_mp.PrecisionPlan.from_json(planned.to_json()) == planned
        head, *_, last = str(planned).splitlines()
        assert head.split()[:4] == ["layer", "class", "policy", "largest"]
        power = round(np.log2(planned.initial_scale))
        assert last.startswith("gradients: ") and f"initial scale of 2^{power}" in last
        planned.apply(model)
        keras_mp.save_model(model, tmp_path / "model.keras")
        from keras_mp.policies.plan import applied_plan

        loaded = keras_mp.load_model(tmp_path / "model.keras")
        assert applied_plan(loaded).initial_scale == planned.initial_scale
        json.loads(planned.to_json())
        keras_mp.plan(model, "float32").apply(model)


class TestMeasuredUnderflow:
    """Values below float16's range, which no loss scale lifts."""

    def build(self, size=1e-9):
        return keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(8, name="quiet", kernel_initializer=keras.initializers.Constant(size)),
                layers.UnitNormalization(name="loud"),
                layers.Dense(1, kernel_initializer="ones", name="end"),
            ]
        )

    X = np.abs(np.random.default_rng(0).normal(size=(4, 8))).astype("float32")

    def test_flipping_it_changes_what_comes_out(self):
        model = self.build()
        exact = numbers(model(self.X))
        planned = plan(model, "mixed_float16", self.X)
        assert [r.path for r in planned if r.code == "measured-underflow"] == ["quiet"]
        assert planned["quiet"].measured.lost_activations == 1.0
        planned.apply(model)
        assert numbers(model(self.X)) == pytest.approx(exact, rel=1e-2)
        rules = {"quiet": "mixed_float16"}
        plan(model, "mixed_float16", self.X, rules=rules).apply(model)
        assert not np.allclose(numbers(model(self.X)), exact, rtol=0.5)

    def test_it_is_not_given_to_larger_values_nor_to_zeros_nor_in_bfloat16(self):
        for planned in (
            plan(self.build(1e-2), "mixed_float16", self.X),
            plan(self.build(0.0), "mixed_float16", self.X),
            plan(self.build(), "mixed_bfloat16", self.X),
            plan(self.build(), "mixed_float16"),
        ):
            assert "measured-underflow" not in {row.code for row in planned}


class TestAttentionLogits:
    """Queries and keys fit into float16, their products do not; with fused attention no layer
    gives them."""

    X = np.random.default_rng(0).normal(size=(1, 6, 16)).astype("float32")

    def heads(self, size, dropout=0.0):
        tokens = keras.Input((6, 16))
        heads = layers.MultiHeadAttention(1, 16, dropout=dropout, use_bias=False, name="heads")
        model = keras.Model(tokens, layers.Dense(1, name="end")(heads(tokens, tokens)))
        eye = np.eye(16, dtype="float32")[:, None, :]
        model.get_layer("heads").set_weights([eye * size, eye * size, eye, eye.transpose(1, 2, 0)])
        return model

    def dot(self, size):
        query, value = keras.Input((6, 16)), keras.Input((6, 16))
        scale = layers.Rescaling(size, name="scale")
        found = layers.Attention(name="heads")([scale(query), value, scale(query)])
        return keras.Model([query, value], layers.Dense(1, name="end")(found))

    @pytest.mark.parametrize("kind", ["fused", "dropout", "dot"])
    def test_an_overflow_changes_what_comes_out(self, kind):
        if kind == "fused" and BACKEND != "tensorflow":
            pytest.skip("torch and jax compute fused attention's logits in float32")
        if BACKEND == "jax" and kind == "dropout":
            pytest.skip("already in float32: XLA has no float16 product there on CPUs")
        model = self.dot(150) if kind == "dot" else self.heads(150, 0.1 * (kind == "dropout"))
        data = [self.X, self.X] if kind == "dot" else self.X
        exact = numbers(model(data))
        planned = plan(model, "mixed_float16", data, replace=False)
        assert planned["heads"].code == "attention-logits", planned
        planned.apply(model)
        assert numbers(model(data)) == pytest.approx(exact, abs=2e-2)
        rules = {"heads": "mixed_float16"}
        plan(model, "mixed_float16", data, rules=rules, replace=False).apply(model)
        assert not np.isfinite(numbers(model(data))).all()

    @pytest.mark.parametrize(("policy", "size"), [("mixed_float16", 25), ("mixed_bfloat16", 10)])
    def test_rounding_changes_the_weights(self, policy, size):
        """Two keys that are all but alike: the logits' difference is below half precision's step.

        Keys and queries are numbers that half precision has."""
        query, value = keras.Input((1, 4)), keras.Input((2, 4))
        key = keras.Input((2, 4))
        found = layers.Attention(name="heads")([query, value, key])
        model = keras.Model([query, value, key], layers.Dense(1, name="end")(found))
        model.get_layer("end").set_weights([np.eye(4, 1, dtype="float32"), np.zeros(1, "float32")])
        large = float(size * size)
        q = np.array([[[large, 1.0, 0.0, 0.0]]], "float32")
        k = np.array([[[2.0, 0.0, 0.0, 0.0], [2.0, 0.5, 0.0, 0.0]]], "float32")
        v = np.array([[[0.0, 0, 0, 0], [1.0, 0, 0, 0]]], "float32")
        half = policy.removeprefix("mixed_")
        assert all(np.array_equal(numbers(ops.cast(t, half)), t) for t in (q, k, v))
        exact = numbers(model([q, v, k])).item()
        assert exact == pytest.approx(1 / (1 + np.exp(-0.5)), abs=1e-3)
        planned = plan(model, policy, [q, v, k], replace=False)
        assert (
            planned["heads"].code == "attention-logits" and "rounds them" in planned["heads"].reason
        )
        planned.apply(model)
        assert numbers(model([q, v, k])).item() == pytest.approx(exact, abs=1e-2)
        rules = {"heads": policy}
        plan(model, policy, [q, v, k], rules=rules, replace=False).apply(model)
        assert abs(numbers(model([q, v, k])).item() - exact) > 0.05

    def test_it_is_not_given_to_quiet_logits_nor_where_they_are_float32(self):
        for size, dropout in ((1, 0.0), (1, 0.1)):
            for policy in ("mixed_float16", "mixed_bfloat16"):
                planned = plan(self.heads(size, dropout), policy, self.X)
                assert planned["heads"].code != "attention-logits"
        fused = plan(self.heads(150), "mixed_float16", self.X)["heads"].code
        expected = {"tensorflow": "attention-logits", "torch": "product", "jax": "no-kernel"}
        assert fused == expected[BACKEND]

    def test_where_they_are_float32_half_precision_is_right(self):
        """The other sign for torch and jax: fused attention needs no float32."""
        if BACKEND == "tensorflow":
            pytest.skip("TensorFlow's logits are half-precision products")
        model = self.heads(150)
        exact = numbers(model(self.X))
        rules = {"heads": "mixed_float16"}
        plan(model, "mixed_float16", self.X, rules=rules).apply(model)
        assert numbers(model(self.X)) == pytest.approx(exact, abs=2e-2)

    @pytest.mark.parametrize("kind", ["dropout", "dot"])
    def test_ours_keeps_half_precision_and_its_logits_in_float32(self, kind):
        if BACKEND == "jax" and kind == "dropout":
            pytest.skip("XLA has no float16 product there on CPUs")
        model = self.dot(150) if kind == "dot" else self.heads(150, 0.1)
        data = [self.X, self.X] if kind == "dot" else self.X
        exact = numbers(model(data))
        planned = plan(model, "mixed_float16", data)
        row = planned["heads"]
        assert (row.code, row.policy) == ("attention-logits", "mixed_float16")
        assert row.replace == f"keras_mp.layers.{row.layer}"
        planned.apply(model)
        assert numbers(model(data)) == pytest.approx(exact, abs=2e-2)
        assert keras_mp.plan(model, "mixed_float16", data)["heads"].policy == "mixed_float16"

    def test_grouped_heads_are_measured_too(self):
        tokens = keras.Input((6, 16))
        heads = layers.GroupQueryAttention(16, 4, 2, dropout=0.1, name="heads")
        model = keras.Model(tokens, layers.Dense(1)(heads(tokens, tokens)))
        weights = [w * 60 for w in heads.get_weights()]
        heads.set_weights(weights)
        if BACKEND != "jax":
            assert plan(model, "mixed_bfloat16", self.X)["heads"].code == "attention-logits"
