"""Putting a plan on a model: what changes, what does not, and where the plan goes."""

import json
import re
import zipfile

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_mp

pytestmark = pytest.mark.backend
X = np.random.default_rng(0).normal(size=(16, 8)).astype("float32")
Y = np.random.default_rng(1).normal(size=(16, 1)).astype("float32")


def numbers(tensor):
    return np.asarray(ops.convert_to_numpy(ops.cast(tensor, "float32")))


def dtype_of(tensor):
    return keras.backend.standardize_dtype(tensor.dtype)


def nested():
    """Functional, with a shared layer, a nested model and attention."""
    inputs = keras.Input((8,), name="features")
    shared = layers.Dense(8, "relu", name="shared")
    inner = keras.Sequential([keras.Input((8,)), layers.Dense(8, name="in1")], name="inner")
    both = layers.Add(name="both")([shared(inputs), shared(inner(inputs))])
    tokens = layers.Reshape((2, 4), name="tokens")(both)
    heads = layers.MultiHeadAttention(2, 4, name="heads")(tokens, tokens)
    end = layers.Dense(1, name="end")(layers.Flatten(name="flat")(heads))
    return keras.Model(inputs, end)


@keras.saving.register_keras_serializable("test_plan")
class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.body = layers.Dense(8, "relu")
        self.end = layers.Dense(1)

    def call(self, inputs):
        return self.end(self.body(inputs))

    def get_config(self):
        return {"name": self.name}


def subclassed():
    model = Subclassed()
    model(X)
    return model


BUILD = {"nested": nested, "subclassed": subclassed}


class TestApply:
    @pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
    def test_weights_stay_and_float32_comes_back_bit_for_bit(self, build):
        model = build()
        weights, before = model.get_weights(), numbers(model(X))
        keras_mp.plan(model, "mixed_float16").apply(model)
        mixed = numbers(model(X))
        assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), weights, strict=True))
        assert not np.array_equal(mixed, before)
        assert mixed == pytest.approx(before, abs=0.02)
        keras_mp.plan(model, "float32").apply(model)
        assert np.array_equal(numbers(model(X)), before)

    def test_every_layer_computes_by_its_row(self):
        model = nested()
        planned = keras_mp.plan(model, "mixed_bfloat16")
        planned.apply(model)
        assert model.get_layer("shared").compute_dtype == "bfloat16"
        assert model.get_layer("inner").get_layer("in1").compute_dtype == "bfloat16"
        assert model.get_layer("heads").query_dense.compute_dtype == "bfloat16"
        assert model.get_layer("end").compute_dtype == "float32"
        assert {row.path: row.policy for row in planned}["heads/query"] == "mixed_bfloat16"

    def test_it_gives_what_a_fresh_mixed_model_gives(self):
        def build():
            keras.utils.set_random_seed(3)
            return keras.Sequential(
                [
                    keras.Input((8,)),
                    layers.Reshape((2, 4)),
                    layers.LSTM(4, return_sequences=True),
                    layers.BatchNormalization(),
                    layers.GlobalAveragePooling1D(),
                    layers.Dense(1, dtype="float32"),
                ]
            )

        model = build()
        keras_mp.plan(model, "mixed_float16", replace=False).apply(model)
        with keras_mp.policy_scope("mixed_float16"):
            fresh = build()
        assert np.array_equal(numbers(model(X)), numbers(fresh(X)))

    @pytest.mark.parametrize("half", ["float16", "bfloat16"])
    def test_pure_half_precision_computes_in_it_though_variables_stay(self, half):
        model = keras.Sequential([keras.Input((8,)), layers.Dense(4, name="body"), layers.Dense(1)])
        keras_mp.plan(model, half).apply(model)
        assert dtype_of(model.get_layer("body")(X)) == half
        assert model.get_layer("body").kernel.dtype == "float32"

    def test_functions_that_were_traced_are_made_again(self):
        model = nested()
        before = model.predict(X, verbose=0)
        keras_mp.plan(model, "mixed_float16", rules={"end": "mixed_float16"}).apply(model)
        after = model.predict(X, verbose=0)
        assert before.dtype == np.float32
        assert after.dtype == np.float16

    def test_a_compiled_model_trains_on(self):
        model = nested()
        model.compile(keras_mp.LossScaleOptimizer("adam"), "mse")
        model.fit(X, Y, verbose=0)
        keras_mp.plan(model, "mixed_float16").apply(model)
        losses = model.fit(X, Y, epochs=20, verbose=0).history["loss"]
        assert losses[-1] < losses[0]
        assert model.optimizer.applied_steps + model.optimizer.skipped_steps == 21

    def test_a_model_that_was_built_with_a_map_is_planned_and_the_map_stays(self):
        shared = keras.dtype_policies.DTypePolicyMap(keras.DTypePolicy("mixed_bfloat16"))
        body, end = (layers.Dense(1, dtype=shared, name=name) for name in ("body", "end"))
        model = keras.Sequential([keras.Input((8,)), body, end])
        keras_mp.plan(model, "mixed_float16", X).apply(
            model
        )  # the float32 pass goes there and back
        assert (body.compute_dtype, end.compute_dtype) == ("float16", "float32")
        assert len(shared) == 0

    def test_the_policies_it_puts_on_are_values(self):
        model = nested()
        keras_mp.plan(model, "mixed_float16").apply(model)
        held = {layer.dtype_policy for layer in model.layers[1:]}
        assert held == {keras_mp.Policy("mixed_float16"), keras_mp.Policy("float32")}

    def test_another_model_is_refused(self):
        planned = keras_mp.plan(nested(), "mixed_float16")
        with pytest.raises(ValueError, match=r"other layers than the plan.*differ in .*body|dense"):
            planned.apply(subclassed())

    def test_a_model_that_is_not_built_is_refused(self):
        with pytest.raises(ValueError, match="not built"):
            keras_mp.plan(Subclassed(), "mixed_float16")


