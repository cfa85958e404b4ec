"""set_policy and policy_scope: names, aliases, objects, and what each is refused with."""

import keras
import pytest

import keras_mp

pytestmark = pytest.mark.backend

# What a Dense layer must then do: (compute dtype, variable dtype). From Keras' own documentation of
# its policies, and Lightning's and Apex's of their aliases.
DTYPES = {
    "float32": ("float32", "float32"),
    "mixed_float16": ("float16", "float32"),
    "mixed_bfloat16": ("bfloat16", "float32"),
    "float16": ("float16", "float16"),
    "bfloat16": ("bfloat16", "bfloat16"),
    "fp32": ("float32", "float32"),
    "fp16": ("float16", "float32"),
    "bf16": ("bfloat16", "float32"),
    "16-mixed": ("float16", "float32"),
    "bf16-mixed": ("bfloat16", "float32"),
    "O0": ("float32", "float32"),
    "O1": ("float16", "float32"),
    "O2": ("float16", "float32"),
    "O3": ("float16", "float16"),
}


@pytest.mark.parametrize("name", DTYPES)
def test_a_name_decides_how_the_next_layers_compute(name):
    choice = keras_mp.set_policy(name)
    layer = keras.layers.Dense(2)
    output = layer(keras.ops.ones((1, 3)))
    compute, variable = DTYPES[name]
    assert keras.backend.standardize_dtype(output.dtype) == compute
    assert layer.kernel.dtype == variable
    assert choice.policy == layer.dtype_policy.name


def test_layers_that_exist_keep_their_policy():
    layer = keras.layers.Dense(2)
    keras_mp.set_policy("mixed_float16")
    assert layer.compute_dtype == "float32"


def test_a_policy_object_is_used_as_it_is():
    policy = keras.dtype_policies.DTypePolicyMap(keras.DTypePolicy("mixed_float16"))
    policy["head"] = keras.DTypePolicy("float32")
    keras_mp.set_policy(policy)
    for name, dtype in {"body": "float16", "head": "float32"}.items():
        output = keras.layers.Dense(1, name=name)(keras.ops.ones((1, 3)))
        assert keras.backend.standardize_dtype(output.dtype) == dtype


def test_the_choice_prints_as_one_line_that_says_why():
    text = str(keras_mp.set_policy("bf16"))
    assert text == "mixed_bfloat16: you asked for bf16"


@pytest.mark.parametrize("name", ["half", "FP16", "", "mixed_float32", "int8"])
def test_an_unknown_name_lists_what_is_accepted(name):
    with pytest.raises(ValueError) as caught:
        keras_mp.set_policy(name)
    message = str(caught.value)
    assert all(accepted in message for accepted in DTYPES)
    assert f"Received: policy={name!r}" in message
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize(
    "policy", ["float8", "fp8", "mixed_float8", "float8_e4m3", "float8_from_mixed_bfloat16"]
)
def test_float8_is_refused_with_a_way_out(policy):
    with pytest.raises(ValueError, match=r"float8 is not supported yet.*'mixed_bfloat16'"):
        keras_mp.set_policy(policy)


def test_a_float8_policy_object_is_refused_too():
    policy = keras.dtype_policies.get("float8_from_mixed_bfloat16")
    with pytest.raises(ValueError, match="float8 is not supported yet"):
        keras_mp.set_policy(policy)


@pytest.mark.parametrize("policy", [None, 16, keras.layers.Dense])
def test_something_else_than_a_name_or_a_policy_is_refused(policy):
    with pytest.raises(TypeError, match=r"a name or a keras\.DTypePolicy"):
        keras_mp.set_policy(policy)


def test_the_scope_restores_what_was_there():
    keras_mp.set_policy("mixed_bfloat16")
    with keras_mp.policy_scope("float32") as choice:
        assert choice.policy == "float32"
        assert keras.layers.Dense(1).compute_dtype == "float32"
    assert keras.layers.Dense(1).compute_dtype == "bfloat16"


def test_the_scope_restores_after_an_exception():
    with pytest.raises(RuntimeError, match="mine"), keras_mp.policy_scope("mixed_float16"):
        raise RuntimeError("mine")
    assert keras.config.dtype_policy().name == "float32"


def test_scopes_nest():
    with keras_mp.policy_scope("mixed_float16"):
        with keras_mp.policy_scope("mixed_bfloat16"):
            pass
        assert keras.config.dtype_policy().name == "mixed_float16"


def test_a_scope_that_cannot_be_entered_changes_nothing():
    keras_mp.set_policy("mixed_float16")
    with pytest.raises(ValueError, match="no policy of that name"), keras_mp.policy_scope("x"):
        pass
    assert keras.config.dtype_policy().name == "mixed_float16"
