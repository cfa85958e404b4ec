"""Policies as values: what Keras' own lack, shown on Keras' own, and that ours have it."""

import copy
import json
import pickle

import keras
import numpy as np
import pytest
from keras import layers

import keras_mp

pytestmark = pytest.mark.backend
Policy, PolicyMap = keras_mp.Policy, keras_mp.PolicyMap
KerasMap = keras.dtype_policies.DTypePolicyMap


class TestPolicy:
    def test_keras_own_cannot_be_hashed_and_changes(self):
        """Why ours exists: when Keras learns both, ours can go."""
        policy = keras.DTypePolicy("mixed_float16")
        with pytest.raises(TypeError, match="unhashable"):
            hash(policy)
        policy._name = None
        assert policy.name is None

    def test_equal_by_value_and_hashable(self):
        one, other = Policy("mixed_float16"), Policy("fp16")
        assert one == other and hash(one) == hash(other) and len({one, other}) == 1
        assert one != Policy("mixed_bfloat16") and one != "mixed_float16"
        assert keras.DTypePolicy("mixed_float16") == one == keras.DTypePolicy("mixed_float16")
        assert keras.DTypePolicy("float16") != one

    def test_it_never_changes(self):
        policy = Policy("mixed_float16")
        for name in ("_name", "name", "anything"):
            with pytest.raises(AttributeError, match="never changes"):
                setattr(policy, name, None)
        with pytest.raises(AttributeError, match="never changes"):
            del policy._name
        assert policy.name == "mixed_float16"

    def test_copies_and_pickles(self):
        policy = Policy("mixed_bfloat16")
        assert copy.deepcopy(policy) is copy.copy(policy) is policy
        assert pickle.loads(pickle.dumps(policy)) == policy
        assert repr(policy) == "Policy('mixed_bfloat16')"

    def test_a_layer_takes_it_and_a_file_holds_keras_own(self, tmp_path):
        policy = Policy("mixed_bfloat16")
        body = layers.Dense(2, dtype=policy, name="body")
        model = keras.Sequential([keras.Input((3,)), body])
        assert body.compute_dtype == "bfloat16" and body.variable_dtype == "float32"
        assert "keras_mp" not in json.dumps(keras.saving.serialize_keras_object(body))
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras").get_layer("body")
        assert type(loaded.dtype_policy) is keras.DTypePolicy
        assert loaded.dtype_policy == policy

    def test_it_can_be_the_global_policy(self):
        keras_mp.set_policy(Policy("bf16"))
        assert layers.Dense(1).compute_dtype == "bfloat16"

    @pytest.mark.parametrize("name", ["half", "float8", "fp8", ""])
    def test_an_unknown_one_is_refused(self, name):
        with pytest.raises(ValueError):
            Policy(name)


CONTENT = {"head": "float32", "body/.*": "bf16"}


class TestPolicyMap:
    def test_keras_own_takes_live_policies_names_away(self):
        """Keras' get_config without a default: the fault that ours must not have."""
        held = keras.DTypePolicy("float32")
        policies = KerasMap(policy_map={"head": held})
        policies.get_config()
        assert held.name is None

    def test_get_config_changes_nothing(self):
        policies = PolicyMap("mixed_float16", CONTENT)
        before = policies.get_config()
        assert policies.get_config() == before
        assert policies["head"].name == "float32"
        assert policies["body/dense"].name == "mixed_bfloat16"
        assert policies.default_policy.name == "mixed_float16"

    def test_it_cannot_fall_victim_to_keras_map(self):
        victim = Policy("float32")
        with pytest.raises(AttributeError, match="default_policy"):
            KerasMap(policy_map={"head": victim}).get_config()
        assert victim.name == "float32"

    def test_keras_own_cannot_be_compared_nor_hashed(self):
        with pytest.raises(AttributeError):
            assert KerasMap("float32") == KerasMap("float32")
        with pytest.raises(TypeError, match="unhashable"):
            hash(KerasMap("float32"))

    def test_equal_by_content_and_hashable(self):
        one = PolicyMap("mixed_float16", CONTENT)
        other = PolicyMap("fp16", dict(reversed(CONTENT.items())))
        assert one == other and len({one, other}) == 1
        assert one != PolicyMap("mixed_float16") and one != PolicyMap("float32", CONTENT)

    def test_it_never_changes_through_a_layer_either(self):
        """Keras' own: one layer's setter writes into the map that all layers share."""
        shared = KerasMap(keras.DTypePolicy("mixed_bfloat16"))
        one, two = (layers.Dense(1, dtype=shared, name="one") for _ in range(2))
        one.build((None, 2)), two.build((None, 2))
        one.dtype_policy = "float32"
        assert two.compute_dtype == "float32"
        policies = PolicyMap("mixed_bfloat16")
        one = layers.Dense(1, dtype=policies, name="one")
        one.build((None, 2))
        with pytest.raises(AttributeError, match="never changes"):
            one.dtype_policy = "float32"
        with pytest.raises(AttributeError, match="never changes"):
            policies["x"] = "float32"
        with pytest.raises(AttributeError, match="never changes"):
            del policies["x"]
        assert len(policies) == 0

    def test_layers_compute_by_it_and_a_file_holds_keras_own(self, tmp_path):
        policies = PolicyMap("mixed_bfloat16", {".*head": "float32"})
        model = keras.Sequential(
            [
                keras.Input((3,)),
                layers.Dense(2, dtype=policies, name="body"),
                layers.Dense(1, dtype=policies, name="head"),
            ]
        )
        assert [layer.compute_dtype for layer in model.layers] == ["bfloat16", "float32"]
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        assert type(loaded.get_layer("head").dtype_policy) is KerasMap
        assert loaded.get_layer("head").compute_dtype == "float32"
        outputs = (m.predict(np.ones((1, 3)), verbose=0) for m in (loaded, model))
        assert np.array_equal(*outputs)
        assert pickle.loads(pickle.dumps(policies)) == policies

    def test_wrong_content_is_refused(self):
        with pytest.raises(TypeError, match="policies="):
            PolicyMap("float32", ["a"])
        with pytest.raises(ValueError):
            PolicyMap("float32", {"a": "half"})