class TestRules:
    def rows(self, rules):
        return {row.path: row for row in keras_mp.plan(nested(), "mixed_float16", rules=rules)}

    @pytest.mark.parametrize(
        "pattern", ["shared", re.compile("sh.*"), keras.layers.Dense], ids=["path", "re", "class"]
    )
    def test_they_win(self, pattern):
        rows = self.rows({pattern: "float32"})
        assert (rows["shared"].policy, rows["shared"].code) == ("float32", "rule")
        assert self.rows({})["shared"].policy == "mixed_float16"

    def test_a_name_finds_its_layer_in_a_nested_model(self):
        assert self.rows({"in1": "float32"})["inner/in1"].code == "rule"
        assert self.rows({"in1": "float32"})["shared"].code != "rule"

    def test_they_win_over_a_hazard(self):
        assert self.rows({"end": "bf16"})["end"].policy == "mixed_bfloat16"

    def test_the_first_that_matches_decides(self):
        rows = self.rows({"shared": "bfloat16", layers.Dense: "float32"})
        assert rows["shared"].policy == "bfloat16"
        assert rows["inner/in1"].policy == "float32"

    def test_parts_follow_what_they_are_part_of(self):
        rows = self.rows({"heads": "float32"})
        assert {row.policy for path, row in rows.items() if path.startswith("heads/")} == {
            "float32"
        }

    @pytest.mark.parametrize("pattern", ["share", re.compile("share"), layers.Conv2D])
    def test_one_that_matches_nothing_is_an_error(self, pattern):
        with pytest.raises(ValueError, match=r"matches no layer.*paths are "):
            self.rows({pattern: "float32"})

    def test_one_with_an_unknown_policy_names_the_rule(self):
        with pytest.raises(ValueError, match=re.escape("Received: rules['shared']='half'")):
            self.rows({"shared": "half"})


class TestStorage:
    def test_json_and_back(self):
        planned = keras_mp.plan(nested(), "mixed_float16")
        assert keras_mp.PrecisionPlan.from_json(planned.to_json()) == planned

    @pytest.mark.parametrize(
        "text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "rows": [1]}']
    )
    def test_what_is_no_plan_is_refused(self, text):
        with pytest.raises(ValueError, match="no precision plan"):
            keras_mp.PrecisionPlan.from_json(text)

    def test_a_later_format_is_refused(self):
        with pytest.raises(ValueError, match=r"Expected 1\. Received: format=2"):
            keras_mp.PrecisionPlan.from_json('{"format": 2, "policy": "float32", "rows": []}')

    @pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
    def test_it_goes_where_the_model_goes(self, build, tmp_path):
        model = build()
        planned = keras_mp.plan(model, "mixed_float16")
        planned.apply(model)
        expected = numbers(model(X))
        path = tmp_path / "model.keras"
        keras_mp.save_model(model, path)
        loaded = keras_mp.load_model(path)
        assert np.array_equal(numbers(loaded(X)), expected)
        policies = [row.policy for row in keras_mp.plan(loaded, "mixed_float16")]
        assert policies == [row.policy for row in planned]
        # Plain Keras reads the same file; of a subclassed model it has lost the policies.
        plain = keras.saving.load_model(path)
        assert np.array_equal(plain.get_weights()[0], model.get_weights()[0])

    def test_keras_alone_loses_a_subclassed_models_policies(self, tmp_path):
        """Why the plan is stored: if Keras learns this, saving.py can go."""
        model = subclassed()
        keras_mp.plan(model, "mixed_float16").apply(model)
        keras_mp.save_model(model, tmp_path / "model.keras")
        assert keras.saving.load_model(tmp_path / "model.keras").body.compute_dtype == "float32"
        assert keras_mp.load_model(tmp_path / "model.keras").body.compute_dtype == "float16"

    def test_without_a_plan_the_file_is_as_keras_writes_it(self, tmp_path):
        keras_mp.save_model(nested(), tmp_path / "model.keras")
        names = zipfile.ZipFile(tmp_path / "model.keras").namelist()
        assert "keras_mp_plan.json" not in names
        assert dtype_of(keras_mp.load_model(tmp_path / "model.keras")(X)) == "float32"

    def test_a_file_that_is_not_keras_archive_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match=r"ends in \.keras"):
            keras_mp.save_model(nested(), tmp_path / "model.h5")

    def test_as_a_policy_map(self):
        model = nested()
        planned = keras_mp.plan(model, "mixed_float16")
        policies = planned.to_policy_map(model)
        assert policies[model.get_layer("end").path].name == "float32"
        assert policies[model.get_layer("shared").path].name == "mixed_float16"
        keras.dtype_policies.deserialize(keras.dtype_policies.serialize(policies))


