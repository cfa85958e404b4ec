"""Rows that make a layer one of ours: what is gained, what is kept, and the way back."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_mp

pytestmark = pytest.mark.backend
BACKEND = keras.backend.backend()
X = np.random.default_rng(0).normal(size=(8, 12, 12, 4)).astype("float32")
OURS, KERAS = "keras_mp.layers.BatchNormalization", "keras.layers.BatchNormalization"
KIND = "BatchNormalization"


def numbers(tensor):
    return np.asarray(ops.convert_to_numpy(ops.cast(tensor, "float32")))


def functional(norm=layers.BatchNormalization):
    inputs = keras.Input((12, 12, 4))
    tensor = norm(name="norm")(layers.Conv2D(16, 3, name="conv")(inputs))
    inner = keras.Sequential(
        [keras.Input((10, 10, 16)), norm(name="deep"), layers.ReLU()], name="inner"
    )
    pooled = layers.GlobalAveragePooling2D()(inner(tensor))
    return keras.Model(inputs, layers.Dense(2, name="end")(pooled))


@keras.saving.register_keras_serializable("test_replace")
class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.conv, self.norm = layers.Conv2D(8, 3), layers.BatchNormalization()
        self.pool, self.end = layers.GlobalAveragePooling2D(), layers.Dense(2)

    def call(self, inputs):
        return self.end(self.pool(self.norm(self.conv(inputs))))

    def get_config(self):
        return {"name": self.name}


def subclassed():
    model = Subclassed()
    model(X)
    return model


BUILD = {"functional": functional, "subclassed": subclassed}


def norms(model):
    from keras_mp.policies.structure import structure_of

    places = structure_of(model).places
    return [p.layer for p in places if isinstance(p.layer, layers.BatchNormalization)]


@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
class TestBothKinds:
    def test_a_plan_makes_them_ours_and_keeps_them(self, build):
        model = build()
        before, weights = norms(model), model.get_weights()
        exact = numbers(model(X))
        planned = keras_mp.plan(model, "mixed_bfloat16")
        rows = [row for row in planned if row.replace and row.layer == KIND]
        assert len(rows) == len(before)
        assert {(row.code, row.replace, row.policy) for row in rows} == {
            ("reduction", OURS, "mixed_bfloat16")
        }
        assert f"becomes {OURS}" in str(planned)
        assert keras_mp.PrecisionPlan.from_json(planned.to_json()) == planned
        assert type(norms(model)[0]) is layers.BatchNormalization  # planning changes nothing
        planned.apply(model)
        after = norms(model)
        assert all(a is b for a, b in zip(after, before, strict=True))
        assert {type(layer) for layer in after} == {keras_mp.layers.BatchNormalization}
        assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), weights, strict=True))
        assert numbers(model(X)) == pytest.approx(exact, abs=0.05)

    def test_a_plan_for_float32_gives_keras_own_back_bit_for_bit(self, build):
        model = build()
        exact = numbers(model(X))
        keras_mp.plan(model, "mixed_bfloat16").apply(model)
        back = keras_mp.plan(model, "float32")
        assert {row.replace for row in back if row.layer == KIND} == {KERAS}
        back.apply(model)
        assert {type(layer) for layer in norms(model)} == {layers.BatchNormalization}
        assert np.array_equal(numbers(model(X)), exact)
        again = keras_mp.plan(model, "mixed_bfloat16")
        assert OURS in {row.replace for row in again}
        assert {row.replace for row in keras_mp.plan(model, "float32") if row.layer == KIND} == {
            None
        }

    def test_copies_and_files_carry_it_and_plain_keras_reads_them(self, build, tmp_path):
        model = build()
        mixed = keras_mp.convert(model, "mixed_bfloat16")
        assert {type(layer) for layer in norms(mixed)} == {keras_mp.layers.BatchNormalization}
        assert {type(layer) for layer in norms(model)} == {layers.BatchNormalization}
        path = tmp_path / "model.keras"
        keras_mp.save_model(mixed, path)
        assert {type(layer) for layer in norms(mixed)} == {keras_mp.layers.BatchNormalization}
        assert {type(layer) for layer in norms(keras.saving.load_model(path))} == {
            layers.BatchNormalization
        }
        loaded = keras_mp.load_model(path)
        assert {type(layer) for layer in norms(loaded)} == {keras_mp.layers.BatchNormalization}
        assert np.array_equal(numbers(loaded(X)), numbers(mixed(X)))
        back = keras_mp.convert(loaded, "float32")
        assert np.array_equal(numbers(back(X)), numbers(model(X)))

    @pytest.mark.skipif(BACKEND == "tensorflow", reason="bytes are counted on torch and jax")
    def test_flipping_it_changes_how_much_is_kept(self, build):
        from keras_mp.numerics.memory import saved_bytes

        def kept(**kwargs):
            model = build()
            keras_mp.plan(model, "mixed_bfloat16", **kwargs).apply(model)
            return saved_bytes(model, X).total

        assert kept() < 0.9 * kept(replace=False)


class TestForSpeed:
    """What pays for bytes with a cast of each weight a step is left out; the rest stays."""

    def test_layers_of_products_are_keras_own_and_the_others_ours(self):
        every = keras_mp.plan(functional(), "mixed_bfloat16")
        fast = keras_mp.plan(functional(), "mixed_bfloat16", replace="speed")
        assert fast["norm"].replace == every["norm"].replace == OURS
        assert fast["conv"].replace is None
        assert (every["conv"].replace == "keras_mp.layers.Conv2D") == (BACKEND != "tensorflow")

    def test_recurrent_layers_of_ours_cost_time_on_jax_alone(self):
        """(`benchmarks/memory.py --time`; on tensorflow a plan leaves them Keras' own.)"""
        model = keras.Sequential([layers.Input((5, 8)), layers.LSTM(16), layers.Dense(4)])
        rows = [keras_mp.plan(model, "mixed_bfloat16", replace=r)["lstm"] for r in (True, "speed")]
        every, fast = (row.replace is not None for row in rows)
        assert every == (BACKEND != "tensorflow") and fast == (BACKEND == "torch")

    @pytest.mark.skipif(BACKEND != "torch", reason="torch alone keeps a cast for the first layer")
    def test_it_changes_what_is_kept_of_the_weights(self):
        """Kept, a cast need not be made again; the other way about for `True`."""
        from keras_mp.numerics.memory import saved_bytes

        def kept(replace):
            model = functional()
            keras_mp.plan(model, "mixed_bfloat16", replace=replace).apply(model)
            return saved_bytes(model, X).weight_casts

        assert kept("speed") > kept(True) == 0

    def test_another_word_is_refused(self):
        with pytest.raises(ValueError, match="Received: replace='memory'"):
            keras_mp.plan(functional(), "mixed_bfloat16", replace="memory")


class TestWhereItMustNotAppear:
    def test_in_float32_or_unwanted_or_kept_in_float32_by_a_rule(self):
        for planned in (
            keras_mp.plan(functional(), "float32"),
            keras_mp.plan(functional(), "mixed_bfloat16", replace=False),
            keras_mp.plan(
                functional(), "mixed_bfloat16", rules={layers.BatchNormalization: "float32"}
            ),
        ):
            assert {row.replace for row in planned if row.layer == KIND} == {None}

    def test_for_a_class_of_the_users(self):
        class Mine(layers.BatchNormalization):
            pass

        assert keras_mp.plan(functional(Mine), "mixed_bfloat16")["norm"].replace is None
        assert keras_mp.plan(functional(), "mixed_bfloat16")["norm"].replace == OURS

    def test_for_layers_that_the_user_made_ours(self):
        """They are ours already, and a plan for float32 leaves them so."""
        model = functional(keras_mp.layers.BatchNormalization)
        for policy in ("mixed_bfloat16", "float32"):
            planned = keras_mp.plan(model, policy)
            assert {row.replace for row in planned if row.layer == KIND} == {None}
            planned.apply(model)
        assert {type(layer) for layer in norms(model)} == {keras_mp.layers.BatchNormalization}


def test_a_row_that_its_layer_cannot_follow_is_refused():
    text = keras_mp.plan(functional(), "mixed_bfloat16").to_json()
    broken = keras_mp.PrecisionPlan.from_json(text.replace(OURS, "keras_mp.layers.LSTM"))
    with pytest.raises(ValueError, match=r"cannot become.*Received: replace='keras_mp"):
        broken.apply(functional())


def test_a_rule_for_the_policy_leaves_the_replacement():
    planned = keras_mp.plan(functional(), "mixed_bfloat16", rules={"norm": "mixed_float16"})
    row = planned["norm"]
    assert (row.code, row.policy, row.replace) == ("rule", "mixed_float16", OURS)


@pytest.mark.skipif(BACKEND == "tensorflow", reason="there plans leave layers of products alone")
def test_a_second_plan_takes_back_what_it_does_not_ask_for():
    model = functional()
    keras_mp.plan(model, "mixed_bfloat16").apply(model)
    assert type(model.get_layer("conv")) is keras_mp.layers.Conv2D
    keras_mp.plan(model, "mixed_bfloat16", replace="speed").apply(model)
    assert type(model.get_layer("conv")) is layers.Conv2D
    assert type(model.get_layer("norm")) is keras_mp.layers.BatchNormalization
    keras_mp.plan(model, "mixed_bfloat16", replace=False).apply(model)
    assert not any(type(layer).__module__.startswith("keras_mp") for layer in model.layers)
    keras_mp.plan(model, "mixed_bfloat16").apply(model)
    again, first = (keras_mp.plan(one, "mixed_bfloat16") for one in (model, functional()))
    assert [(row.reason, row.replace) for row in again] == [(r.reason, r.replace) for r in first]
