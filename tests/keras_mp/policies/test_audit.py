"""What audit finds, that it is so, that the fix mends it, and where it must find nothing."""

import json

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_mp
from keras_mp.cli import main

pytestmark = pytest.mark.backend


def numbers(tensor):
    return np.asarray(ops.convert_to_numpy(ops.cast(tensor, "float32")), "float64")


def dense(policy, **kwargs):
    with keras_mp.policy_scope(policy):
        layer = layers.Dense(1, use_bias=False, name="body", **kwargs)
        end = layers.Dense(
            1, use_bias=False, kernel_initializer="ones", name="end", dtype="float32"
        )
        return keras.Sequential([keras.Input((1,)), layer, end])


def codes(model, policy=None):
    return [(finding.code, finding.layer) for finding in keras_mp.audit(model, policy)]


def follow(finding, model):
    """Do what the fix says."""
    exec(finding.fix, {"model": model, "keras_mp": keras_mp})


class TestHazards:
    def build(self):
        with keras_mp.policy_scope("mixed_float16"):
            return keras.Sequential(
                [
                    keras.Input((1,)),
                    layers.Normalization(mean=[120_000.0], variance=[4e8], name="norm"),
                    layers.Dense(1, "sigmoid", name="end"),
                ]
            )

    def test_a_finding_is_true_and_its_fix_mends_it(self):
        model = self.build()
        data = np.array([[100_000.0]], "float32")
        assert not np.isfinite(numbers(model(data))).all()
        report = keras_mp.audit(model)
        assert [(f.severity, f.code, f.layer) for f in report] == [
            ("error", "raw-input", "norm"),
            ("warning", "output-activation", "end"),
        ]
        follow(report.findings[0], model)
        assert np.isfinite(numbers(model(data))).all()
        assert len(keras_mp.audit(model)) == 0

    def test_an_adapted_normalization_is_mended_too(self):
        prices = np.array([[100_000.0], [140_000.0]], "float32")
        with keras_mp.policy_scope("mixed_float16"):
            norm = layers.Normalization(name="norm")
            norm.adapt(prices)
            end = layers.Dense(1, kernel_initializer="ones", dtype="float32")
            model = keras.Sequential([keras.Input((1,)), norm, end])
        assert not np.allclose(numbers(model(prices)).ravel(), [-1, 1], atol=1e-2)
        (finding,) = keras_mp.audit(model)
        follow(finding, model)
        assert numbers(model(prices)).ravel() == pytest.approx([-1, 1], abs=1e-2)

    def test_a_float32_model_is_looked_at_as_if(self):
        model = keras.Sequential(
            [keras.Input((1,)), layers.Rescaling(1e-5, name="scale"), layers.Dense(2, name="end")]
        )
        assert codes(model) == []
        assert codes(model, "mixed_float16") == [("raw-input", "scale"), ("output", "end")]
        assert codes(model, "float32") == []
        assert model.layers[0].compute_dtype == "float32"


class TestHalfVariables:
    def test_small_updates_are_swallowed_until_there_are_masters(self):
        """The paper's second technique: 1e-4 is below 1 / 2048 of a weight of 1."""
        model = dense("float16", kernel_initializer="ones")
        model.compile(keras.optimizers.SGD(1e-4), "mae", auto_scale_loss=False)
        train = lambda: [model.train_on_batch(np.ones((1, 1)), np.zeros((1, 1))) for _ in range(20)]  # noqa: E731
        train()
        assert numbers(model.layers[0].kernel).item() == 1.0
        report = keras_mp.audit(model)
        (finding,) = [f for f in report if f.code == "half-variables"]
        assert (finding.severity, finding.layer) == ("error", "body")
        follow(finding, model)
        train()
        assert numbers(model.layers[0].kernel).item() == pytest.approx(1 - 20e-4, abs=1e-3)
        assert "half-variables" not in {f.code for f in keras_mp.audit(model)}

    @pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
    def test_float32_variables_are_well(self, policy):
        model = dense(policy)
        model.compile("sgd", "mse")
        assert "half-variables" not in {f.code for f in keras_mp.audit(model)}