class TestTable:
    def test_it_has_a_reason_a_row_and_hides_parts(self):
        text = str(keras_mp.plan(nested(), "mixed_float16"))
        lines = text.splitlines()
        assert lines[0].split() == ["layer", "class", "policy", "because"]
        assert any(
            re.match(r"end +Dense +float32 +its values leave the model", line) for line in lines
        )
        assert "heads/query" not in text

    def test_auto_asks_the_device(self):
        assert keras_mp.plan(nested(), "auto").policy == keras_mp.recommend().policy

    def test_rows_are_plain_data(self):
        planned = keras_mp.plan(nested(), "float32")
        assert {row.code for row in planned} == {"asked"}
        assert json.loads(planned.to_json())["policy"] == "float32"

    def test_two_layers_of_one_name_have_two_paths(self):
        class Twins(keras.Model):
            def __init__(self):
                super().__init__()
                self.first = layers.Dense(4, name="same")
                self.second = layers.Dense(1, name="same")

            def call(self, inputs):
                return self.second(self.first(inputs))

        model = Twins()
        model(X)
        rows = {row.path: row.policy for row in keras_mp.plan(model, "mixed_float16")}
        assert rows == {"": "mixed_float16", "same": "mixed_float16", "same#2": "float32"}


class TestByHand:
    """A plan's JSON with a mistake: the message names the row and what is wrong with it."""

    @pytest.mark.parametrize(
        ("key", "value", "told"),
        [
            ("policy", "float99", r"no policy of that name.*policy in rows\[1\] \(path='body'\)"),
            ("policy", None, r"policy=None in rows\[1\]"),
            ("path", 3, r"path=3 in rows\[1\]"),
            ("replace", 3, r"replace=3 in rows\[1\]"),
            ("polcy", "float32", r"polcy='float32' in rows\[1\]"),
            ("path", "", "several of path=''"),
            ("measured", "much", r"measured='much' in rows\[1\]"),
        ],
    )
    def test_a_row(self, key, value, told):
        data = json.loads(keras_mp.plan(small(), "mixed_float16").to_json())
        data["rows"][1][key] = value
        with pytest.raises(ValueError, match=told):
            keras_mp.PrecisionPlan.from_json(json.dumps(data))

    def test_a_missing_text_and_a_policy_that_there_is_not(self):
        data = json.loads(keras_mp.plan(small(), "mixed_float16").to_json())
        del data["rows"][1]["code"]
        with pytest.raises(ValueError, match=r"code=nothing in rows\[1\]"):
            keras_mp.PrecisionPlan.from_json(json.dumps(data))
        with pytest.raises(ValueError, match="no policy of that name"):
            keras_mp.PrecisionPlan.from_json('{"format": 1, "policy": "half", "rows": []}')
        with pytest.raises(ValueError, match="no precision plan"):
            keras_mp.PrecisionPlan.from_json('{"format": 1, "policy": "float32", "rows": "abc"}')

    def test_an_alias_is_what_it_stands_for(self):
        data = json.loads(keras_mp.plan(small(), "mixed_float16").to_json())
        data["rows"][1]["policy"] = "fp32"
        planned = keras_mp.PrecisionPlan.from_json(json.dumps(data))
        assert planned["body"].policy == "float32"


class TestArguments:
    @pytest.mark.parametrize("rules", [{3: "float32"}, [("body", "float32")]])
    def test_rules_that_are_none(self, rules):
        with pytest.raises(TypeError, match=r"Expected rules as a dictionary.*Received: rules="):
            keras_mp.plan(small(), "mixed_float16", rules=rules)

    @pytest.mark.parametrize("model", ["model.keras", None])
    def test_what_is_no_model(self, model):
        for call in (keras_mp.audit, lambda m: keras_mp.plan(m, "mixed_float16")):
            with pytest.raises(TypeError, match="Expected a Keras model"):
                call(model)

    def test_what_is_no_device_and_what_is_several_policies(self):
        several = keras_mp.PolicyMap("float32", {"body": "mixed_float16"})
        for call in (keras_mp.audit, keras_mp.plan):
            with pytest.raises(TypeError, match=r"Expected a device's name.*Received: device=0"):
                call(small(), "mixed_float16", device=0)
            with pytest.raises(TypeError, match=r"Expected one policy.*`rules="):
                call(small(), several)
        with pytest.raises(TypeError, match=r"Received: device=0"):
            keras_mp.recommend(0)

    def test_a_batch_of_nothing(self):
        with pytest.raises(ValueError, match=r"Received: data=\(\)"):
            keras_mp.plan(small(), "mixed_float16", data=())


def small():
    inputs = keras.Input((4,))
    body = layers.Dense(8, name="body")(inputs)
    return keras.Model(inputs, layers.Dense(2, name="end")(body))