class TestUnscaledFloat16:
    def test_a_model_that_only_casts_its_inputs_needs_no_scale(self):
        model = keras.Sequential([keras.Input((4,)), layers.Dense(2), layers.Dense(1)])
        model.compile("adam", "mse")
        model.dtype_policy = "mixed_float16"
        assert codes(model) == [("policy-left-behind", "")]

    def test_small_gradients_are_lost_until_the_loss_is_scaled(self):
        model = dense("mixed_float16", kernel_initializer="ones")
        loss = lambda y, prediction: ops.mean(prediction) * 2e-8  # noqa: E731
        model.compile(keras.optimizers.SGD(1e6), loss, auto_scale_loss=False)
        train = lambda: model.train_on_batch(np.ones((1, 1)), np.zeros((1, 1)))  # noqa: E731
        train()
        assert numbers(model.layers[0].kernel).item() == 1.0
        (finding,) = keras_mp.audit(model)
        assert (finding.code, finding.layer) == ("unscaled-float16", "")
        follow(finding, model)
        train()
        assert numbers(model.layers[0].kernel).item() == pytest.approx(0.98, abs=1e-3)
        assert codes(model) == []

    @pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
    def test_other_precisions_need_none(self, policy):
        model = dense(policy)
        model.compile("sgd", "mse")
        assert codes(model) == []

    def test_keras_own_scaling_counts(self):
        model = dense("mixed_float16")
        model.compile("sgd", "mse")  # Keras wraps it where the model's policy is mixed_float16
        assert codes(model) == []

    def test_a_layers_own_policy_is_seen_where_keras_does_not_look(self):
        body = layers.Dense(1, dtype="mixed_float16", name="body")
        model = keras.Sequential([keras.Input((1,)), body, layers.Dense(1)])
        model.compile("sgd", "mse")
        assert codes(model) == [("unscaled-float16", "body")]


class TestPolicyLeftBehind:
    def test_a_models_setter_changes_no_layer_of_it(self):
        model = keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.Dense(1)])
        model.dtype_policy = "mixed_bfloat16"
        assert model.layers[0].compute_dtype == "float32"
        (finding,) = keras_mp.audit(model)
        assert (finding.severity, finding.code, finding.layer) == (
            "warning",
            "policy-left-behind",
            "",
        )
        follow(finding, model)
        assert model.layers[0].compute_dtype == "bfloat16"
        assert codes(model) == []

    def test_nor_does_an_attention_layers(self):
        tokens = keras.Input((4, 8))
        heads = layers.MultiHeadAttention(2, 4, name="heads")
        model = keras.Model(tokens, layers.Dense(1)(heads(tokens, tokens)))
        heads.dtype_policy = "mixed_bfloat16"
        assert codes(model) == [("policy-left-behind", "heads")]
        keras_mp.plan(model, "mixed_bfloat16").apply(model)
        assert codes(model) == []


class TestWellModels:
    """Situations of which stock Keras is known to be right: nothing may be found."""

    @pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
    def test_norms_ids_stateful_rnn_and_float32_heads(self, policy):
        with keras_mp.policy_scope(policy):
            ids = keras.Input(batch_shape=(2, 6), dtype="int32")
            tokens = layers.Embedding(5000, 16)(ids)
            tokens = layers.GroupNormalization(4, epsilon=1e-12)(tokens)
            tokens = layers.LSTM(8, stateful=True, return_sequences=True)(tokens)
            tokens = layers.BatchNormalization()(tokens)
            pooled = layers.GlobalAveragePooling1D()(tokens)
            model = keras.Model(ids, layers.Dense(3, "softmax", dtype="float32")(pooled))
        model.compile(keras_mp.LossScaleOptimizer("adam"), "categorical_crossentropy")
        assert codes(model) == []

    @pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")  # jax has none
    def test_float64(self):
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3, dtype="float64")])
        assert codes(model) == []


class TestCommand:
    @pytest.fixture
    def saved(self, tmp_path):
        model = keras.Sequential(
            [keras.Input((1,)), layers.Rescaling(1e-5, name="scale"), layers.Dense(2, name="end")]
        )
        path = tmp_path / "model.keras"
        model.save(path)
        return str(path)

    def test_text_and_status(self, saved, capsys):
        assert main(["audit", saved]) == 0
        assert "nothing found" in capsys.readouterr().out
        assert main(["audit", saved, "--policy", "fp16"]) == 2
        told = capsys.readouterr().out
        assert told.startswith("error    scale: takes raw features")
        assert "keras_mp.plan(model, 'mixed_float16').apply(model)" in told

    def test_json(self, saved, capsys):
        assert main(["audit", saved, "--policy", "mixed_float16", "--json"]) == 2
        told = json.loads(capsys.readouterr().out)
        assert [finding["code"] for finding in told["findings"]] == ["raw-input", "output"]

    def test_plan_prints_and_writes(self, saved, tmp_path, capsys):
        out = tmp_path / "out.keras"
        assert main(["plan", saved, "--policy", "mixed_float16", "--output", str(out)]) == 0
        assert "takes raw features" in capsys.readouterr().out
        assert main(["audit", str(out)]) == 0
        capsys.readouterr()
        assert keras_mp.load_model(out).get_layer("scale").compute_dtype == "float32"
        assert main(["plan", saved, "--policy", "mixed_float16", "--json"]) == 0
        planned = keras_mp.PrecisionPlan.from_json(capsys.readouterr().out)
        assert planned["scale"].policy == "float32"

    @pytest.mark.parametrize("command", ["audit", "plan"])
    def test_bad_input_is_a_sentence(self, command, tmp_path, capsys, saved):
        assert main([command, str(tmp_path / "none.keras")]) == 2
        assert "which is no file" in capsys.readouterr().err
        (tmp_path / "bad.keras").write_text("not a model")
        assert main([command, str(tmp_path / "bad.keras")]) == 2
        assert "Keras cannot read" in capsys.readouterr().err
        assert main([command, saved, "--policy", "half"]) == 2
        assert "no policy of that name" in capsys.readouterr().err


class TestFloat8:
    """Keras has float8 code in Dense and EinsumDense alone, and the global policy reaches all."""

    POLICY = keras.dtype_policies.QuantizedFloat8DTypePolicy("float8", "mixed_bfloat16")
    X = np.ones((4, 16), "float32")

    def build(self):
        keras.config.set_dtype_policy(self.POLICY)
        try:
            body = [layers.Dense(16, name="body"), layers.LayerNormalization(name="norm")]
            return keras.Sequential([keras.Input((16,)), *body, layers.Dense(1, name="end")])
        finally:
            keras.config.set_dtype_policy("float32")

    def test_a_model_that_cannot_run_is_found_and_mended(self):
        model = self.build()
        with pytest.raises(NotImplementedError, match="_float8_call"):
            model(self.X)
        report = keras_mp.audit(model)
        found = {f.layer: f.severity for f in report if f.code == "float8-policy"}
        assert found == {"": "error", "norm": "error", "body": "warning", "end": "warning"}
        follow(report.findings[0], model)
        assert np.isfinite(numbers(model(self.X))).all()
        assert len(keras_mp.audit(model)) == 0

    def test_a_layer_that_has_it_only_imitates_it(self):
        """The product is of bfloat16 or wider numbers, rounded to float8 before."""
        model = keras.Sequential(
            [keras.Input((16,)), layers.Dense(16, dtype=self.POLICY, name="body"), layers.Dense(1)]
        )
        assert numbers(model.layers[0](self.X)).shape == (4, 16)
        assert model.layers[0].kernel.dtype == "float32"  # nothing is kept in 8 bits
        assert codes(model) == [("float8-policy", "body")]
        keras_mp.plan(model, "mixed_bfloat16").apply(model)
        assert codes(model) == []

    def test_integers_are_left_alone(self):
        model = keras.Sequential([keras.Input((16,)), layers.Dense(16, name="body")])
        model.get_layer("body").quantize("int8")
        before = numbers(model(self.X))
        assert codes(model) == []
        planned = keras_mp.plan(model, "mixed_bfloat16")
        assert planned["body"].code == "quantized"
        planned.apply(model)
        assert model.get_layer("body").quantization_mode == "int8"
        assert numbers(model(self.X)) == pytest.approx(before, abs=0.05)
        assert codes(model) == codes(model, "mixed_bfloat16") == []

    def test_a_policy_in_a_map_is_seen_and_its_fix_runs(self):
        policies = keras_mp.PolicyMap("mixed_bfloat16")
        end = layers.Dense(1, dtype=policies, name="end")
        model = keras.Sequential([keras.Input((16,)), end])
        report = keras_mp.audit(model)
        assert [(f.code, f.layer) for f in report] == [("output", "end")]
        follow(report.findings[0], model)
        assert end.compute_dtype == "float32" and len(keras_mp.audit(model)) == 0
